// How a claim gets its one ending on the server: completed, failed or returned, tried until the server took it or says
// that the lock is not ours. A fault of the server never turns one ending into another: that is why BullMQ's
// processJob, which fails a job whose completion could not be written, is not used.
//
// Why: docs/decisions/queue.md#jobs-are-settled-by-the-public-moveto-methods

import { setMaxListeners } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { failedReason, keySpace, unreachable, type Failure } from '@shoal/contract';
import type { Announcement, Logger, SettleResult, Settlement } from '@shoal/core';
import { backoffMs, type Backoff } from '@shoal/core/base';
import { UnrecoverableError, type Job } from '../bullmq/package.ts';
import { KEEP_FAILED, type TakenJob } from '../bullmq/batch-worker.ts';
import type { Completions } from '../bullmq/finish.ts';
import { isLockLost, wakeIdleWorker } from '../bullmq/internals.ts';
import { isPassingFault, type Redis } from '../redis/connection.ts';
import { readMark, type HandOvers } from './hand-over.ts';
import type { RedisAnnouncer } from './announcer.ts';
import type { Parking } from './parking.ts';
import type { KeyMender } from '../upkeep/key-mender.ts';
import type { Quarantine } from '../upkeep/quarantine.ts';

export type Ending = Exclude<Settlement, { kind: 'abandon' }>;

export interface JobEndingsOptions {
  readonly connection: Redis;
  readonly prefix: string;
  readonly queue: string;
  readonly announcer: Pick<RedisAnnouncer, 'announceBehind'>;
  readonly completions: Completions;
  /** The way to the CPU lane; left out, there is none, and what would go there fails. */
  readonly handOvers?: HandOvers | undefined;
  readonly parking: Pick<Parking, 'park'>;
  /** Told of what the server says when it refuses an ending. */
  readonly mender?: Pick<KeyMender, 'met'> | undefined;
  /** Left out: what would go there only fails. */
  readonly quarantine?: Quarantine | undefined;
  /** Jobs that are claimed and have not ended. */
  readonly open: () => number;
  /** After it nothing is tried again. */
  readonly signal: AbortSignal;
  readonly log: Logger;
}

const RETRY: Backoff = { firstMs: 100, mostMs: 2_000 };
/**
 * A completion that nobody waits for in person waits for others, as long as there are others, for a thirty-second of
 * the time that its job has been here: jobs of 256 texts that lay in a deep pool for 300 ms completed 5 in a call, 14
 * so, and cost the server 153 µs each with what follows, 123 so (two H100, 2026-11).
 */
const WAITING_SHARE = 1 / 32;
const LONGEST_WAIT_MS = 16;
/** Tries of an ending that the server refuses for a reason nobody foresaw; then the claim is left to its lease. */
const MAX_ODD_FAULTS = 5;

export class JobEndings {
  private readonly options: JobEndingsOptions;
  private underWay = 0;

  constructor(options: JobEndingsOptions) {
    this.options = options;
    setMaxListeners(0, options.signal); // one for each ending that waits between two tries
  }

  /** The announcement is only given a try, behind the first attempt. */
  async settle(taken: TakenJob, ending: Ending, announcement?: Announcement): Promise<SettleResult> {
    this.underWay++;
    try {
      return await this.settleNow(taken, ending, announcement);
    } finally {
      this.underWay--;
    }
  }

  private async settleNow(taken: TakenJob, ending: Ending, announcement?: Announcement): Promise<SettleResult> {
    const isOneCommand = ending.kind === 'complete' || ending.kind === 'fail';
    const hasOthers = this.underWay < this.options.open();
    const mayWaitMs = ending.kind === 'complete' && announcement?.isUrgent === false && hasOthers ? waitFor(taken) : 0;
    const announced =
      announcement !== undefined && isOneCommand
        ? this.options.announcer.announceBehind(announcement, mayWaitMs)
        : undefined;
    const result = await this.end(taken, ending, mayWaitMs);
    return result === 'settled' && (await announced) === true ? 'announced' : result;
  }

  private async end(taken: TakenJob, ending: Ending, mayWaitMs: number): Promise<SettleResult> {
    const { signal, log } = this.options;
    let oddFaults = 0;
    for (let attempt = 0; !signal.aborted; attempt++) {
      try {
        await this.give(taken, ending, attempt === 0 ? mayWaitMs : 0);
        return 'settled';
      } catch (error) {
        if (isLockLost(error)) return await this.wasTakenBefore(taken, ending);
        this.options.mender?.met(error);
        const fields = { jobId: taken.job.id, ending: ending.kind, attempt, err: error };
        if (!isPassingFault(error) && ++oddFaults >= MAX_ODD_FAULTS) {
          log.error(fields, 'the queue server refuses to end a job; it is left to its lease');
          return 'lease-lost';
        }
        log.debug(fields, 'ending a job failed, trying again');
        await sleep(backoffMs(attempt, RETRY), undefined, { signal }).catch(() => undefined);
      }
    }
    return 'lease-lost';
  }

