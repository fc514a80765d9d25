// What a person does to the queue of a model by hand: look at it, pause it, run failed jobs again, take finished ones
// away, have it put right. Both lanes and the quarantine are meant wherever that makes sense. Cancelling is cancel.ts,
// quarantine quarantine.ts. Starts nothing and waits for no worker.

import {
  DEFAULT_PREFIX,
  cpuLaneOf,
  type ErrorCode,
  isReservedJobId,
  keySpace,
  needsInputKey,
  parseFailedReason,
  type KeySpace,
} from '@shoal/contract';
import type { Logger } from '@shoal/core';
import { Job, Queue } from '../bullmq/package.ts';
import { readAdmission } from '../admission/admission.ts';
import { CANCEL_MARK } from '../producer/cancel.ts';
import { countCancelled, oldestWaiting, type OldestWaiting } from '../producer/waiting-jobs.ts';
import { closeConnection, connected, type Redis } from '../redis/connection.ts';
import { runScript } from '../redis/script.ts';
import { Quarantine } from './quarantine.ts';
import { quarantineQueue } from '../lanes/quarantine-queue.ts';
import { moveWrongKeys, withSoundKeys } from './queue-keys.ts';
import { noRepairs, repairQueue, type RepairReport } from './repair.ts';
import { rescueSetAside, type SetAsideReport } from './set-aside.ts';
import { translated } from '../redis/translated.ts';
import { liveWorkers } from '../lanes/worker-presence.ts';
import { parkedJobs, totalOf, type ParkedJobs } from '../worker/parking.ts';
import { FORGIVE_JOB } from './lua/scripts.generated.ts';

export interface QueueAdminOptions {
  readonly redisUrl: string;
  /** Default {shoal}. */
  readonly prefix?: string | undefined;
  /** The main lane. */
  readonly queue: string;
  readonly log?: Logger | undefined;
}

export interface LaneCounts {
  readonly queue: string;
  readonly isPaused: boolean;
  /** Prioritized jobs count as waiting. */
  readonly waiting: number;
  readonly active: number;
  /** Without those that are parked. */
  readonly delayed: number;
  /** Until a worker comes that knows their version, by version; empty where none is. */
  readonly parked: ParkedJobs;
  /** Handed over to the CPU lane and not ended yet. */
  readonly handedOver: number;
  readonly completed: number;
  /** Without those that were cancelled. */
  readonly failed: number;
  readonly cancelled: number;
  /** How long the oldest one that waits has waited, ms. */
  readonly oldestWaitingMs: OldestWaiting;
  readonly workers: number;
}

export interface QueueCounts {
  readonly lanes: readonly LaneCounts[];
  readonly quarantined: number;
  /** Room that producers have reserved. */
  readonly reserved: { readonly rows: number; readonly bytes: number; readonly unreadBytes: number };
}

/** Of both lanes and of the quarantine. */
export interface QueueRepair extends RepairReport, SetAsideReport {}

export interface RetriedJob {
  readonly jobId: string;
  /**
   * `retried`: it waits again. `input-lost`: its input was deleted with its failure; add it anew. `not-failed`: it did
   * not fail, or is gone.
   */
  readonly outcome: 'retried' | 'input-lost' | 'not-failed';
}

export interface CleanOptions {
  readonly state: 'completed' | 'failed';
  /** Only jobs that ended at least so long ago. */
  readonly olderThanMs: number;
  readonly onProgress?: (removed: number) => void;
  readonly signal?: AbortSignal | undefined;
}

const STEP_JOBS = 200;
/** Failures of jobs that nobody wants to run again unless they are named. */
const OVER: ReadonlySet<ErrorCode> = new Set(['CANCELLED', 'DEADLINE_PASSED']);

export class QueueAdmin {
  private readonly connection: Redis;
  private readonly keys: KeySpace;
  private readonly prefix: string;
  private readonly queue: Queue;
  private readonly cpu: Queue;
  private readonly quarantine: Queue;
  private readonly keeper: Quarantine;

