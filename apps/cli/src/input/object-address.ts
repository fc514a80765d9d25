/** Whether a name that somebody gave is that of an object of S3, and not of a file. */
export function isObjectAddress(name: string): boolean {
  return name.startsWith('s3://');
}
