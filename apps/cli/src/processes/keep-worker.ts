// Somebody has to run the jobs. While a command waits for rows, this keeps a worker alive for its queue: it starts one
// when there is none, starts the next when it dies, and gives up when that does not help.
//
// watching: other processes' workers serve the queue. They are counted every second; with none left, we start our own.
// running:  our worker is alive. It reports `ready`, or `unfit` when it never can be: then nothing is tried again. Unfit
//           for want of the queue server passes, once one of ours was ready: that server comes back, or the client,
//           which waits for it longer than a worker does, gives up. Without a sign of life for half a minute it is
//           killed.
// pausing:  our worker died. The next one starts after a pause that doubles, as long as deaths follow one another
//           without a row between them; after five of those the command fails with the worker's last words. Those for
//           want of the server are not among the five.
// stopped:  our worker was told to drain and is gone. Final.
//
// A worker leaves by itself when the channel to this process closes, so that even a SIGKILL leaves nothing behind.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { ERROR_CODES, ShoalError, invariant, type ErrorCode, type Failure } from '@shoal/contract';
import { descriptorFailure, programFile } from '@shoal/core/base';
import { KeptProcess, type AfterDeath } from '@shoal/ops/kept-process';
import { PARENT_TELLS, SILENT_FOR, watchSigns } from '@shoal/ops/signs-of-life';
import { untilAborted } from '../input/until-aborted.ts';

const WATCH_MS = 1_000;
const FIRST_PAUSE_MS = 250;
const MOST_DEATHS = 5;
/** The pause before the last of those is the longest; a server may be away for longer than five of them take. */
const LONGEST_PAUSES = 2 ** (MOST_DEATHS - 2);
/** A worker that has nothing to drain is gone in moments; one that hangs must not keep the command. */
const STOP_MS = 10_000;
const LAST_WORDS_BYTES = 4_096;
/**
 * What a dead worker wrote may still be on its way. Waiting for the end of the pipe instead would wait for its
 * executor.
 */
const LAST_WORDS_MS = 50;

export interface KeepWorkerOptions {
  readonly startWorker: () => ChildProcess;
  /** How many workers of other processes, or our own, serve the queue now. */
  readonly countWorkers: () => Promise<number>;
  /** Our worker was started for the `attempt`th time, from 1. */
  readonly onStart: (attempt: number) => void;
  readonly firstPauseMs?: number;
}

export class WorkerKeeper {
  readonly #options: KeepWorkerOptions;
  readonly #failing = new AbortController();
  readonly #kept: KeptProcess<Ending | undefined>;
  #deathsInARow = 0;
  #starts = 0;
  #wasReady = false;
  #hasLostOne = false;

  constructor(options: KeepWorkerOptions) {
    this.#options = options;
    const firstMs = options.firstPauseMs ?? FIRST_PAUSE_MS;
    this.#kept = new KeptProcess<Ending | undefined>({
      live: (stopping) => this.#runOne(stopping),
      onDeath: (ending) => this.#died(ending),
      pause: { firstMs, mostMs: firstMs * LONGEST_PAUSES },
    });
    void this.#kept.run();
  }

  /** Aborted, with the reason as ShoalError, when no worker can be kept alive. */
  get failed(): AbortSignal {
    return this.#failing.signal;
  }

  /** Rows arrived: whatever killed workers before, one works now. */
  noteProgress(): void {
    this.#deathsInARow = 0;
    this.#kept.noteProgress();
  }

  /** Resolves when our worker, if there is one, is gone. Safe to call twice. */
  stop(): Promise<void> {
    return this.#kept.stop();
  }

  /** Starts a worker as soon as nobody serves the queue. Gives its end, or undefined when it was stopped before. */
  async #runOne(stopping: AbortSignal): Promise<Ending | undefined> {
    // A worker of ours that just died counts as alive for some seconds more; it is replaced without asking.
    while (!this.#hasLostOne && (await this.#isServed(stopping)) && !stopping.aborted) await pause(WATCH_MS, stopping);
    if (stopping.aborted) return undefined;
    this.#hasLostOne = false;
    this.#options.onStart(++this.#starts);
    return lifeOf(this.#options.startWorker(), stopping);
  }

  /** A server that does not answer now is the client's business, which waits for it or gives up; who stops does not. */
  async #isServed(stopping: AbortSignal): Promise<boolean> {
    return untilAborted(this.#options.countWorkers(), stopping).then(
      (count) => count > 0,
      () => true,
    );
  }

  #died(ending: Ending | undefined): AfterDeath {
    invariant(ending !== undefined, 'a worker that was not stopped has an end');
    const { isReady, failure, lastWords } = ending;
    this.#hasLostOne = true;
    this.#wasReady ||= isReady;
    const isPassing = failure?.code === 'QUEUE_UNREACHABLE' && this.#wasReady;
    if (failure !== undefined && !isPassing)
      return this.#fail(new ShoalError(failure.code, `the worker cannot run: ${failure.message}`));
    if (!isPassing && ++this.#deathsInARow >= MOST_DEATHS) return this.#fail(diedTooOften(lastWords));
    return 'again';
  }

  #fail(error: ShoalError): 'give-up' {
    this.#failing.abort(error);
    return 'give-up';
  }
}

