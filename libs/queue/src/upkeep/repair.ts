// Puts right what BullMQ cannot put right by itself in one lane: keys of the wrong type, ids that no job may have,
// records that cannot be read, ids without a record, whole jobs that are in no list, parents whose child is gone. Each waiting one of them ends as a failed job with a
// reason, or waits again; a claimed job is its worker's business, and what is healthy is not touched. May run while
// everything works.
//
// It walks in steps of a few hundred jobs, each a call of a millisecond or two, and rests between them when asked to,
// so that a queue of any length can be looked at. Every change is made by a script that looks again first.

import { failedReason, isGeneratedJobId, isReservedJobId, keySpace } from '@shoal/contract';
import { failWaiting } from '../bullmq/internals.ts';
import type { Redis } from '../redis/connection.ts';
import { repairRecord, damageIn, damageSentence, isGone, readFields } from '../bullmq/record-repair.ts';
import { noLog } from '@shoal/core';
import { runScript } from '../redis/script.ts';
import { literally } from '../redis/scan-pattern.ts';
import { RedisAnnouncer } from '../worker/announcer.ts';
import { lookAtClock } from '../worker/clock-watch.ts';
import { moveWrongKeys } from './queue-keys.ts';
import {
  ADOPT_UNLISTED_JOBS,
  FIND_SUSPECT_RECORDS,
  RELEASE_CHILDLESS_PARENTS,
  SET_JOB_ASIDE,
  UNLIST_JOB,
} from './lua/scripts.generated.ts';

export interface RepairOptions {
  readonly connection: Redis;
  readonly prefix: string;
  /** A lane, or any other queue of BullMQ. */
  readonly queue: string;
  /** Every field of every job is parsed here, not only looked at on the server. */
  readonly isThorough?: boolean;
  /** Called after each step; what it returns is waited for. */
  readonly onStep?: ((jobsLookedAt: number) => void | Promise<void>) | undefined;
  readonly signal?: AbortSignal | undefined;
}

export interface RepairReport {
  /** Looked at. */
  readonly jobs: number;
  /** Keys of the queue that were of another type than they should be, and were moved aside. */
  readonly moved: number;
  /** Locks that would have lasted for longer than a lease, because the server's clock was set back. */
  readonly shortened: number;
  /** Ids that no job may have, or under which lay something else than a record; moved aside. */
  readonly setAside: number;
  /** Records that can be read again. */
  readonly mended: number;
  /** Waiting jobs that failed, because their record was damaged. */
  readonly failed: number;
  /** Whole jobs that were in no list and wait again. */
  readonly requeued: number;
  /** Jobs that waited for a child that is gone, and run again. */
  readonly released: number;
  /** Ids without anything behind them, and records of finished jobs that no list held. */
  readonly removed: number;
}

type State = 'wait' | 'active' | 'prioritized' | 'delayed' | 'waiting-children' | 'completed' | 'failed';

const STATES: readonly State[] = ['wait', 'prioritized', 'delayed', 'waiting-children', 'completed', 'failed'];
/** A step of so many takes the server 1 to 2 ms (Valkey 9.1, 2026-11). */
const STEP_JOBS = 250;
const SCAN_STEP = 1_000;
/** Most that the setting `stalledCheckMs` may be: what it is, the workers know. */
const LONGEST_CHECK_MS = 600_000;

/** Resolves to what was done; stops early, without an error, when `signal` is aborted. */
export async function repairQueue(options: RepairOptions): Promise<RepairReport> {
  const repair = new Repair(options);
  await repair.moveWrongKeys();
  await repair.walkActive();
  await repair.shortenLocks();
  for (const state of STATES) await repair.walk(state);
  await repair.adoptUnlisted();
  return repair.report;
}

/** A report to count up. */
export function noRepairs(): { -readonly [Kind in keyof RepairReport]: number } {
  return { jobs: 0, moved: 0, shortened: 0, setAside: 0, mended: 0, failed: 0, requeued: 0, released: 0, removed: 0 };
}

