// BullMQ's Worker without its loop: it takes many jobs in one round trip, each under a token of its own, and looks for
// stalled ones. It processes nothing, renews nothing and settles nothing; bull-job-source.ts does. Only public and
// protected methods of Worker are used.

import type { JobJson } from 'bullmq';
import { setImmediate } from 'node:timers/promises';
import { Job, Worker } from './package.ts';
import { joinClaims } from './claim.ts';
import { answerAtEnd, closeConnection, type Closable, type Redis } from '../redis/connection.ts';
import { claimedBy, repairJob } from './record-repair.ts';

export interface BatchWorkerOptions {
  readonly connection: Redis;
  readonly prefix: string;
  readonly queue: string;
  readonly workerId: string;
  /** What the lock tokens of this process begin with. They end in the lease, for who finds a lock that lasts too long. */
  readonly tokenPrefix: string;
  readonly leaseMs: number;
  readonly stalledCheckMs: number;
  /** A field of a job's hash; of those that have it a claim says so. */
  readonly mark?: string | undefined;
  /** See ClaimTerms. */
  readonly isBulkAlone?: boolean | undefined;
  /** Of finished jobs whose producer did not say; left out: as many as those of other workers. */
  readonly keep?: KeptJobs | undefined;
}

/** How many finished jobs stay. */
export interface KeptJobs {
  readonly completed: number;
  readonly failed: number;
}

/** A job under a lock of ours. */
export interface TakenJob {
  readonly job: Job;
  readonly token: string;
  /** Its hash had the mark that the worker was told of when it was claimed. */
  readonly isMarked?: boolean;
}

/** What is kept of finished jobs whose producer did not say. */
export const KEEP_COMPLETED = 1_000;
export const KEEP_FAILED = 5_000;
/** The death of workers says nothing about a job, so no number of stalls fails one. */
const MAX_STALLED_COUNT = 1_000_000_000;
/**
 * An idle worker looks by itself so often, should a marker ever be lost; also bounds how long a broken wait goes
 * unnoticed.
 */
const IDLE_LOOK_SECONDS = 2;

/** In place of a token. */
const ONLY_WAITING = 'waits';

export class BatchWorker extends Worker {
  private readonly tokenPrefix: string;
  private readonly leaseMs: number;
  private readonly place: Pick<BatchWorkerOptions, 'connection' | 'prefix' | 'queue'>;
  private readonly mark: string | undefined;
  private readonly isBulkAlone: boolean | undefined;
  /** Ids of claims that are on their way out of BullMQ's code, which drops fields that it does not know. */
  private readonly marked = new Set<string>();
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
      removeOnComplete: { count: options.keep?.completed ?? KEEP_COMPLETED },
      removeOnFail: { count: options.keep?.failed ?? KEEP_FAILED },
    });
    this.tokenPrefix = options.tokenPrefix;
    this.leaseMs = options.leaseMs;
    this.mark = options.mark;
    this.isBulkAlone = options.isBulkAlone;
    this.place = options;
  }

  /**
   * Resolves when a job may be there, or after a while. Takes none: whoever waits for a marker takes as many as there
   * are.
   */
  async untilMarker(): Promise<void> {
    await this.getNextJob(ONLY_WAITING, { block: true });
  }

  /** As many calls at once, which travel together (claim.ts): one round trip. One outcome per call. */
  takeNow(count: number): Promise<TakenJob | undefined>[] {
    return Array.from({ length: count }, () => this.take());
  }

  /** A claim by its token, whoever made it: back to the front of the queue, without an attempt charged. */
  async giveBack(jobId: string, token: string): Promise<void> {
    await new Job(this, '', {}, {}, jobId).moveToWait(token);
  }

  async untilReady(): Promise<void> {
    await this.waitUntilReady();
    const onClaimed = (jobId: string, fields: readonly unknown[]): void => {
      if (fields.some((name, at) => at % 2 === 0 && name === this.mark)) this.marked.add(jobId);
    };
    await joinClaims(this, this.place.connection, { onClaimed, isBulkAlone: this.isBulkAlone });
    const blocking = await this.getBackend().blockingClient;
    answerAtEnd(blocking as unknown as Redis);
    this.blocking = blocking;
  }

  /** Ends an `untilMarker` that waits. */
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

  /** What BullMQ calls once its wait is over. */
  protected override async moveToActive(token: string, name?: string): ReturnType<Worker['moveToActive']> {
    return token === ONLY_WAITING ? (undefined as unknown as Job) : super.moveToActive(token, name);
  }

  private async take(): Promise<TakenJob | undefined> {
    const token = `${this.tokenPrefix}~${this.id}:${this.tokens++}@${this.leaseMs}`;
    try {
      // Typed as Job by BullMQ, undefined when there is none.
      const job: Job | undefined = await this.getNextJob(token, { block: false });
      if (job === undefined) return undefined;
      const isMarked = this.marked.delete(job.id ?? '');
      return { job: isWhole(job) ? job : await this.readDamaged(job.id ?? '', token), token, isMarked };
    } catch (error) {
      if (!isUnreadable(error)) throw error;
      const jobId = await claimedBy(this.place.connection, this.place, token);
      return jobId === undefined ? undefined : { job: await this.readDamaged(jobId, token), token };
    }
  }

  /**
   * A job whose hash is damaged is claimed all the same, with a reason why it must fail: nobody else would ever end it.
   */
  private async readDamaged(jobId: string, token: string): Promise<Job> {
    await repairJob(this.place.connection, { ...this.place, jobId });
    const job = (await Job.fromId(this, jobId)) ?? new Job(this, '', {}, {}, jobId);
    job.token = token;
    return job;
  }

  /** A hash may say that it is another job's; whose it is, its key says. */
  protected override createJob(json: JobJson, jobId: string): Job {
    return super.createJob(json.id === undefined ? json : { ...json, id: jobId }, jobId);
  }
}

function isWhole({ name, attemptsMade, attemptsStarted, stalledCounter }: Job): boolean {
  return typeof name === 'string' && !Number.isNaN(attemptsMade + attemptsStarted + stalledCounter);
}

/**
 * What parsing throws over a hash, or the server when it counts in one. The job was taken, under the token of that
 * call.
 */
function isUnreadable(error: unknown): boolean {
  return (
    error instanceof SyntaxError ||
    error instanceof TypeError ||
    (error instanceof Error && error.message.includes('hash value is not an integer'))
  );
}
