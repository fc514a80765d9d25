// A line over the package's own binding: a thread of Node's that runs the model and blocks while it does. It can tell
// nothing of the arena, give nothing back before it is closed, and cut off no run.

import { Worker } from 'node:worker_threads';
import { ShoalError, invariant, unreachable } from '@shoal/contract';
import type { ArenaUse, LineOptions, OrtLine, RunAnswer, RunRequest } from './ort-line.ts';
import type { OrtThreadData, OrtThreadMessage, PrepareRequest } from './ort-thread-protocol.ts';

interface Pending {
  resolve(answer: RunAnswer): void;
  reject(error: Error): void;
}

/** Throws what the runtime said when it does not open the graph, or does not run it where it was told to. */
export async function openThreadLine({ arenaBytes: _cannot, ...workerData }: LineOptions): Promise<OrtLine> {
  const isSource = import.meta.url.endsWith('.ts');
  const thread = new Worker(new URL(isSource ? './ort-thread.ts' : './ort-thread.js', import.meta.url), {
    workerData: workerData satisfies OrtThreadData,
  });
  await ready(thread);
  return new ThreadLine(thread);
}

class ThreadLine implements OrtLine {
  private readonly thread: Worker;
  private readonly runs = new Map<number, Pending>();
  private readonly exited: Promise<void>;
  private runStartedMs: number | undefined;
  private isStopping = false;
  private isGone = false;

  constructor(thread: Worker) {
    this.thread = thread;
    thread.on('message', (message: OrtThreadMessage) => this.hear(message));
    thread.on('error', (error) => this.failAll(error));
    this.exited = new Promise((resolve) => {
      thread.once('exit', (code) => {
        this.isGone = true;
        if (this.pending > 0) this.failAll(new Error(`exit code ${code}`));
        resolve();
      });
    });
  }

  get pending(): number {
    return this.runs.size;
  }

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

  async prepare(reserveTokens: number): Promise<void> {
    if (this.isGone) return; // as prepared() says
    this.thread.postMessage({ reserveTokens } satisfies PrepareRequest);
    return prepared(this.thread);
  }

  arena(): ArenaUse | undefined {
    return undefined;
  }

  async shrink(): Promise<boolean> {
    return false;
  }

  cancel(): boolean {
    return false;
  }

  async stop(): Promise<void> {
    if (!this.isStopping) this.thread.postMessage('close'); // served after every run before it
    this.isStopping = true;
    await this.exited;
  }

  private hear(message: OrtThreadMessage): void {
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

function lost(error: unknown): ShoalError {
  return new ShoalError(
    'DEVICE_LOST',
    `the ort thread ended: ${error instanceof Error ? error.message : String(error)}`,
    {},
    error,
  );
}

/** Or the thread is gone, which whoever runs something is going to hear. */
function prepared(thread: Worker): Promise<void> {
  return new Promise((resolve) => {
    thread.once('exit', () => resolve());
    thread.on('message', function hear(message: OrtThreadMessage) {
      if (message.kind !== 'prepared') return;
      thread.off('message', hear);
      resolve();
    });
  });
}

function ready(thread: Worker): Promise<void> {
  return new Promise((resolve, reject) => {
    const refuse = (found: string): void => reject(new Error(found));
    thread.once('message', (message: OrtThreadMessage) =>
      message.kind === 'ready' ? resolve() : refuse(message.kind === 'unfit' ? message.message : message.kind),
    );
    thread.once('error', (error) => refuse(error instanceof Error ? error.message : String(error)));
  });
}