  private constructor({ redisUrl, prefix = DEFAULT_PREFIX, queue, log }: QueueAdminOptions, connection: Redis) {
    this.connection = connection;
    this.prefix = prefix;
    this.keys = keySpace(prefix);
    const open = (name: string): Queue => {
      const opened = new Queue(name, { prefix, connection, skipMetasUpdate: true });
      opened.on('error', (error) => log?.debug({ queue: name, reason: error.message }, 'queue reported an error'));
      return opened;
    };
    [this.queue, this.cpu, this.quarantine] = [open(queue), open(cpuLaneOf(queue)), open(quarantineQueue(queue))];
    this.keeper = new Quarantine({ redisUrl, prefix, queue, log });
  }

  /** Throws CONFIG_INVALID or QUEUE_UNREACHABLE. */
  static async connect(options: QueueAdminOptions): Promise<QueueAdmin> {
    const { redisUrl, prefix, queue, log } = options;
    return new QueueAdmin(options, await connected({ url: redisUrl, prefix, name: `shoal:admin:${queue}`, log }));
  }

  /** Throws QUEUE_DAMAGED where a key of the queue is of another type than it should be. */
  async counts(): Promise<QueueCounts> {
    return translated(async () => {
      const { prefix, connection, queue } = this;
      const places = this.lanes.map((lane) => ({ prefix, queue: lane.name }));
      const [main, cpu, quarantined, reserved] = await withSoundKeys(connection, places, () =>
        Promise.all([
          this.countLane(this.queue),
          this.countLane(this.cpu),
          this.quarantine.getJobCountByTypes('waiting', 'prioritized'),
          readAdmission(connection, { prefix, queue: queue.name }),
        ]),
      );
      return { lanes: [main, cpu], quarantined, reserved };
    });
  }

  private get lanes(): readonly Queue[] {
    return [this.queue, this.cpu, this.quarantine];
  }

  /** Nothing of either lane is claimed until `resume`; what is claimed is finished. */
  async pause(): Promise<void> {
    await translated(() => Promise.all([this.queue.pause(), this.cpu.pause()]));
  }

  async resume(): Promise<void> {
    await translated(() => Promise.all([this.queue.resume(), this.cpu.resume()]));
  }

  /**
   * Ids of failed jobs, the newest first, those with this code. Without a code all but those that nobody wants any more
   * (cancelled), or that would fail again at once (past their deadline): `onLeftOut` is told how many.
   */
  async *failedIds(code?: string, onLeftOut?: (count: number) => void): AsyncGenerator<string[]> {
    for (let at = 0; ; at += STEP_JOBS) {
      const jobIds = await translated(() => this.queue.getRanges(['failed'], at, at + STEP_JOBS - 1, false));
      if (jobIds.length === 0) return;
      const found = await this.withCodes(jobIds, (one) => (code === undefined ? !OVER.has(one) : one === code));
      if (code === undefined) onLeftOut?.(jobIds.length - found.length);
      yield found;
    }
  }

  /** Failed jobs of the main lane wait again. One result per id, in order. */
  async retry(jobIds: readonly string[]): Promise<RetriedJob[]> {
    return translated(() => Promise.all(jobIds.map(async (jobId) => ({ jobId, outcome: await this.retryOne(jobId) }))));
  }

  /**
   * Takes finished jobs of the main lane away, their records that is: results end with their time to live. Resolves to
   * how many.
   */
  async clean({ state, olderThanMs, onProgress, signal }: CleanOptions): Promise<number> {
    let removed = 0;
    for (;;) {
      const ids =
        signal?.aborted === true ? [] : await translated(() => this.queue.clean(olderThanMs, STEP_JOBS, state));
      removed += ids.length;
      onProgress?.(removed);
      if (ids.length < STEP_JOBS) return removed;
    }
  }

