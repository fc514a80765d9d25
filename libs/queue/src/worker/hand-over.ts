// Moves a claimed job to the CPU lane in one transaction, and tells how it ended there. Decides nothing about when.
//
// The job in the main lane stays the public handle: under the same id a *child* goes into the CPU lane, and the job
// itself becomes *waiting-children*. When the child has ended, well or badly, BullMQ puts the job back into its lane
// with the ending beside it; whoever claims it finds that ending (`endingOf`) and gives it to the job. At every moment
// the job is in exactly one place: before EXEC it is an active job of the main lane whose lease brings it back, after
// EXEC it waits for its child.
//
// The mark of a hand-over is the job's `progress`, written in the same transaction: Bull Board shows it, every claim
// brings it along at no cost, and its `by` tells a repeated call that the first one did happen.
//
// Why: docs/decisions/queue.md#a-hand-over-is-a-parent-and-its-child

import {
  ERROR_CODES,
  invariant,
  parseFailedReason,
  type ErrorCode,
  type Failure,
  type HandOver,
  type JobReturn,
} from '@shoal/contract';
import type { KnownEnding, Logger } from '@shoal/core';
import { Serial, type FaultPoints } from '@shoal/core/base';
import { Queue, type Job } from '../bullmq/package.ts';
import { noteQueues } from '../lanes/noted-queues.ts';
import type { TakenJob } from '../bullmq/batch-worker.ts';
import {
  childEndKeys,
  isScriptMissing,
  lockLost,
  openTransaction,
  queueAdd,
  queueProgress,
  queueRemove,
  queueWaitForChild,
  wakeIdleWorker,
  type Transaction,
} from '../bullmq/internals.ts';
import { CANCEL_MARK } from '../producer/cancel.ts';
import { closeConnection, openConnection, untilReady, type Redis } from '../redis/connection.ts';

export interface HandOversOptions {
  readonly redisUrl: string;
  readonly prefix: string;
  /** The main lane. */
  readonly queue: string;
  readonly cpuQueue: string;
  readonly faults: FaultPoints;
  readonly log: Logger;
}

/** What a hand-over leaves in `progress` of the job and of its child. */
export interface HandOverMark {
  readonly handedOver: {
    readonly code: ErrorCode;
    readonly message: string;
    readonly peakBytes?: number;
    /** The claim token that handed it over; begins with the worker's id. */
    readonly by: string;
    /** `attemptsMade` at that time: a job that a person retries later begins anew. */
    readonly attempt: number;
  };
}

/** The child is a record of what happened; the job itself is kept like every other. */
const KEEP_COMPLETED_CHILDREN = 100;
const KEEP_FAILED_CHILDREN = 1_000;
/**
 * So often a transaction is begun anew because something it watches changed: a renewed lease, a child that just ended.
 */
const MAX_COLLISIONS = 20;

interface Lanes {
  readonly connection: Redis;
  readonly main: Queue;
  readonly cpu: Queue;
}

export class HandOvers {
  private readonly options: HandOversOptions;
  private connection: Redis | undefined;
  private lanes: Promise<Lanes> | undefined;
  /** WATCH belongs to a connection, so there is one hand-over at a time. */
  private readonly handingOver = new Serial();
  private isStopped = false;

  constructor(options: HandOversOptions) {
    this.options = options;
  }

  /**
   * One that is being cancelled goes back to its lane instead, where whoever claims it finds the mark. Throws what
   * isLockLost knows when the job is no longer this claim's, and the fault when the server could not do it.
   */
  handOver(taken: TakenJob, why: HandOver): Promise<void> {
    return this.handingOver.run(() => this.move(taken, why));
  }

  /** Safe to call early or twice. */
  async stop(): Promise<void> {
    this.isStopped = true;
    if (this.connection !== undefined) await closeConnection(this.connection);
    const lanes = await this.lanes?.catch(() => undefined);
    await Promise.allSettled([lanes?.main.close(), lanes?.cpu.close()]);
  }

