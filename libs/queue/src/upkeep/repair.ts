// Puts right what BullMQ cannot put right by itself in one lane: records that cannot be read, ids without a record,
// whole jobs that are in no list, parents whose child is gone. Each waiting one of them ends as a failed job with a
// reason, or waits again; a claimed job is its worker's business, and what is healthy is not touched. May run while
// everything works.
//
// It walks in steps of a few hundred jobs, each a call of a millisecond or two, and rests between them when asked to,
// so that a queue of any length can be looked at. Every change is made by a script that looks again first.

import { failedReason, keySpace } from '@shoal/contract';
import { failWaiting } from '../bullmq/internals.ts';
import type { Redis } from '../redis/connection.ts';
import { applyMending, damageIn, damageSentence, isGone, readFields } from '../bullmq/mend.ts';
import { runScript, script } from '../redis/script.ts';
import { literally } from '../redis/scan-pattern.ts';

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

type State = 'wait' | 'prioritized' | 'delayed' | 'waiting-children' | 'completed' | 'failed';

const STATES: readonly State[] = ['wait', 'prioritized', 'delayed', 'waiting-children', 'completed', 'failed'];
/** A step of so many takes the server 1 to 2 ms (Valkey 9.1, 2026-11). */
const STEP_JOBS = 250;
const SCAN_STEP = 1_000;

// KEYS[1] anything of the queue. ARGV[1] what job keys begin with, then ids. Returns those whose record has to be
// looked at closely. No JSON is parsed: that would take the server 100 µs for a job of 64 texts.
const SUSPECT = script(
  1,
  'allow-oom',
  `
local found = {}
local function isCount(value) return not value or string.match(value, '^%d+$') end
local function isObject(value) return value and string.sub(value, 1, 1) == '{' and string.sub(value, -1) == '}' end
for i = 2, #ARGV do
  local key = ARGV[1] .. ARGV[i]
  if redis.call('TYPE', key).ok ~= 'hash' then found[#found + 1] = ARGV[i]
  else
    local f = redis.call('HMGET', key, 'name', 'data', 'opts', 'atm', 'ats', 'stc')
    if not f[1] or not isObject(f[2]) or not isObject(f[3]) or not (isCount(f[4]) and isCount(f[5]) and isCount(f[6])) then found[#found + 1] = ARGV[i] end
  end
end
return found
`,
);

// KEYS[1] the list or sorted set, KEYS[2] the key under the id. ARGV[1] the id. An id that has a record by now stays.
const UNLIST = script(
  2,
  'allow-oom',
  `
if redis.call('TYPE', KEYS[2]).ok == 'hash' then return 0 end
if redis.call('TYPE', KEYS[1]).ok == 'list' then return redis.call('LREM', KEYS[1], 0, ARGV[1]) end
return redis.call('ZREM', KEYS[1], ARGV[1])
`,
);

// KEYS[1] waiting-children, [2] wait, [3] marker. ARGV[1] what job keys begin with, then ids of parents. BullMQ lets a
// parent go when its child ends; one whose child was deleted, or lost its parent's name, would wait for ever.
const RELEASE_CHILDLESS = script(
  3,
  'allow-oom',
  `
local released = 0
for i = 2, #ARGV do
  local key = ARGV[1] .. ARGV[i]
  local hasChild = false
  for _, child in ipairs(redis.call('SMEMBERS', key .. ':dependencies')) do
    if redis.call('TYPE', child).ok == 'hash' and redis.call('HGET', child, 'parentKey') == key and redis.call('HEXISTS', child, 'finishedOn') == 0 then hasChild = true end
  end
  if not hasChild and redis.call('ZREM', KEYS[1], ARGV[i]) == 1 then
    redis.call('DEL', key .. ':dependencies')
    redis.call('RPUSH', KEYS[2], ARGV[i])
    redis.call('ZADD', KEYS[3], 0, '0')
    released = released + 1
  end
end
return released
`,
);

