// BullMQ's Worker without its loop: it takes many jobs in one round trip, each under a token of its own, and looks for
// stalled ones. It processes nothing, renews nothing and settles nothing; bull-job-source.ts does. Only public and
// protected methods of Worker are used.

import { Worker, type Job, type JobJson } from 'bullmq';
import { setImmediate } from 'node:timers/promises';
import { closeConnection, type Closable, type Redis } from './connection.ts';

export interface BatchWorkerOptions {
  readonly connection: Redis;
  readonly prefix: string;
  readonly queue: string;
  readonly workerId: string;
  readonly leaseMs: number;
  readonly stalledCheckMs: number;
}

/** A job under a lock of ours. */
export interface TakenJob {
  readonly job: Job;
  readonly token: string;
}

/** What is kept of finished jobs whose producer did not say. */
const KEEP_COMPLETED = 1_000;
const KEEP_FAILED = 5_000;
/** The death of workers says nothing about a job, so no number of stalls fails one. */
const MAX_STALLED_COUNT = 1_000_000_000;
/** An idle worker looks by itself so often, should a marker ever be lost; also bounds how long a broken wait goes unnoticed. */
const IDLE_LOOK_SECONDS = 2;

export class BatchWorker extends Worker {
  private tokens = 0;
  private blocking: Closable | undefined;

  constructor(options: BatchWorkerOptions) {
    super(options.queue, null, {
      connection: options.connection,
      prefix: options.prefix,
      name: options.workerId,
      autorun: false,
      lockDuration: options.leaseMs,
      stalledInterval: options.stalledCheckMs,
      maxStalledCount: MAX_STALLED_COUNT,
      drainDelay: IDLE_LOOK_SECONDS,
      removeOnComplete: { count: KEEP_COMPLETED },
      removeOnFail: { count: KEEP_FAILED },
    });
  }

  /** Waits for a job; undefined when none came in a while. */
  takeNext(): Promise<TakenJob | undefined> {
    return this.take(true);
  }

  /** As many calls in flight at once, written to the socket back to back: one round trip. One outcome per call. */
  takeNow(count: number): Promise<TakenJob | undefined>[] {
    return Array.from({ length: count }, () => this.take(false));
  }

  async untilReady(): Promise<void> {
    await this.waitUntilReady();
    this.blocking = await this.getBackend().blockingClient;
  }

  /** Ends a `takeNext` that waits: it resolves without a job, unless the server has just given it one. */
  async interruptWait(): Promise<void> {
    // While it has no socket there is nothing to interrupt, and `disconnect` would only lose its retry timer.
    if (this.blocking?.status === 'ready') await this.getBackend().disconnectBlocking(false);
  }

  /** Closes everything at once, waiting for no job and no server. */
  async shutDown(): Promise<void> {
    const closed = this.close(true);
    if (this.blocking !== undefined) {
      await closeConnection(this.blocking);
      // A wait that was about to reconnect takes this end for an outage and connects once more.
      await setImmediate();
      await closeConnection(this.blocking);
    }
    await closed;
  }

  private async take(block: boolean): Promise<TakenJob | undefined> {
    const token = `${this.id}:${this.tokens++}`;
    // Typed as Job by BullMQ, undefined when there is none.
    const job: Job | undefined = await this.getNextJob(token, { block });
    return job === undefined ? undefined : { job, token };
  }

  /** `data` that is not JSON becomes null, so that the job can be failed by its schema instead of stalling for ever. */
  protected override createJob(json: JobJson, jobId: string): Job {
    try {
      return super.createJob(json, jobId);
    } catch {
      return super.createJob({ ...json, data: 'null' }, jobId);
    }
  }
}