  private async move({ job, token }: TakenJob, why: HandOver): Promise<void> {
    invariant(job.id !== undefined, 'a claimed job has an id');
    const lanes = await this.open();
    const mark = markOf(why, token, job.attemptsMade);
    for (let collisions = 0; collisions < MAX_COLLISIONS; collisions++) {
      if (await this.tryMove(lanes, job, job.id, token, mark)) return;
    }
    throw new Error(
      `job ${job.id} could not be handed over: its lock or its child changed ${MAX_COLLISIONS} times in a row`,
    );
  }

  /**
   * False when something watched changed meanwhile, or a script was missing: it is to be begun anew. True also for one
   * that went back because it is being cancelled.
   */
  private async tryMove(
    { connection, main, cpu }: Lanes,
    job: Job,
    jobId: string,
    token: string,
    mark: HandOverMark,
  ): Promise<boolean> {
    const jobKey = main.toKey(jobId);
    const lockKey = `${jobKey}:lock`;
    const childKey = cpu.toKey(jobId);
    const childLockKey = `${childKey}:lock`;
    await connection.watch(lockKey, jobKey, childKey, childLockKey);
    const [lock, isCancelled, childLock, [finishedOn, data]] = await Promise.all([
      connection.get(lockKey),
      connection.hexists(jobKey, CANCEL_MARK),
      connection.get(childLockKey),
      connection.hmget(childKey, 'finishedOn', 'data'),
    ]);
    this.options.faults.reach('hand-over-watched');
    if (lock !== token) {
      await connection.unwatch();
      throw lockLost(jobId);
    }
    if (isCancelled === 1) {
      await connection.unwatch();
      await job.moveToWait(token); // a child would have no mark, and run
      // a prioritized job puts no marker
      await wakeIdleWorker(connection, this.options.prefix, main.name).catch(() => undefined);
      return true;
    }
    // A child of an earlier life of this id: adding over it would bring its old ending instead of a new run.
    const isStale = typeof finishedOn === 'string' || (typeof data === 'string' && data !== JSON.stringify(job.data));
    if (isStale && childLock !== null) {
      await connection.unwatch();
      // tried again, then left to the lease
      throw new Error(`a job of the same id with other input is being run in the CPU lane (${jobId})`);
    }
    const transaction = await openTransaction(cpu);
    if (isStale) queueRemove(cpu, transaction, jobId);
    transaction.del(...childEndKeys(main, jobId));
    queueAdd(cpu, transaction, { name: job.name, data: job.data, opts: childOptions(main, job, jobId) });
    queueProgress(cpu, transaction, jobId, mark);
    queueProgress(main, transaction, jobId, mark);
    queueWaitForChild(main, transaction, jobId, token, { queue: cpu, jobId });
    return this.execute(transaction, jobId);
  }

  private async execute(transaction: Transaction, jobId: string): Promise<boolean> {
    const replies = await transaction.exec();
    if (replies === null || isScriptMissing(replies)) return false; // what was done of it is done again, or found stale
    for (const [error] of replies) if (error !== null) throw error;
    const moved = Number(replies.at(-1)?.[1]);
    if (moved < 0) throw lockLost(jobId, moved);
    invariant(moved === 0, 'a child that was added in this transaction is pending in it');
    return true;
  }

  private open(): Promise<Lanes> {
    this.lanes ??= this.connect().catch((error: unknown) => {
      this.lanes = undefined;
      throw error;
    });
    return this.lanes;
  }

  /** Hand-overs are rare: who never has one pays nothing. */
  private async connect(): Promise<Lanes> {
    invariant(!this.isStopped, 'nothing is handed over by a stopped worker');
    const { redisUrl, prefix, queue, cpuQueue, log } = this.options;
    const connection = openConnection({ url: redisUrl, prefix, name: `shoal:worker:hand-over:${queue}`, log });
    this.connection = connection;
    // What is sent again after a cut would run on a connection that watches nothing: it fails instead, and is begun
    // anew.
    connection.options.maxRetriesPerRequest = 0;
    try {
      await untilReady(connection, redisUrl);
      void noteQueues(connection, prefix, [cpuQueue]);
      connection.options.enableOfflineQueue = false;
      const [main, cpu] = [queue, cpuQueue].map(
        (name) => new Queue(name, { prefix, connection, skipMetasUpdate: true }),
      ) as [Queue, Queue];
      for (const lane of [main, cpu])
        lane.on('error', (error) => log.debug({ err: error }, 'queue client reported an error'));
      await Promise.all([main.waitUntilReady(), cpu.waitUntilReady()]);
      return { connection, main, cpu };
    } catch (error) {
      await closeConnection(connection);
      throw error;
    }
  }
}