  /** Back to the front of its queue, or into it after the delay. No attempt is charged. */
  async giveBack({ job, token }: TakenJob, delayMs: number): Promise<void> {
    if (delayMs > 0) return job.moveToDelayed(Date.now() + delayMs, token);
    await job.moveToWait(token);
    if (job.priority > 0) await this.wakeAnother();
  }

  async wakeAnother(): Promise<void> {
    const { connection, prefix, queue } = this.options;
    await wakeIdleWorker(connection, prefix, queue).catch(() => undefined);
  }

  private async give(taken: TakenJob, ending: Ending, mayWaitMs: number): Promise<void> {
    const { job, token } = taken;
    switch (ending.kind) {
      case 'complete':
        return this.options.completions.complete(job, token, ending.value, mayWaitMs);
      case 'quarantine':
        await this.options.quarantine?.put(this.options.queue, job, ending.failure);
        return void (await job.moveToFailed(verdict(ending.failure), token, false));
      case 'fail':
        await this.noteCancelled(job, ending.failure);
        return void (await job.moveToFailed(verdict(ending.failure), token, false));
      case 'hand-over':
        if (this.options.handOvers !== undefined) return this.options.handOvers.handOver(taken, ending.handOver);
        return void (await job.moveToFailed(verdict(ending.handOver.reason), token, false));
      case 'park':
        return this.options.parking.park(taken, ending.version);
      case 'return':
        return this.giveBack(taken, ending.delayMs);
      default:
        return unreachable(ending);
    }
  }

  /** Before it ends, so that nothing is missed; who counts looks at how it ended. */
  private async noteCancelled({ id = '' }: Job, { code }: Failure): Promise<void> {
    const { connection, prefix, queue } = this.options;
    if (code !== 'CANCELLED') return;
    const cancelled = keySpace(prefix).cancelledJobs(queue);
    await connection.zadd(cancelled, Date.now(), id);
    await connection.zremrangebyrank(cancelled, 0, -KEEP_FAILED - 1);
  }

  /**
   * A lost lock may be our own doing: when the connection breaks after the server did the work, the same command is
   * sent again and finds no lock. The job says whether it ended the way we asked, and whether anybody claimed it since,
   * this worker included: each claim is counted. The hour of a claim does not tell them apart, for what a worker asks
   * for in one millisecond may be done seconds later.
   */
  private async wasTakenBefore({ job, token }: TakenJob, ending: Ending): Promise<SettleResult> {
    if (ending.kind === 'return' || ending.kind === 'park') return 'lease-lost';
    const { connection, prefix, queue } = this.options;
    try {
      if (ending.kind === 'hand-over' && (await this.wasHandedOver(job, token))) return 'settled';
      const [finishedOn, returnvalue, reason, processedOn, claims] = await connection.hmget(
        keySpace(prefix).job(queue, job.id ?? ''),
        'finishedOn',
        'returnvalue',
        'failedReason',
        'processedOn',
        'ats',
      );
      const isSameClaim = Number(processedOn) === job.processedOn && Number(claims) === job.attemptsStarted;
      if (!isSameClaim) return 'lease-lost'; // whoever claimed it then has ended it
      const failure =
        ending.kind === 'complete' ? undefined : ending.kind === 'hand-over' ? ending.handOver.reason : ending.failure;
      const isOurs =
        ending.kind === 'complete'
          ? returnvalue === JSON.stringify(ending.value)
          : failure !== undefined && reason === failedReason(failure);
      return finishedOn && isOurs ? 'settled' : 'lease-lost';
    } catch {
      return 'lease-lost';
    }
  }

  private async wasHandedOver(job: Job, token: string): Promise<boolean> {
    const { connection, prefix, queue } = this.options;
    const progress = await connection.hget(keySpace(prefix).job(queue, job.id ?? ''), 'progress');
    return readMark(JSON.parse(progress ?? 'null'))?.by === token;
  }
}

/** ms. The time of the claim is by this machine's clock, which may have been set since. */
function waitFor({ job: { processedOn } }: TakenJob): number {
  return processedOn === undefined
    ? 0
    : Math.min(LONGEST_WAIT_MS, Math.max(0, Date.now() - processedOn) * WAITING_SHARE);
}

/** A verdict is final whatever `attempts` the producer gave, and where it was thrown says nothing to anybody. */
function verdict(failure: Failure): UnrecoverableError {
  const error = new UnrecoverableError(failedReason(failure));
  error.stack = '';
  return error;
}