class Repair {
  readonly report = noRepairs();
  private readonly options: RepairOptions;
  /** Of jobs without a place in line: who is in here need not be looked for one by one. */
  private readonly waiting = new Set<string>();

  constructor(options: RepairOptions) {
    this.options = options;
  }

  async moveWrongKeys(): Promise<void> {
    const { connection, prefix, queue } = this.options;
    this.report.moved += (await moveWrongKeys(connection, { prefix, queue })).length;
  }

  /** What is claimed is its worker's business, unless it is no job. */
  async walkActive(): Promise<void> {
    const { connection } = this.options;
    const ids = await connection.lrange(this.key('active'), 0, -1);
    for (let at = 0; at < ids.length && !this.isOver; at += STEP_JOBS) {
      const some = ids.slice(at, at + STEP_JOBS);
      const kinds = await Promise.all(some.map((id) => connection.type(this.key(id))));
      for (const [nth, id] of some.entries())
        if (isForeign(id, kinds[nth] ?? 'none')) await this.setAside('active', id);
      await this.stepped(0);
    }
  }

  async shortenLocks(): Promise<void> {
    const { connection, prefix, queue } = this.options;
    const place = { prefix, queue, stalledCheckMs: LONGEST_CHECK_MS };
    const { locksShortened } = await lookAtClock(connection, place, this.options.isThorough === true);
    this.report.shortened += locksShortened;
  }

  /** All jobs of a state, from the head on; what leaves the list on the way makes those behind it move up. */
  async walk(state: State): Promise<void> {
    for (let at = 0; !this.isOver;) {
      const ids = await this.idsOf(state, at);
      if (ids.length === 0) return;
      if (state === 'wait') for (const id of ids) this.waiting.add(id);
      at += ids.length - (await this.look(state, ids));
      await this.stepped(ids.length);
    }
  }

  /** Jobs whose record is there and whose id is nowhere. */
  async adoptUnlisted(): Promise<void> {
    const { connection } = this.options;
    const base = this.key('');
    const active = new Set(await connection.lrange(this.key('active'), 0, -1));
    let cursor = '0';
    do {
      const [next, keys] = await connection.scan(
        cursor,
        'MATCH',
        `${literally(base)}*`,
        'COUNT',
        SCAN_STEP,
        'TYPE',
        'hash',
      );
      cursor = next;
      const ids = keys
        .map((key) => key.slice(base.length))
        .filter((id) => isJob(id) && !this.waiting.has(id) && !active.has(id));
      if (ids.length > 0) await this.adopt(ids);
      await this.stepped(0);
    } while (cursor !== '0' && !this.isOver);
  }

  private async adopt(ids: readonly string[]): Promise<void> {
    const sets = ['wait', 'active', 'marker', 'prioritized', 'delayed', 'waiting-children', 'completed', 'failed'].map(
      (name) => this.key(name),
    );
    const unlisted = await this.withoutPlace(ids);
    if (unlisted.length === 0) return;
    const [counts] = await runScript(this.options.connection, ADOPT_UNLISTED_JOBS, [
      [...sets, this.key(''), ...unlisted],
    ]);
    const [requeued, removed] = Array.isArray(counts) ? counts.map(Number) : [];
    this.report.requeued += requeued ?? 0;
    this.report.removed += removed ?? 0;
  }

  /** Cheap, and right for nearly all; the script looks again. */
  private async withoutPlace(ids: readonly string[]): Promise<string[]> {
    const pipeline = this.options.connection.pipeline();
    for (const set of ['prioritized', 'delayed', 'waiting-children', 'completed', 'failed'])
      pipeline.zmscore(this.key(set), ...ids);
    const replies = ((await pipeline.exec()) ?? []).map(([, scores]) =>
      Array.isArray(scores) ? (scores as unknown[]) : [],
    );
    return ids.filter((_, at) => replies.every((scores) => scores[at] === null));
  }

  private async idsOf(state: State, at: number): Promise<string[]> {
    const { connection } = this.options;
    const [first, last] = [at, at + STEP_JOBS - 1];
    return state === 'wait'
      ? connection.lrange(this.key(state), first, last)
      : connection.zrange(this.key(state), String(first), String(last));
  }

