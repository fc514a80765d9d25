// The command as it can be typed again. It is printed and kept in files, so that an address in it has lost its password
// there, which has to be typed again.

import { redactText } from '@shoal/core/redact-url';
import type { Terminal } from './terminal.ts';

/** Without the words that are left out. */
export function commandOf({ words }: Pick<Terminal, 'words'>, leftOut: readonly string[] = []): string {
  return ['shoal', ...words.filter((word) => !leftOut.includes(word)).map(redactText)].map(quoted).join(' ');
}

/** As a shell reads it back: words of plain characters as they are, everything else in single quotes. */
function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
