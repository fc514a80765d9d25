#!/usr/bin/env node
// The edge of the process: the only place of the command line that reads the environment, handles signals and exits.
// Exit codes: 0 done, 1 failed, 2 called wrongly, 75 a worker that is to be started again, 130 after Ctrl-C, 143 after
// SIGTERM.

import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { CommanderError } from 'commander';
import { buildProgram } from './program.ts';
import { Interruption, type Terminal } from './terminal.ts';

const interruption = new AbortController();
const terminal: Terminal = {
  stdin: process.stdin,
  stdout: process.stdout,
  stderr: process.stderr,
  environment: process.env,
  words: process.argv.slice(2),
  signal: interruption.signal,
  whileDeaf,
};

const SIGNALS = [
  ['SIGINT', 130],
  ['SIGTERM', 143],
  ['SIGHUP', 129],
] as const;
listenForSignals();
for (const stream of [process.stdout, process.stderr]) {
  stream.on('error', ({ code, message }: NodeJS.ErrnoException) => {
    if (code === 'EPIPE') interruption.abort(new Interruption('the reader of the output is gone', 0, true));
    else
      interruption.abort(
        new Interruption(
          'cannot write standard output: ' +
            `${code === 'ENOSPC' ? 'the disk is full; free some space or write elsewhere' : message}`,
          1,
        ),
      );
  });
}

await hideArguments();
const outcome = await run();
await drained();
await signalsHeard();
await end(outcome); // whatever a library may have left open: results are written, services released

/**
 * Leaving waits for threads, and one may be in the kernel for as long as a device says nothing. Whoever interrupted the
 * command does not wait for that: it ends by the same signal, which shells show as the same exit code. From here on a
 * signal ends the process at once.
 */
async function end(exitCode: number): Promise<never> {
  const asked = SIGNALS.find(([, code]) => code === exitCode);
  if (asked !== undefined && !(await threadsEnd())) endBy(asked[0]);
  letSignalsEnd();
  process.exit(exitCode);
}

/** Whether what the threads of libuv do for this process ends within a moment, as reads of a file do. */
async function threadsEnd(): Promise<boolean> {
  for (let look = 0; threadsAreBusy() && look < 50; look++) await sleep(10);
  return !threadsAreBusy();
}

function threadsAreBusy(): boolean {
  return process.getActiveResourcesInfo().some((name) => /^(FSReq|Get(Addr|Name)Info)/.test(name));
}

function listenForSignals(): void {
  for (const [name, exitCode] of SIGNALS) {
    process.on(name, () => {
      if (interruption.signal.aborted) endBy(name); // asked twice: now
      // Later ones end the process by themselves: code that does not come to an end would not hear them.
      void signalsHeard().then(letSignalsEnd);
      interruption.abort(new Interruption(name === 'SIGINT' ? 'interrupted' : `stopped by ${name}`, exitCode));
    });
  }
}

/** Signals that came before are heard before, and those that come after it as always. */
async function whileDeaf<Result>(work: () => Result): Promise<Result> {
  await signalsHeard();
  interruption.signal.throwIfAborted();
  letSignalsEnd();
  try {
    return work();
  } finally {
    listenForSignals();
  }
}

/** As the system would have done: leaving by `process.exit` waits for threads. */
function endBy(signal: NodeJS.Signals): void {
  letSignalsEnd();
  process.kill(process.pid, signal);
}

/** Signals that came before were told: they are in a whole turn of the event loop, and lost when nobody listens any more. */
async function signalsHeard(): Promise<void> {
  for (let turn = 0; turn < 2; turn++) await new Promise((resolve) => setImmediate(resolve));
}

function letSignalsEnd(): void {
  for (const [name] of SIGNALS) process.removeAllListeners(name);
}

/** Arguments are everybody's to read (ps): an address among them is shown there without its password. */
async function hideArguments(): Promise<void> {
  const given = process.argv.slice(2);
  if (!given.some((argument) => argument.includes('://'))) return;
  const { redactText } = await import('@shoal/core');
  const shown = given.map(redactText);
  if (shown.some((argument, at) => argument !== given[at])) process.title = ['shoal', ...shown].join(' ');
}

async function run(): Promise<number> {
  try {
    await buildProgram(terminal, version()).parseAsync(process.argv);
    await drained(); // a last line that cannot be written is a failure as well
    const { reason } = interruption.signal;
    // a signal may be a command's regular end: a drained worker
    return reason instanceof Interruption && reason.exitCode === 1 ? await report(reason) : 0;
  } catch (error) {
    return report(interruption.signal.aborted ? interruption.signal.reason : error);
  }
}

/** Says what went wrong, once, and gives the exit code for it. */
async function report(error: unknown): Promise<number> {
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2; // commander has printed it
  if (error instanceof Interruption) {
    if (!error.isQuiet) process.stderr.write(`shoal: ${error.message}\n`);
    return error.exitCode;
  }
  const { isShoalError } = await import('@shoal/contract');
  const { diskFailure } = await import('@shoal/fetch');
  const { redactText } = await import('@shoal/core');
  const failure = diskFailure(error) ?? error;
  if (!isShoalError(failure)) {
    process.stderr.write(
      'shoal: something unexpected happened; this is a bug worth ' +
        `reporting\n${redactText(String(failure instanceof Error ? failure.stack : failure))}\n`,
    );
    return 1;
  }
  process.stderr.write(`shoal: ${redactText(failure.message)}\n`);
  return failure.code === 'USAGE' || failure.code === 'CONFIG_INVALID' ? 2 : 1;
}

/** Waits until what was written to a pipe has left this process; `process.exit` would cut it off. */
async function drained(): Promise<void> {
  for (const stream of [process.stdout, process.stderr]) {
    if (stream.writableLength > 0 && !stream.destroyed) await new Promise((resolve) => stream.write('', resolve));
  }
  await new Promise((resolve) => setImmediate(resolve)); // errors of a write are told after it
}

function version(): string {
  const manifest: unknown = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8'));
  return typeof manifest === 'object' && manifest !== null ? String(Reflect.get(manifest, 'version')) : '';
}
