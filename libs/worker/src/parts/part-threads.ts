// The threads that read and write parts (part-thread.ts), one for each part that is open; one that is free is used again.
// A thread that ends by itself fails its part by name, and nobody beside it: the next part has another.

import { Worker } from 'node:worker_threads';
import { ShoalError, invariant } from '@shoal/contract';
import type { Logger } from '@shoal/core';
import { programFile } from '@shoal/core/base';
import type { Block } from '../files/row-form.ts';
import type { Spent } from './part-object.ts';
import type { PartReply, PartRequest, PartThreadData } from './part-thread.ts';
import type { PartDone, PartTerms, PartTexts, PartWork } from './part-work.ts';

export interface PartThreadsOptions extends PartThreadData {
  readonly log: Logger;
  /** For tests. */
  readonly program?: URL | undefined;
}

export class PartThreads {
  private readonly options: PartThreadsOptions;
  private readonly all = new Set<PartThread>();
  private readonly free = new Set<PartThread>();

  constructor(options: PartThreadsOptions) {
    this.options = options;
  }

  /**
   * As `OpenPart.open`, and EXECUTOR_LOST where the thread ends, now or with any later request. `signal`: waits for no store
   * any more.
   */
  async open(terms: PartTerms, signal?: AbortSignal): Promise<PartWork> {
    const thread = this.freeOne();
    const stop = (): void => void thread.ask({ kind: 'stop' }).catch(() => undefined);
    const ended = (): void => {
      signal?.removeEventListener('abort', stop);
      this.giveBack(thread);
    };
    const part = new ThreadedPart(thread, ended);
    try {
      signal?.addEventListener('abort', stop, { once: true });
      await thread.ask({ kind: 'open', terms });
      return part;
    } catch (error) {
      ended();
      throw error;
    }
  }

  /** Once nobody waits for a part. Safe to call twice. */
  async stop(): Promise<void> {
    const threads = [...this.all];
    this.all.clear();
    this.free.clear();
    await Promise.all(threads.map((thread) => thread.stop()));
  }

  private freeOne(): PartThread {
    const [free] = this.free;
    if (free !== undefined) {
      this.free.delete(free);
      return free;
    }
    const thread: PartThread = new PartThread(this.options, () => this.forget(thread));
    this.all.add(thread);
    return thread;
  }

  private giveBack(thread: PartThread): void {
    if (this.all.has(thread)) this.free.add(thread);
  }

  private forget(thread: PartThread): void {
    this.all.delete(thread);
    this.free.delete(thread);
  }
}

/** A part on its thread. */
class ThreadedPart implements PartWork {
  private readonly thread: PartThread;
  private readonly onClosed: () => void;
  private closed: Promise<void> | undefined;

  constructor(thread: PartThread, onClosed: () => void) {
    this.thread = thread;
    this.onClosed = onClosed;
  }

  async next(): Promise<PartTexts | undefined> {
    const reply = await this.thread.ask({ kind: 'next' });
    invariant(reply.kind === 'next', 'whoever asks for texts gets texts');
    return reply.texts;
  }

  async write(
    vectors: Float32Array<ArrayBuffer>,
    spent: Omit<Spent, 'rows'>,
    rowTokens: Block['rowTokens'],
  ): Promise<Float32Array<ArrayBuffer>> {
    const reply = await this.thread.ask({ kind: 'write', vectors, spent, rowTokens }, [vectors.buffer]);
    invariant(reply.kind === 'written', 'whoever gives vectors gets their memory');
    return reply.vectors;
  }

  async finish(): Promise<PartDone> {
    const reply = await this.thread.ask({ kind: 'finish' });
    invariant(reply.kind === 'finished', 'an object that is whole is told of');
    return reply.done;
  }

  async giveUp(): Promise<void> {
    await this.thread.ask({ kind: 'giveUp' });
  }

  async leave(): Promise<void> {
    await this.thread.ask({ kind: 'leave' });
  }

  async remove(): Promise<void> {
    await this.thread.ask({ kind: 'remove' });
  }

  close(): Promise<void> {
    // of a thread that is gone, all files are closed
    this.closed ??= this.thread.ask({ kind: 'close' }).then(this.onClosed, this.onClosed);
    return this.closed;
  }
}

type Asked<Request = PartRequest> = Request extends unknown ? Omit<Request, 'id'> : never;

class PartThread {
  private readonly worker: Worker;
  private readonly pending = new Map<number, PromiseWithResolvers<PartReply>>();
  private readonly log: Logger;
  private readonly onLost: () => void;
  private requests = 0;
  private lost: ShoalError | undefined;

  constructor({ log, folders, tokenizer, program }: PartThreadsOptions, onLost: () => void) {
    this.onLost = onLost;
    this.log = log;
    const workerData: PartThreadData = { folders, tokenizer };
    this.worker = new Worker(program ?? programFile('./part-thread', import.meta.url), { workerData });
    this.worker.on('message', (reply: PartReply) => this.hear(reply));
    this.worker.on('error', (error: unknown) => this.lose(error));
    this.worker.on('exit', (code) => this.lose(new Error(`it ended with ${code}`)));
  }

  async ask(asked: Asked, given: readonly ArrayBuffer[] = []): Promise<PartReply> {
    if (this.lost !== undefined) throw this.lost;
    const request: PartRequest = { id: ++this.requests, ...asked };
    const answer = Promise.withResolvers<PartReply>();
    this.pending.set(request.id, answer);
    this.worker.postMessage(request, given);
    return answer.promise;
  }

  async stop(): Promise<void> {
    this.worker.removeAllListeners();
    await this.worker.terminate();
  }

  private hear(reply: PartReply): void {
    if (reply.kind === 'away') {
      const { problem, waitMs } = reply;
      return this.log.warn({ reason: problem, waitMs }, 'a store that has files of parts is away, and is waited for');
    }
    const answer = this.pending.get(reply.id);
    invariant(answer !== undefined, 'a thread answers what it was asked');
    this.pending.delete(reply.id);
    if (reply.kind === 'failed') answer.reject(new ShoalError(reply.failure.code, reply.failure.message));
    else answer.resolve(reply);
  }

  private lose(error: unknown): void {
    if (this.lost !== undefined) return;
    const reason = error instanceof Error ? error.message : String(error);
    this.lost = new ShoalError(
      'EXECUTOR_LOST',
      `the thread that had the files of the part ended: ${reason}`,
      {},
      error,
    );
    this.log.error({ err: error, code: this.lost.code }, 'a thread of a part ended');
    for (const { reject } of this.pending.values()) reject(this.lost);
    this.pending.clear();
    this.onLost();
  }
}
