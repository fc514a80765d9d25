/** Text that stands for itself in a pattern of SCAN. */
export function literally(text: string): string {
  return text.replaceAll(/[*?[\]\\]/g, '\\$&');
}
