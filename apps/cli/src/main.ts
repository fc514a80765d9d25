#!/usr/bin/env node
// The edge of the process: the only place of the command line that reads the environment, handles signals and exits.
// Exit codes: 0 done, 1 failed, 2 called wrongly, 75 a worker that is to be started again, 130 after Ctrl-C, 143 after
// SIGTERM.

import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { drained, runCommand, told } from './run-command.ts';
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

/** For how long a command may go on ending after a failure that nobody heard: it may wait for the part that failed. */
const UNHEARD_MS = 60_000;

const SIGNALS = [
  ['SIGINT', 130],
  ['SIGTERM', 143],
  ['SIGHUP', 129],
] as const;
listenForSignals();
process.on('uncaughtException', (error) => void interruptBy(error)); // also a rejection that nobody hears
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
const outcome = await runCommand(terminal, version());
await drained(terminal);
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

/** A failure that no part of the command heard: it is told as any other, and the command ends as after a signal. */
async function interruptBy(error: unknown): Promise<void> {
  setTimeout(() => process.exit(1), UNHEARD_MS).unref();
  const { text } = await told(error);
  if (interruption.signal.aborted) terminal.stderr.write(`shoal: ${text}\n`);
  else interruption.abort(new Interruption(text, 1));
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
  const { redactText } = await import('@shoal/core/redact-url');
  const shown = given.map(redactText);
  if (shown.some((argument, at) => argument !== given[at])) process.title = ['shoal', ...shown].join(' ');
}

function version(): string {
  const manifest: unknown = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8'));
  return typeof manifest === 'object' && manifest !== null ? String(Reflect.get(manifest, 'version')) : '';
}