  /** Thorough, in both lanes and in quarantine. */
  async repair(onProgress?: (jobs: number, total: number) => void, signal?: AbortSignal): Promise<QueueRepair> {
    return translated(async () => {
      const { lanes, prefix } = this;
      let moved = 0;
      for (const { name: queue } of lanes) moved += (await moveWrongKeys(this.connection, { prefix, queue })).length;
      const totals = await Promise.all(
        lanes.map((lane) =>
          lane.getJobCountByTypes('waiting', 'prioritized', 'delayed', 'waiting-children', 'completed', 'failed'),
        ),
      );
      const total = totals.reduce((sum, count) => sum + count, 0);
      const report = { ...noRepairs(), moved };
      for (const lane of lanes) {
        const before = report.jobs;
        const repaired = await repairQueue({
          connection: this.connection,
          prefix: this.prefix,
          queue: lane.name,
          isThorough: true,
          signal,
          onStep: (jobs) => onProgress?.(before + jobs, total),
        });
        for (const kind of Object.keys(report) as (keyof RepairReport)[]) report[kind] += repaired[kind];
      }
      const aside = await Promise.all(
        lanes.map(({ name: queue }) => rescueSetAside(this.connection, { prefix, queue }, this.keeper)),
      );
      return {
        ...report,
        quarantined: aside.flatMap(({ quarantined }) => quarantined),
        kept: aside.flatMap(({ kept }) => kept),
      };
    });
  }

  /** Safe to call twice. */
  async close(): Promise<void> {
    await closeConnection(this.connection);
    await Promise.allSettled([...this.lanes.map((queue) => queue.close()), this.keeper.close()]);
  }

  private async countLane(lane: Queue): Promise<LaneCounts> {
    const place = { prefix: this.prefix, queue: lane.name };
    const [counts, isPaused, cancelled, parked, oldestWaitingMs, workers] = await Promise.all([
      lane.getJobCounts('wait', 'prioritized', 'active', 'delayed', 'waiting-children', 'completed', 'failed'),
      lane.isPaused(),
      countCancelled(this.connection, place),
      parkedJobs(this.connection, place),
      oldestWaiting(this.connection, place),
      liveWorkers(this.connection, lane.name, this.prefix),
    ]);
    const {
      wait = 0,
      prioritized = 0,
      active = 0,
      delayed = 0,
      'waiting-children': handedOver = 0,
      completed = 0,
      failed = 0,
    } = counts;
    return {
      queue: lane.name,
      isPaused,
      waiting: wait + prioritized,
      active,
      delayed: Math.max(0, delayed - totalOf(parked)),
      parked,
      handedOver,
      completed,
      failed: Math.max(0, failed - cancelled),
      cancelled,
      oldestWaitingMs,
      workers: workers.length,
    };
  }

  private async withCodes(jobIds: readonly string[], isWanted: (code: ErrorCode) => boolean): Promise<string[]> {
    const reasons = await Promise.all(
      jobIds.map((jobId) => this.connection.hget(this.queue.toKey(jobId), 'failedReason')),
    );
    return jobIds.filter((_, at) => isWanted(parseFailedReason(reasons[at] ?? '').code));
  }

  private async retryOne(jobId: string): Promise<RetriedJob['outcome']> {
    if (isReservedJobId(jobId)) return 'not-failed';
    const job = await Job.fromId(this.queue, jobId);
    if (job === undefined || !(await job.isFailed())) return 'not-failed';
    if (needsInputKey(job.data) && (await this.connection.exists(this.keys.input(this.queue.name, jobId))) === 0)
      return 'input-lost';
    await runScript(this.connection, FORGIVE_JOB, [[this.queue.toKey(jobId), CANCEL_MARK]]);
    await job.retry('failed', { resetAttemptsMade: true, resetAttemptsStarted: true });
    return 'retried';
  }
}
