/** `code` of an error, as Node gives those of the system one: ENOENT, EACCES and so on; undefined where it has none. */
export function codeOf(error: unknown): unknown {
  return error instanceof Error && 'code' in error ? error.code : undefined;
}