// KEYS[1] wait, [2] active, [3] marker, [4] to [8] the sorted sets of states. ARGV[1] what job keys begin with, then
// ids. A job that is in no list and unfinished waits again; what is left of a finished one goes. LPOS walks its list:
// few ids come this far.
const ADOPT = script(
  8,
  'allow-oom',
  `
local requeued, removed = 0, 0
local function isListed(id)
  for set = 4, 8 do if redis.call('ZSCORE', KEYS[set], id) then return true end end
  return redis.call('LPOS', KEYS[1], id) or redis.call('LPOS', KEYS[2], id)
end
for i = 2, #ARGV do
  local id, key = ARGV[i], ARGV[1] .. ARGV[i]
  local f = redis.call('TYPE', key).ok == 'hash' and redis.call('HMGET', key, 'name', 'data', 'ats', 'stc', 'finishedOn')
  local isJob = f and (f[1] or f[2] or f[3] or f[4])
  if isJob and redis.call('EXISTS', key .. ':lock') == 0 and not isListed(id) then
    if f[5] or not (f[1] and f[2]) then
      redis.call('UNLINK', key, key .. ':logs', key .. ':dependencies', key .. ':processed', key .. ':failed', key .. ':unsuccessful')
      removed = removed + 1
    else
      redis.call('LPUSH', KEYS[1], id)
      redis.call('ZADD', KEYS[3], 0, '0')
      requeued = requeued + 1
    end
  end
end
return {requeued, removed}
`,
);

/** Resolves to what was done; stops early, without an error, when `signal` is aborted. */
export async function repairQueue(options: RepairOptions): Promise<RepairReport> {
  const repair = new Repair(options);
  for (const state of STATES) await repair.walk(state);
  await repair.adoptUnlisted();
  return repair.report;
}

class Repair {
  readonly report = { jobs: 0, mended: 0, failed: 0, requeued: 0, released: 0, removed: 0 };
  private readonly options: RepairOptions;
  /** Of jobs without a place in line: who is in here need not be looked for one by one. */
  private readonly waiting = new Set<string>();

  constructor(options: RepairOptions) {
    this.options = options;
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
        .filter((id) => !id.includes(':') && !this.waiting.has(id) && !active.has(id));
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
    const [counts] = await runScript(this.options.connection, ADOPT, [[...sets, this.key(''), ...unlisted]]);
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
    const before = this.report.failed + this.report.removed + this.report.released;
    for (const id of await this.suspectsOf(ids)) await this.repairOne(state, id);
    if (state === 'waiting-children') await this.release(ids);
    return this.report.failed + this.report.removed + this.report.released - before;
  }

  private async suspectsOf(ids: readonly string[]): Promise<readonly string[]> {
    if (this.options.isThorough === true) return ids;
    const [found] = await runScript(this.options.connection, SUSPECT, [[this.key('meta'), this.key(''), ...ids]]);
    return Array.isArray(found) ? found.map(String) : [];
  }

  private async repairOne(state: State, jobId: string): Promise<void> {
    const { connection, prefix, queue } = this.options;
    const key = this.key(jobId);
    const kind = await connection.type(key);
    const isFinished = state === 'completed' || state === 'failed';
    if ((kind !== 'hash' && kind !== 'none') || (kind === 'none' && isFinished)) return this.unlist(state, jobId);
    const fields = await readFields(connection, key);
    const damage = damageIn(fields);
    if (damage.length === 0) return;
    if (kind === 'none') await connection.hset(key, 'stc', '0'); // so that there is a record to fail
    await applyMending(connection, key, damage);
    this.report.mended += isGone(fields) ? 0 : 1;
    const reason = damageSentence(damage);
    if (isFinished || reason === undefined) return;
    const { state: found } = await failWaiting(connection, {
      prefix,
      queue,
      jobId,
      reason: failedReason({ code: 'JOB_INVALID', message: reason }),
    });
    if (found === 'failed') this.report.failed++;
  }

  private async unlist(state: State, jobId: string): Promise<void> {
    const [removed] = await runScript(this.options.connection, UNLIST, [[this.key(state), this.key(jobId), jobId]]);
    this.report.removed += Number(removed);
  }

  private async release(ids: readonly string[]): Promise<void> {
    const keys = ['waiting-children', 'wait', 'marker'].map((name) => this.key(name));
    const [released] = await runScript(this.options.connection, RELEASE_CHILDLESS, [[...keys, this.key(''), ...ids]]);
    this.report.released += Number(released);
  }

  private async stepped(jobs: number): Promise<void> {
    this.report.jobs += jobs;
    await this.options.onStep?.(this.report.jobs);
  }

  private get isOver(): boolean {
    return this.options.signal?.aborted === true;
  }

  private key(name: string): string {
    return keySpace(this.options.prefix).job(this.options.queue, name);
  }
}