async function pause(ms: number, stopping: AbortSignal): Promise<void> {
  await delay(ms, undefined, { signal: stopping }).catch(() => undefined);
}

export function workerProgram(app: 'cpu-worker' | 'gpu-worker'): string {
  return fileURLToPath(programFile(`../../../${app}/src/main`, import.meta.url));
}

/**
 * A worker as a child of this process. It has a process group of its own: Ctrl-C in a terminal goes to the whole group,
 * and when the worker stops is our decision. Node's flags, such as the source condition, are inherited.
 */
export function forkWorker(
  app: 'cpu-worker' | 'gpu-worker',
  environment: Readonly<Record<string, string | undefined>>,
  stderr: 'pipe' | 'inherit',
): ChildProcess {
  return fork(workerProgram(app), [PARENT_TELLS], {
    detached: true,
    env: { ...environment },
    stdio: ['ignore', 'ignore', stderr, 'ipc'],
  });
}

/** Asks a child to drain and waits until it is gone; kills it when it does not go. */
export async function stopWorker(child: ChildProcess, waitMs: number = STOP_MS): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const gone = once(child, 'exit');
  child.kill('SIGTERM');
  const isGone = await Promise.race([gone.then(() => true), delay(waitMs, false, { ref: false })]);
  if (isGone) return;
  child.kill('SIGKILL');
  await gone;
}

/** How it ended, once everything that it said has come: the last message is why. Rejects when it could not be forked. */
export async function endOf(child: ChildProcess): Promise<{ readonly code: unknown; readonly signal: unknown }> {
  const [code, signal]: unknown[] = await once(child, 'exit');
  if (child.connected) await once(child, 'disconnect');
  return { code, signal };
}

interface Ending {
  readonly isReady: boolean;
  readonly failure: Failure | undefined;
  readonly lastWords: string;
}

async function lifeOf(child: ChildProcess, stopping: AbortSignal): Promise<Ending> {
  let isReady = false;
  let failure: Failure | undefined;
  let lastWords = '';
  child.on('message', (message) => {
    isReady ||= typeof message === 'object' && message !== null && Reflect.get(message, 'kind') === 'ready';
    failure ??= unfitReport(message);
  });
  child.stderr?.setEncoding('utf8').on('data', (text: string) => {
    lastWords = (lastWords + text).slice(-LAST_WORDS_BYTES);
  });
  watchSigns(child, () => {
    lastWords += `it was silent for ${SILENT_FOR} and was killed\n`;
    child.kill('SIGKILL');
  });
  const stop = (): void => void stopWorker(child);
  stopping.addEventListener('abort', stop, { once: true });
  if (stopping.aborted) stop();
  await endOf(child).catch((error: unknown) => {
    lastWords += String(descriptorFailure(error)?.message ?? error); // it could not be started at all
  });
  await pause(LAST_WORDS_MS, stopping);
  stopping.removeEventListener('abort', stop);
  return { isReady, failure, lastWords };
}

/** The failure in a worker's report `unfit`; undefined for every other message. */
export function unfitReport(message: unknown): Failure | undefined {
  if (typeof message !== 'object' || message === null || Reflect.get(message, 'kind') !== 'unfit') return undefined;
  const failure: unknown = Reflect.get(message, 'failure');
  if (typeof failure !== 'object' || failure === null) return undefined;
  const code: unknown = Reflect.get(failure, 'code');
  return { code: isErrorCode(code) ? code : 'SETUP_FAILED', message: String(Reflect.get(failure, 'message')) };
}

function isErrorCode(code: unknown): code is ErrorCode {
  return typeof code === 'string' && Object.hasOwn(ERROR_CODES, code);
}

function diedTooOften(lastWords: string): ShoalError<'EXECUTOR_LOST'> {
  const words = lastWords
    .trim()
    .split('\n')
    .slice(-5)
    .map((line) => `  ${line.slice(0, 400)}`)
    .join('\n');
  const found = words.trim() === '' ? ' It said nothing before.' : ` Its last words:\n${words}`;
  return new ShoalError(
    'EXECUTOR_LOST',
    `the worker died ${MOST_DEATHS} times in a row without finishing a job.${found}`,
  );
}
