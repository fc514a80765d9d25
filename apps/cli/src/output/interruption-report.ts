// For programs that read `--json`: what a run that did not come to its end leaves, and what goes on with it.

import { isShoalError } from '@shoal/contract';
import { redactMessage } from '@shoal/core/redact-url';
import type { Terminal } from '../terminal.ts';
import { commandOf } from '../typed-command.ts';
import type { Abandoned } from './row-writer.ts';

export type Left =
  | Exclude<Abandoned, { kind: 'kept' }>
  | { readonly kind: 'kept'; readonly rows: number; readonly file?: string };

/** One line. `rows`: how many are left, in `file` where a person can find them. */
export function interruptionReport(terminal: Pick<Terminal, 'words'>, left: Left, error: unknown): string {
  const code = isShoalError(error) ? { code: error.code } : {};
  const message = redactMessage(error);
  return `${JSON.stringify({
    isDone: false,
    left: left.kind,
    rows: 'rows' in left ? left.rows : 0,
    ...('file' in left && left.file !== undefined ? { file: left.file } : {}),
    ...(left.kind === 'kept' ? { goesOnWith: commandOf(terminal, ['--fresh']) } : {}),
    error: { ...code, message },
  })}\n`;
}
