// A session of ONNX Runtime in a thread of its own, which runs the model and blocks while it does, and the runs that
// wait for it: they go in the order of the calls, urgent ones first. The package's binding can neither limit an arena
// nor ask what it holds, gives nothing back before the session is closed, and cannot cut off a run.

import { Worker } from 'node:worker_threads';
import { ShoalError, invariant, unreachable } from '@shoal/contract';
import type { MemoryReading } from '@shoal/core';
import { programFile } from '@shoal/core/base';
import type { FromSessionThread, PrepareRequest, RunRequest, SessionThreadOptions } from './session-thread-protocol.ts';

/** How a run ended; a message is in the runtime's words. */
export type RunAnswer =
  | { readonly ok: true; readonly runMs: number; readonly memory?: MemoryReading | undefined }
  | { readonly ok: false; readonly message: string };

interface Pending {
  resolve(answer: RunAnswer): void;
  reject(error: Error): void;
}

export class SessionThread {
  private readonly thread: Worker;
  private readonly runs = new Map<number, Pending>();
  private readonly exited: Promise<void>;
  private runStartedMs: number | undefined;
  private isStopping = false;
  private isGone = false;

  private constructor(thread: Worker) {
    this.thread = thread;
    thread.on('message', (message: FromSessionThread) => this.hear(message));
    thread.on('error', (error) => this.failAll(error));
    this.exited = new Promise((resolve) => {
      thread.once('exit', (code) => {
        this.isGone = true;
        if (this.pending > 0) this.failAll(new Error(`exit code ${code}`));
        resolve();
      });
    });
  }

  /** Throws what the runtime said when it does not open the graph, or does not run it where it was told to. */
  static async open(options: SessionThreadOptions): Promise<SessionThread> {
    const thread = new Worker(programFile('./session-thread-main', import.meta.url), { workerData: options });
    await ready(thread);
    return new SessionThread(thread);
  }

  /** Runs asked for and not ended. */
  get pending(): number {
    return this.runs.size;
  }

  /** Rejects with DEVICE_LOST when the thread is gone. */
  run(request: RunRequest): Promise<RunAnswer> {
    if (this.isGone) return Promise.reject(lost(new Error('it is gone'))); // nobody would answer
    return new Promise((resolve, reject) => {
      this.runs.set(request.slot, { resolve, reject });
      this.thread.postMessage(request);
    });
  }

  runningMs(): number {
    return this.runStartedMs === undefined ? 0 : performance.now() - this.runStartedMs;
  }

  /** Lays out the arena before the first run, on the CPU: see arena-region.ts. */
  async prepare(reserveTokens: number): Promise<void> {
    if (this.isGone) return; // as prepared() says
    this.thread.postMessage({ reserveTokens } satisfies PrepareRequest);
    return prepared(this.thread);
  }

  /** Ends after every run before. Safe to call twice. */
  async stop(): Promise<void> {
    if (!this.isStopping) this.thread.postMessage('close'); // served after every run before it
    this.isStopping = true;
    await this.exited;
  }

  private hear(message: FromSessionThread): void {
    switch (message.kind) {
      case 'started':
        this.runStartedMs = performance.now();
        return;
      case 'ran':
        return this.take(message.slot).resolve({ ok: true, runMs: message.runMs, memory: message.memory });
      case 'failed':
        return this.take(message.slot).resolve({ ok: false, message: message.message });
      case 'ready':
      case 'unfit':
      case 'prepared':
        return; // heard where they were asked for
      default:
        return unreachable(message);
    }
  }

  private take(slot: number): Pending {
    const pending = this.runs.get(slot);
    invariant(pending !== undefined, 'the thread answers only what it was asked');
    this.runs.delete(slot);
    this.runStartedMs = undefined;
    return pending;
  }

  private failAll(error: unknown): void {
    for (const pending of this.runs.values()) pending.reject(lost(error));
    this.runs.clear();
    this.runStartedMs = undefined;
  }
}

/**
 * The thread with least to do; of those with as much, the one whose run has gone on for longest is likely the next to
 * be free.
 */
export function soonestThread<Thread extends Pick<SessionThread, 'pending' | 'runningMs'>>(
  threads: readonly Thread[],
): Thread {
  return threads.reduce((best, other) =>
    other.pending < best.pending || (other.pending === best.pending && other.runningMs() > best.runningMs())
      ? other
      : best,
  );
}

function lost(error: unknown): ShoalError {
  return new ShoalError(
    'DEVICE_LOST',
    `the thread of the session ended: ${error instanceof Error ? error.message : String(error)}`,
    {},
    error,
  );
}

/** Resolves also when the thread is gone, which whoever runs something is going to hear. */
function prepared(thread: Worker): Promise<void> {
  return new Promise((resolve) => {
    thread.once('exit', () => resolve());
    thread.on('message', function hear(message: FromSessionThread) {
      if (message.kind !== 'prepared') return;
      thread.off('message', hear);
      resolve();
    });
  });
}

function ready(thread: Worker): Promise<void> {
  return new Promise((resolve, reject) => {
    const refuse = (found: string): void => reject(new Error(found));
    thread.once('message', (message: FromSessionThread) =>
      message.kind === 'ready' ? resolve() : refuse(message.kind === 'unfit' ? message.message : message.kind),
    );
    thread.once('error', (error) => refuse(error instanceof Error ? error.message : String(error)));
  });
}