function childOptions(main: Queue, job: Job, jobId: string): Parameters<typeof queueAdd>[2]['opts'] {
  return {
    jobId,
    // it has been waiting since then; its place in the lane is fair-order.ts's business, as in every lane
    timestamp: job.timestamp,
    parent: { id: jobId, queue: main.qualifiedName },
    // Of BullMQ's four ways to treat a child that failed, the one that puts the parent back at once and keeps the
    // reason.
    ignoreDependencyOnFailure: true,
    removeOnComplete: { count: KEEP_COMPLETED_CHILDREN },
    removeOnFail: { count: KEEP_FAILED_CHILDREN },
  };
}

function markOf({ reason, peakBytes }: HandOver, by: string, attempt: number): HandOverMark {
  return {
    handedOver: {
      code: reason.code,
      message: reason.message,
      ...(peakBytes === undefined ? {} : { peakBytes }),
      by,
      attempt,
    },
  };
}

/**
 * The mark of the hand-over that this job is in, or undefined. A child has one as well, but it is not the one that
 * waits.
 */
export function handOverOf(job: Job): HandOverMark['handedOver'] | undefined {
  if (job.parentKey !== undefined) return undefined;
  const mark = readMark(job.progress);
  return mark?.attempt === job.attemptsMade ? mark : undefined;
}

/** `progress` may hold anything: plain producers may write it as well. */
export function readMark(progress: unknown): HandOverMark['handedOver'] | undefined {
  const mark: unknown =
    typeof progress === 'object' && progress !== null ? Reflect.get(progress, 'handedOver') : undefined;
  if (typeof mark !== 'object' || mark === null) return undefined;
  const { code, message, peakBytes, by, attempt } = mark as Record<string, unknown>;
  if (!isErrorCode(code) || typeof message !== 'string' || typeof by !== 'string' || typeof attempt !== 'number')
    return undefined;
  return { code, message, by, attempt, ...(typeof peakBytes === 'number' ? { peakBytes } : {}) };
}

/**
 * How a job ended that had been handed over; undefined for any other, and for one whose child vanished without an
 * ending (somebody removed it): that one runs again.
 */
export async function endingOf(job: Job): Promise<KnownEnding | undefined> {
  const mark = handOverOf(job);
  if (mark === undefined) return undefined;
  const [values, failures] = await Promise.all([job.getChildrenValues(), job.getIgnoredChildrenFailures()]);
  const value = Object.values(values ?? {}).find(isJobReturn);
  if (value !== undefined) {
    const { code: reason, peakBytes } = mark;
    return {
      kind: 'complete',
      value: { ...value, handedOver: { reason, ...(peakBytes === undefined ? {} : { peakBytes }) } },
    };
  }
  const [reason] = Object.values(failures);
  return reason === undefined ? undefined : { kind: 'fail', failure: failureAfter(mark, reason) };
}

/** The child's code; the message says what came before. */
function failureAfter(mark: HandOverMark['handedOver'], reason: string): Failure {
  const { code, message } = parseFailedReason(reason);
  return { code, message: `${message} (in the CPU lane, after ${mark.code}: ${mark.message})` };
}

function isJobReturn(value: unknown): value is JobReturn {
  return (
    typeof value === 'object' &&
    value !== null &&
    Reflect.get(value, 'v') === 1 &&
    typeof Reflect.get(value, 'key') === 'string'
  );
}

function isErrorCode(code: unknown): code is ErrorCode {
  return typeof code === 'string' && Object.hasOwn(ERROR_CODES, code);
}