  /** Resolves to how many ids left the list. */
  private async look(state: State, ids: readonly string[]): Promise<number> {
    const before = this.left;
    for (const id of await this.suspectsOf(ids)) await this.repairOne(state, id);
    if (state === 'waiting-children') await this.release(ids);
    return this.left - before;
  }

  private async suspectsOf(ids: readonly string[]): Promise<readonly string[]> {
    if (this.options.isThorough === true) return ids;
    const [found] = await runScript(this.options.connection, FIND_SUSPECT_RECORDS, [
      [this.key('meta'), this.key(''), ...ids],
    ]);
    return Array.isArray(found) ? found.map(String) : [];
  }

  private async repairOne(state: State, jobId: string): Promise<void> {
    const { connection, prefix, queue } = this.options;
    const key = this.key(jobId);
    const kind = await connection.type(key);
    const isFinished = state === 'completed' || state === 'failed';
    if (isForeign(jobId, kind)) return this.setAside(state, jobId);
    if (kind === 'none' && isFinished) return this.unlist(state, jobId);
    const fields = await readFields(connection, key);
    const damage = damageIn(fields);
    if (damage.length === 0) return;
    if (kind === 'none') await connection.hset(key, 'stc', '0'); // so that there is a record to fail
    await repairRecord(connection, key, damage);
    this.report.mended += isGone(fields) ? 0 : 1;
    const reason = damageSentence(damage);
    if (isFinished || reason === undefined) return;
    const { state: found, reply } = await failWaiting(connection, {
      prefix,
      queue,
      jobId,
      reason: failedReason({ code: 'JOB_INVALID', message: reason }),
    });
    if (found !== 'failed') return;
    this.report.failed++;
    await this.announce(jobId, reply);
  }

  /** Its producer hears of it at once, and its room is free. */
  private async announce(jobId: string, reply: string | undefined): Promise<void> {
    const { signal = new AbortController().signal, connection, prefix, queue } = this.options;
    const announcer = new RedisAnnouncer({ connection, prefix, queue, log: noLog, signal });
    const about = { resultTtlMs: 0, isUrgent: false, wasRepeated: false } as const;
    await announcer.announce([{ jobId, outcome: 'failed', reply, ...about }]);
  }

  private async setAside(state: State, jobId: string): Promise<void> {
    const [done] = await runScript(this.options.connection, SET_JOB_ASIDE, [
      [this.key(state), this.key(jobId), this.key('stalled'), this.key(''), jobId],
    ]);
    this.report.setAside += Number(done);
  }

  private async unlist(state: State, jobId: string): Promise<void> {
    const [removed] = await runScript(this.options.connection, UNLIST_JOB, [[this.key(state), this.key(jobId), jobId]]);
    this.report.removed += Number(removed);
  }

  private async release(ids: readonly string[]): Promise<void> {
    const keys = ['waiting-children', 'wait', 'marker'].map((name) => this.key(name));
    const [released] = await runScript(this.options.connection, RELEASE_CHILDLESS_PARENTS, [
      [...keys, this.key(''), ...ids],
    ]);
    this.report.released += Number(released);
  }

  private async stepped(jobs: number): Promise<void> {
    this.report.jobs += jobs;
    await this.options.onStep?.(this.report.jobs);
  }

  /** Ids that have left the list they were in. */
  private get left(): number {
    const { failed, removed, released, setAside } = this.report;
    return failed + removed + released + setAside;
  }

  private get isOver(): boolean {
    return this.options.signal?.aborted === true;
  }

  private key(name: string): string {
    return keySpace(this.options.prefix).job(this.options.queue, name);
  }
}

/** Whether no job may lie there, or something else does. */
function isForeign(jobId: string, kind: string): boolean {
  return isReservedJobId(jobId) || (kind !== 'hash' && kind !== 'none');
}

/** Whether a hash under this name is a job's; names with ":" are those of its parts, and of schedulers. */
function isJob(jobId: string): boolean {
  return isGeneratedJobId(jobId) || !(jobId.includes(':') || isReservedJobId(jobId));
}
