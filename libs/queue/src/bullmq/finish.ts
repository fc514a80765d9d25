// Completes claimed jobs, many in one call. BullMQ's own script completes one, makes some forty functions anew for it,
// and asks after parents, deduplication and metrics that a plain job has none of: 123 µs of the server's time a job of
// one text, the smaller part of it for commands. What is more than plain is left to BullMQ's script.
// finish.test.ts holds the two against each other, key by key.
//
// Why: docs/decisions/queue.md#jobs-are-added-claimed-and-completed-many-in-a-call

import { Batcher } from '@shoal/core/base';
import type { Job } from 'bullmq';
import { lockLost } from './internals.ts';
import { isPassingFault, type Redis } from '../redis/connection.ts';
import { runScript } from '../redis/script.ts';
import { COMPLETE_JOBS } from './lua/scripts.generated.ts';

export interface CompletionsOptions {
  readonly connection: Redis;
  readonly prefix: string;
  readonly queue: string;
  /** Finished jobs that stay; a job that says how many itself is left to BullMQ. */
  readonly kept: number;
  /** After it nothing is tried again. */
  readonly signal: AbortSignal;
}

/** What the script answers for a job that it left alone. */
const NOT_PLAIN = 1;
/** The server does nothing else meanwhile: some 30 µs a job. */
const JOBS_PER_CALL = 32;

interface Waiting {
  readonly job: Job;
  readonly token: string;
  readonly value: string;
  readonly answer: (code: number) => void;
  readonly fail: (error: unknown) => void;
}

export class Completions {
  private readonly options: CompletionsOptions;
  private readonly sharedKeys: readonly string[];
  private readonly keyPrefix: string;
  private readonly batcher = new Batcher<Waiting>({ send: (batch) => this.send(batch), most: JOBS_PER_CALL });

  constructor(options: CompletionsOptions) {
    this.options = options;
    this.keyPrefix = `${options.prefix}:${options.queue}:`;
    this.sharedKeys = ['active', 'stalled', 'completed', 'events', 'meta', 'wait', 'prioritized'].map(
      (name) => this.keyPrefix + name,
    );
  }

  /** So that the first jobs need no second round trip; whoever leaves it out only waits for that. */
  async prepare(): Promise<void> {
    await this.options.connection.script('LOAD', COMPLETE_JOBS.lua).catch(() => undefined);
  }

  /**
   * What is completed in one turn of the event loop, or while others may wait, goes out together. Throws as
   * Job.moveToCompleted does; isLockLost knows its codes.
   */
  async complete(job: Job, token: string, value: object, mayWaitMs = 0): Promise<void> {
    const code = isPlain(job) ? await this.ask(job, token, JSON.stringify(value), mayWaitMs) : NOT_PLAIN;
    if (code === NOT_PLAIN) await job.moveToCompleted(value, token, false);
    else if (code !== 0) throw lockLost(job.id ?? '', code);
  }

  /** Sends what waits, for who has to come behind it. */
  flush(): void {
    this.batcher.flush();
  }

  private ask(job: Job, token: string, value: string, mayWaitMs: number): Promise<number> {
    return new Promise((answer, fail) => this.batcher.add([{ job, token, value, answer, fail }], mayWaitMs));
  }

  private async send(batch: readonly Waiting[]): Promise<void> {
    const { connection, kept, signal } = this.options;
    const keys = batch.flatMap(({ job }) => [`${this.keyPrefix}${job.id}`, `${this.keyPrefix}${job.id}:lock`]);
    const facts = batch.flatMap(({ job, token, value }) => [job.id ?? '', token, value]);
    const call = { ...COMPLETE_JOBS, keyCount: this.sharedKeys.length + keys.length };
    try {
      const [codes] = await runScript(
        connection,
        call,
        [[...this.sharedKeys, ...keys, this.keyPrefix, Date.now(), kept, ...facts]],
        { signal },
      );
      for (const [at, { answer }] of batch.entries()) answer(Number((codes as unknown[])[at]));
    } catch (error) {
      // A key that all share may be broken: BullMQ's own script says what each job meets.
      for (const { answer, fail } of batch) {
        if (signal.aborted || isPassingFault(error)) fail(error);
        else answer(NOT_PLAIN);
      }
    }
  }
}

/** Keeps to the worker's own number of finished jobs, belongs to no flow, and stands for no other job. */
function isPlain({ opts, parent, parentKey, deduplicationId }: Job): boolean {
  return (
    opts.removeOnComplete === undefined &&
    parent === undefined &&
    parentKey === undefined &&
    deduplicationId === undefined
  );
}
