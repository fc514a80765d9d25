// A command from its words to its exit code, in whatever process: `main.ts` gives it a real one.

import { CommanderError } from 'commander';
import { buildProgram } from './program.ts';
import { Interruption, type Terminal } from './terminal.ts';

/** Runs what the terminal's words say, tells there what went wrong, and gives the exit code. */
export async function runCommand(terminal: Terminal, version: string): Promise<number> {
  try {
    await buildProgram(terminal, version).parseAsync(terminal.words, { from: 'user' });
    await drained(terminal); // a last line that cannot be written is a failure as well
    const { reason } = terminal.signal;
    // a signal may be a command's regular end: a drained worker
    return reason instanceof Interruption && reason.exitCode === 1 ? await report(terminal, reason) : 0;
  } catch (error) {
    return report(terminal, terminal.signal.aborted ? terminal.signal.reason : error);
  }
}

/** Says what went wrong, once, and gives the exit code for it. */
async function report({ stderr }: Terminal, error: unknown): Promise<number> {
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2; // commander has printed it
  if (error instanceof Interruption) {
    if (!error.isQuiet) stderr.write(`shoal: ${error.message}\n`);
    return error.exitCode;
  }
  const { text, isWrongCall } = await told(error);
  stderr.write(`shoal: ${text}\n`);
  return isWrongCall ? 2 : 1;
}

/** What is said of a failure, and whether the command was called wrongly. */
export async function told(error: unknown): Promise<{ readonly text: string; readonly isWrongCall: boolean }> {
  const { isShoalError } = await import('@shoal/contract');
  const { diskFailure } = await import('@shoal/fetch');
  const { descriptorFailure } = await import('@shoal/core/base');
  const { redactText } = await import('@shoal/core/redact-url');
  const failure = diskFailure(error) ?? descriptorFailure(error) ?? error;
  if (isShoalError(failure)) {
    const isWrongCall = failure.code === 'USAGE' || failure.code === 'CONFIG_INVALID';
    return { text: redactText(failure.message), isWrongCall };
  }
  const { stackBySources } = await import('./stack-by-sources.ts');
  const stack = redactText(String(failure instanceof Error ? stackBySources(failure.stack ?? '') : failure));
  return { text: `something unexpected happened; this is a bug worth reporting\n${stack}`, isWrongCall: false };
}

/** Waits until what was written to a pipe has left this process; `process.exit` would cut it off. */
export async function drained({ stdout, stderr }: Terminal): Promise<void> {
  for (const stream of [stdout, stderr]) {
    if (stream.writableLength > 0 && !stream.destroyed) await new Promise((resolve) => stream.write('', resolve));
  }
  await new Promise((resolve) => setImmediate(resolve)); // errors of a write are told after it
}
