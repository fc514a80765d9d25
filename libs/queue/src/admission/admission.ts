// Decides whether there is room for more: reserves rows and bytes for jobs before they are added, by tenant and in
// total, and says how long to wait when there is none. A reservation is kept by job id until the result was
// acknowledged, the job failed or was removed; what was missed (a reader that died, a result that expired) is found by
// `recountAdmission`. Jobs that are put on the queue by hand have no reservation: workers stop claiming before memory
// ends, see claim-brake.ts.
//
// A reservation counts in two parts. *Queued*: its rows and the bytes of its input, until the job ended. *Owed*: the
// bytes of its result, reserved from the beginning, so that everything accepted can be delivered even when nobody reads
// for a while.
//
// Who waits for room stands in line at the door: it was told when its turn will be, and nobody who comes later passes
// it. A tenth of the room is kept for interactive jobs, which pass the door while there is any.
//
// While room is ample (ample-room.ts) nobody asks first: the reservation travels with the jobs.

import { DEFAULT_PREFIX, ShoalError, invariant, keySpace, type EmbedJob, type OutputDtype } from '@shoal/contract';
import { AmpleRoom } from './ample-room.ts';
import type { Redis } from '../redis/connection.ts';
import { runScript, script } from '../redis/script.ts';

export interface AdmissionLimits {
  /** Rows of a queue that wait or run. */
  readonly maxQueuedRows: number;
  /** Bytes of inputs and results of all queues; undefined: `maxMemoryShare` of what the server may use. */
  readonly maxQueuedBytes: number | undefined;
  /** Of rows and bytes, most that one tenant may have, 0 to 1. */
  readonly maxTenantShare: number;
}

export const DEFAULT_LIMITS: AdmissionLimits = {
  maxQueuedRows: 4_000_000,
  maxQueuedBytes: undefined,
  maxTenantShare: 0.8,
};

export interface WantedRoom {
  readonly job: Pick<EmbedJob, 'jobId' | 'tenant' | 'class' | 'rows' | 'input' | 'output'>;
  readonly inputBytes: number;
}

export interface AdmissionAnswer {
  /** So many of the jobs, from the first on, have their reservation. */
  readonly admitted: number;
  /** How long the next one has to wait; undefined when all were admitted. */
  readonly refused:
    | { readonly retryAfterMs: number; readonly reason: 'rows' | 'bytes' | 'tenant' | 'line' }
    | undefined;
}

/**
 * Of what the server may use, for inputs and results. The rest is for job hashes, buffers and what is added by hand.
 */
const BYTES_SHARE = 0.6;
/** Nothing is admitted above this share of maxmemory, whatever it is filled with. */
const MOST_MEMORY_SHARE = 0.75;
/** Of the machine's memory, where the server has no limit of its own. */
const MACHINE_SHARE = 0.5;
/** INFO takes the server about 50 µs, so it is not asked with every job. */
const MEMORY_READ_MS = 500;
/** Where room is ample an older reading will do, while a new one is under way. */
const MEMORY_KNOWN_MS = 5_000;
const INTERACTIVE_RESERVE = 0.1;
/** Of a job's hash, list entries and events, beside data, input and result (measured 0.9 KB a waiting job, 2026-11). */
const JOB_BYTES = 1_024;
const BYTES_PER_DIM: Readonly<Record<OutputDtype, number>> = { f32: 4, f16: 2, i8: 1, binary: 0.125 };
/** Of a model of which no worker has told. */
const UNKNOWN_DIMS = 1_024;
/** The wait while nobody knows how fast room comes back: nothing has left the queue yet. */
const UNKNOWN_RATE_MS = 1_000;
const JOBS_PER_CALL = 500;
/**
 * Of those who stand in line, so many are looked at: whoever is behind them is told too short a wait, and comes back
 * too early.
 */
const MOST_IN_LINE = 200;

// A reservation: "<q|o> <rows> <queued bytes> <owed bytes> <ms> <tenant>", q while the job waits or runs, o when only
// its result is owed. KEYS of all three scripts: [1] reservations of the queue, [2] load of all queues, [3] drain of
// the queue.
const RELEASE_FUNCTION = `
local sums = {}
local function less(field, by) sums[field] = (sums[field] or 0) + by end
local function release(queue, id, isAll)
  local held = redis.call('HGET', KEYS[1], id)
  if not held then return 0, 0 end
  local state, rows, queued, owed, ms, tenant = string.match(held, '^(%a) (%d+) (%d+) (%d+) (%d+) (.*)$')
  rows, queued, owed = tonumber(rows), tonumber(queued), tonumber(owed)
  local gone = isAll and queued + owed or queued
  if isAll then redis.call('HDEL', KEYS[1], id)
  elseif state == 'q' then redis.call('HSET', KEYS[1], id, 'o 0 0 ' .. owed .. ' ' .. ms .. ' ' .. tenant)
  else return 0, 0 end
  less('rows ' .. queue, rows)
  less('bytes', gone)
  less('rows ' .. queue .. ' ' .. tenant, rows)
  less('bytes ' .. tenant, gone)
  if isAll and state == 'o' then less('unread', owed) end
  if not isAll then less('unread', -owed) end
  return rows, gone
end
-- Once for all that was released.
local function settle()
  for field, by in pairs(sums) do
    if by ~= 0 and redis.call('HINCRBY', KEYS[2], field, -by) <= 0 then redis.call('HDEL', KEYS[2], field) end
  end
end
`;

// KEYS also [4] the line at the door. ARGV: queue, caller, maxQueuedRows, maxQueuedBytes, maxTenantShare, interactive
// share kept, unknown dims, 1 if limits do not hold, then for each job: id, tenant, i or b, rows, bytes, bytes of one
// result row's dimension, dimensions or 0. Returns jobs admitted, ms to wait, why, and thousandths of what is fullest:
// the queue, the server's share, one of these tenants (all, when somebody stands in line).
const ADMIT = script(
  4,
  'allow-oom',
  `
local queue, caller = ARGV[1], ARGV[2]
local mostRows, mostBytes, tenantShare, kept, isForced = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[8] == '1'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function drainRates()
  local f = redis.call('HMGET', KEYS[3], 'rows', 'bytes', 'sampleMs', 'sampleRows', 'sampleBytes', 'rowRate', 'byteRate')
  local rows, bytes, since = tonumber(f[1]) or 0, tonumber(f[2]) or 0, tonumber(f[3])
  local rowRate, byteRate = tonumber(f[6]) or 0, tonumber(f[7]) or 0
  local passed = since and now - since or 0
  local freshRows, freshBytes = (rows - (tonumber(f[4]) or 0)) / math.max(passed, 1), (bytes - (tonumber(f[5]) or 0)) / math.max(passed, 1)
  if passed >= 1000 and passed < 10000 then
    rowRate, byteRate = rowRate > 0 and (rowRate + freshRows) / 2 or freshRows, byteRate > 0 and (byteRate + freshBytes) / 2 or freshBytes
  end
  if passed >= 1000 or not since then
    redis.call('HSET', KEYS[3], 'sampleMs', now, 'sampleRows', rows, 'sampleBytes', bytes, 'rowRate', rowRate, 'byteRate', byteRate)
  elseif rowRate == 0 and passed >= 100 then
    rowRate, byteRate = freshRows, freshBytes
  end
  return rowRate, byteRate
end

local rowRate, byteRate = drainRates()
local load = redis.call('HMGET', KEYS[2], 'rows ' .. queue, 'bytes', 'dims ' .. queue)
local rows, bytes, dims = tonumber(load[1]) or 0, tonumber(load[2]) or 0, tonumber(load[3]) or tonumber(ARGV[7])

-- In line: "<caller> <rows> <bytes> <ms at which it was to come back>", by the microsecond at which it came: two may come within a
-- millisecond. Who does not come back loses its place.
local since
local aheadRows, aheadBytes, isPassed = 0, 0, false
local line = redis.call('ZRANGE', KEYS[4], 0, ${MOST_IN_LINE - 1}, 'WITHSCORES')
for at = 1, #line, 2 do
  local who, itsRows, itsBytes, backMs = string.match(line[at], '^(%S+) (%d+) (%d+) (%d+)$')
  if who == caller or tonumber(backMs) < now - 2000 then
    redis.call('ZREM', KEYS[4], line[at])
    if who == caller then since = tonumber(line[at + 1]) end
  elseif not since then
    aheadRows, aheadBytes, isPassed = aheadRows + itsRows, aheadBytes + itsBytes, true
  end
end

local tenants = {}
local function loadOf(tenant)
  if not tenants[tenant] then
    local held = redis.call('HMGET', KEYS[2], 'rows ' .. queue .. ' ' .. tenant, 'bytes ' .. tenant)
    tenants[tenant] = { rows = tonumber(held[1]) or 0, bytes = tonumber(held[2]) or 0, addedRows = 0, addedBytes = 0 }
  end
  return tenants[tenant]
end

local function owedFor(at)
  local cut = tonumber(ARGV[at + 6])
  return math.ceil(tonumber(ARGV[at + 3]) * (cut > 0 and math.min(cut, dims) or dims) * tonumber(ARGV[at + 5])) + 96
end

-- What the job and those after it ask for together, up to a tenth of the room: told for one job at a time, everybody would come back for crumbs.
local function askedFrom(from)
  local askedRows, askedBytes = 0, 0
  for at = from, #ARGV, 7 do
    askedRows, askedBytes = askedRows + tonumber(ARGV[at + 3]), askedBytes + tonumber(ARGV[at + 4]) + owedFor(at)
    if askedRows > mostRows / 10 or askedBytes > mostBytes / 10 then break end
  end
  return askedRows, askedBytes
end

local admitted, addedRows, addedBytes, wait, reason = 0, 0, 0, 0, ''
for at = 9, #ARGV, 7 do
  local id, tenant, class, wanted, queued = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local own = loadOf(tenant)
  if redis.call('HEXISTS', KEYS[1], id) == 0 then
    local owed = owedFor(at)
    local share = class == 'i' and 1 or 1 - kept
    local overRows, overBytes = rows + addedRows + wanted - mostRows * share, bytes + addedBytes + queued + owed - mostBytes * share
    local overTenantRows, overTenantBytes = own.rows + own.addedRows + wanted - mostRows * tenantShare, own.bytes + own.addedBytes + queued + owed - mostBytes * tenantShare
    local isFull = overRows > 0 or overBytes > 0
    local isGreedy = overTenantRows > 0 or overTenantBytes > 0
    -- into an empty house anything is let, or what is larger than the house would wait for ever
    local isAlone = rows + addedRows + bytes + addedBytes == 0
    if not isForced and not isAlone and (isFull or isGreedy or (isPassed and class == 'b')) then
      reason = isGreedy and not isFull and 'tenant' or overRows > 0 and 'rows' or overBytes > 0 and 'bytes' or 'line'
      local function timeFor(amount, rate) return amount <= 0 and 0 or rate > 0 and amount / rate or ${UNKNOWN_RATE_MS} end
      local askedRows, askedBytes = askedFrom(at)
      local moreRows, moreBytes = askedRows - wanted, askedBytes - queued - owed
      local isInLine = class == 'b' and reason ~= 'tenant'
      if isInLine then moreRows, moreBytes = moreRows + aheadRows, moreBytes + aheadBytes end
      wait = math.max(timeFor(math.max(overRows, overTenantRows) + moreRows, rowRate), timeFor(math.max(overBytes, overTenantBytes) + moreBytes, byteRate))
      wait = math.min(math.max(math.ceil(wait), 20), 60000)
      if isInLine then redis.call('ZADD', KEYS[4], since or string.format('%d%06d', time[1], time[2]), string.format('%s %d %d %d', caller, askedRows, askedBytes, now + wait)) end
      redis.call('PEXPIRE', KEYS[4], 120000)
      break
    end
    redis.call('HSET', KEYS[1], id, 'q ' .. wanted .. ' ' .. queued .. ' ' .. owed .. ' ' .. now .. ' ' .. tenant)
    addedRows, addedBytes = addedRows + wanted, addedBytes + queued + owed
    own.addedRows, own.addedBytes = own.addedRows + wanted, own.addedBytes + queued + owed
  end
  admitted = admitted + 1
end
if addedRows > 0 then
  redis.call('HINCRBY', KEYS[2], 'rows ' .. queue, addedRows)
  redis.call('HINCRBY', KEYS[2], 'bytes', addedBytes)
  for tenant, own in pairs(tenants) do
    if own.addedRows > 0 then
      redis.call('HINCRBY', KEYS[2], 'rows ' .. queue .. ' ' .. tenant, own.addedRows)
      redis.call('HINCRBY', KEYS[2], 'bytes ' .. tenant, own.addedBytes)
    end
  end
end
local full = #line > 0 and 1 or math.max((rows + addedRows) / mostRows, (bytes + addedBytes) / mostBytes)
for _, own in pairs(tenants) do
  full = math.max(full, (own.rows + own.addedRows) / (mostRows * tenantShare), (own.bytes + own.addedBytes) / (mostBytes * tenantShare))
end
return { admitted, wait, reason, math.ceil(1000 * math.min(full, 1)) }
`,
);

// ARGV: queue, 1 to release all of it or 0 for what is queued, then ids. A job of the same id that was added again
// meanwhile loses its reservation: it is counted as less than it is, once, and never for long.
const RELEASE = script(
  3,
  'allow-oom',
  `
${RELEASE_FUNCTION}
local rows, bytes = 0, 0
for at = 3, #ARGV do
  local goneRows, goneBytes = release(ARGV[1], ARGV[at], ARGV[2] == '1')
  rows, bytes = rows + goneRows, bytes + goneBytes
end
settle()
if rows > 0 then redis.call('HINCRBY', KEYS[3], 'rows', rows) end
if bytes > 0 then redis.call('HINCRBY', KEYS[3], 'bytes', bytes) end
return rows
`,
);

// ARGV: queue, prefix of job keys, prefix of results, how old a reservation without a job must be, then ids. Returns
// how many were released.
const RECOUNT = script(
  3,
  'allow-oom',
  `
${RELEASE_FUNCTION}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local released = 0
for at = 5, #ARGV do
  local id = ARGV[at]
  local held = redis.call('HGET', KEYS[1], id)
  if held then
    local job = ARGV[2] .. id
    local isOpen = redis.call('EXISTS', job) == 1 and redis.call('HEXISTS', job, 'finishedOn') == 0
    local isOld = now - tonumber(string.match(held, '^%a %d+ %d+ %d+ (%d+)')) >= tonumber(ARGV[4])
    if not isOpen and isOld then
      local hasResult = redis.call('STRLEN', ARGV[3] .. id) > 32
      release(ARGV[1], id, not hasResult)
      if not hasResult then released = released + 1 end
    end
  end
end
settle()
return released
`,
);

export interface AdmissionOptions {
  readonly prefix?: string | undefined;
  /** The main lane of a model. */
  readonly queue: string;
  /** Who asks: one line at the door for each. */
  readonly caller: string;
  readonly limits?: Partial<AdmissionLimits> | undefined;
}

export class Admission {
  private readonly connection: Redis;
  private readonly options: AdmissionOptions;
  private readonly limits: AdmissionLimits;
  private memory: { readonly readMs: number; readonly limitBytes: number; readonly isFull: boolean } | undefined;
  private memoryIsRead: Promise<unknown> | undefined;
  private readonly ample = new AmpleRoom(() => performance.now());

  constructor(connection: Redis, options: AdmissionOptions) {
    this.connection = connection;
    this.options = options;
    this.limits = { ...DEFAULT_LIMITS, ...options.limits };
  }

  /**
   * Where room is ample: reserves it for all of the jobs, and whoever calls may add them meanwhile. Undefined where it
   * has to be asked for first.
   */
  admitMeanwhile(jobs: readonly WantedRoom[]): Promise<unknown> | undefined {
    const { memory } = this;
    const ageMs = memory === undefined ? Infinity : performance.now() - memory.readMs;
    if (memory === undefined || memory.isFull || ageMs > MEMORY_KNOWN_MS || jobs.length > JOBS_PER_CALL)
      return undefined;
    if (ageMs > MEMORY_READ_MS)
      this.memoryIsRead ??= this.askMemory()
        .catch(() => undefined)
        .finally(() => (this.memoryIsRead = undefined));
    const { maxQueuedRows, maxQueuedBytes = memory.limitBytes } = this.limits;
    const wanted = {
      tenants: jobs.map(({ job }) => job.tenant),
      share: Math.max(
        sum(jobs.map(({ job }) => job.rows)) / maxQueuedRows,
        sum(jobs.map(mostBytesOf)) / maxQueuedBytes,
      ),
    };
    return this.ample.whileAmple(wanted, () => this.ask(jobs, memory.limitBytes, true));
  }

  /**
   * Reserves room for as many of the jobs as there is, in order. One that has a reservation keeps it. `isForced`:
   * limits do not hold for what was let in before. Throws QUEUE_FULL when the server is almost full, whatever fills it.
   */
  async admit(jobs: readonly WantedRoom[], isForced = false): Promise<AdmissionAnswer> {
    const memory = await this.readMemory();
    if (memory.isFull && !isForced) throw serverFull();
    for (let at = 0; at < jobs.length; at += JOBS_PER_CALL) {
      const answer = await this.ask(jobs.slice(at, at + JOBS_PER_CALL), memory.limitBytes, isForced);
      if (answer.refused !== undefined) return { admitted: at + answer.admitted, refused: answer.refused };
    }
    return { admitted: jobs.length, refused: undefined };
  }

  /** For jobs that were taken off the queue. */
  async release(jobIds: readonly string[]): Promise<void> {
    await releaseAdmission(this.connection, this.options, jobIds, 'all');
  }

  private async ask(jobs: readonly WantedRoom[], memoryBytes: number, isForced: boolean): Promise<AdmissionAnswer> {
    const { queue, prefix, caller } = this.options;
    const { maxQueuedRows, maxQueuedBytes = memoryBytes, maxTenantShare } = this.limits;
    const head = [
      queue,
      caller,
      maxQueuedRows,
      maxQueuedBytes,
      maxTenantShare,
      INTERACTIVE_RESERVE,
      UNKNOWN_DIMS,
      isForced ? 1 : 0,
    ];
    const [reply] = await runScript(this.connection, ADMIT, [
      [...keysOf(prefix, queue), keySpace(prefix).door(queue), ...head, ...jobs.flatMap(toArguments)],
    ]);
    invariant(Array.isArray(reply), 'the admission script answers with a list');
    const [admitted, retryAfterMs, reason] = [Number(reply[0]), Number(reply[1]), String(reply[2])];
    this.ample.learn(
      jobs.map(({ job }) => job.tenant),
      Number(reply[3]) / 1_000,
    );
    return {
      admitted,
      refused:
        admitted === jobs.length
          ? undefined
          : { retryAfterMs, reason: reason as NonNullable<AdmissionAnswer['refused']>['reason'] },
    };
  }

  private async readMemory(): Promise<{ readonly limitBytes: number; readonly isFull: boolean }> {
    const nowMs = performance.now();
    if (this.memory?.isFull === false && nowMs - this.memory.readMs < MEMORY_READ_MS) return this.memory;
    return this.askMemory();
  }

  private async askMemory(): Promise<{ readonly limitBytes: number; readonly isFull: boolean }> {
    const nowMs = performance.now();
    const { usedBytes, maxBytes, machineBytes } = await readServerMemory(this.connection);
    const mayUse = maxBytes > 0 ? maxBytes : machineBytes * MACHINE_SHARE;
    this.memory = {
      readMs: nowMs,
      limitBytes: Math.floor(mayUse * BYTES_SHARE),
      isFull: usedBytes > mayUse * MOST_MEMORY_SHARE,
    };
    return this.memory;
  }
}

/** `queued`: the job ended, its result is owed. `all`: nothing of it is left. */
export async function releaseAdmission(
  connection: Redis,
  { prefix, queue }: Pick<AdmissionOptions, 'prefix' | 'queue'>,
  jobIds: readonly string[],
  part: 'queued' | 'all',
  signal?: AbortSignal,
): Promise<void> {
  if (jobIds.length > 0)
    await runScript(connection, RELEASE, [[...keysOf(prefix, queue), queue, part === 'all' ? 1 : 0, ...jobIds]], {
      signal,
    });
}

// KEYS[1] the load of all queues, ARGV a field and its value. A worker starts where the memory is full as well: it is
// needed there.
const TELL = script(1, 'allow-oom', "redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])");

/**
 * What a result of this queue has; told by its workers, so that reservations are right. Waits for a server that is
 * away; throws QUEUE_UNREACHABLE.
 */
export async function tellDims(
  connection: Redis,
  { prefix, queue }: Pick<AdmissionOptions, 'prefix' | 'queue'>,
  dims: number,
  signal?: AbortSignal,
): Promise<void> {
  await runScript(connection, TELL, [[keySpace(prefix).load(), `dims ${queue}`, dims]], { signal });
}

export interface RecountOptions {
  readonly prefix?: string | undefined;
  readonly queue: string;
  /** A reservation is made before its job is added: one without a job is left alone for so long. Default a minute. */
  readonly graceMs?: number;
  /** After each step. */
  readonly onStep?: () => Promise<void>;
}

/**
 * Every queue that may have reservations, also of models whose workers are gone: what they hold counts for all queues.
 */
export async function queuesWithLoad(connection: Redis, prefix: string = DEFAULT_PREFIX): Promise<string[]> {
  const fields = await connection.hkeys(keySpace(prefix).load());
  return [...new Set(fields.flatMap((field) => /^(?:rows|dims) (\S+)$/.exec(field)?.[1] ?? []))];
}

/**
 * For the janitor: releases what belongs to no job and no unread result any more. Walks in small steps; resolves to how
 * many were released.
 */
export async function recountAdmission(
  connection: Redis,
  { prefix = DEFAULT_PREFIX, queue, graceMs = 60_000, onStep }: RecountOptions,
  signal?: AbortSignal,
): Promise<number> {
  const keys = keySpace(prefix);
  let released = 0;
  let cursor = '0';
  do {
    if (signal?.aborted === true) break;
    const [next, found] = await connection.hscan(keys.admitted(queue), cursor, 'COUNT', 100);
    cursor = next;
    const jobIds = found.filter((_, at) => at % 2 === 0);
    if (jobIds.length === 0) continue;
    const [count] = await runScript(
      connection,
      RECOUNT,
      [[...keysOf(prefix, queue), queue, keys.job(queue, ''), keys.output(queue, ''), graceMs, ...jobIds]],
      { signal },
    );
    released += Number(count);
    await onStep?.();
  } while (cursor !== '0');
  return released;
}

export interface AdmissionLoad {
  /** Of the queue. */
  readonly rows: number;
  /** Inputs and results of all queues that are reserved. */
  readonly bytes: number;
  /** Of these, results that nobody has acknowledged. */
  readonly unreadBytes: number;
}

export async function readAdmission(
  connection: Redis,
  { prefix, queue }: Pick<AdmissionOptions, 'prefix' | 'queue'>,
): Promise<AdmissionLoad> {
  const [rows, bytes, unread] = await connection.hmget(keySpace(prefix).load(), `rows ${queue}`, 'bytes', 'unread');
  return { rows: Number(rows ?? 0), bytes: Number(bytes ?? 0), unreadBytes: Number(unread ?? 0) };
}

export interface ServerMemory {
  readonly usedBytes: number;
  /** 0: no limit. */
  readonly maxBytes: number;
  readonly machineBytes: number;
}

export async function readServerMemory(connection: Redis): Promise<ServerMemory> {
  const info = await connection.info('memory');
  const field = (name: string): number => Number(new RegExp(`^${name}:(\\d+)`, 'm').exec(info)?.[1] ?? 0);
  // Buffers for replicas and for the append-only file pass, and do not count against maxmemory.
  return {
    usedBytes: field('used_memory') - field('mem_not_counted_for_evict'),
    maxBytes: field('maxmemory'),
    machineBytes: field('total_system_memory'),
  };
}

export function admissionRefused({
  retryAfterMs,
  reason,
}: NonNullable<AdmissionAnswer['refused']>): ShoalError<'ADMISSION_REFUSED'> {
  const why = {
    rows: 'as many rows wait as the queue takes (maxQueuedRows)',
    bytes: 'inputs and results fill their share of the server (maxQueuedBytes)',
    tenant: 'this tenant fills its share of the queue (maxTenantShare)',
    line: 'others wait for room in the queue as well',
  }[reason];
  return new ShoalError('ADMISSION_REFUSED', `${why}; try again in ${(retryAfterMs / 1_000).toFixed(1)} s`, {
    retryAfterMs,
    reason,
  });
}

/** Whatever the result will have: its dimensions may not be known yet. */
function mostBytesOf(wanted: WantedRoom): number {
  const { rows, output } = wanted.job;
  return queuedBytesOf(wanted) + rows * BYTES_PER_DIM.f32 * (output.dimensions ?? UNKNOWN_DIMS);
}

function queuedBytesOf({ job: { input }, inputBytes }: WantedRoom): number {
  const inlineBytes = input.form === 'inline' ? sum(input.texts.map((text) => Buffer.byteLength(text))) : 0;
  return inputBytes + inlineBytes + JOB_BYTES;
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

function serverFull(): ShoalError<'QUEUE_FULL'> {
  return new ShoalError(
    'QUEUE_FULL',
    `the memory of the queue server is more than ${MOST_MEMORY_SHARE * 100} % full; let workers and readers ` +
      'catch up and repeat the call, or raise maxmemory',
  );
}

function keysOf(prefix: string | undefined, queue: string): [admitted: string, load: string, drain: string] {
  const keys = keySpace(prefix);
  return [keys.admitted(queue), keys.load(), keys.drain(queue)];
}

function toArguments(wanted: WantedRoom): (string | number)[] {
  const { jobId, tenant, class: kind, rows, output } = wanted.job;
  return [
    jobId,
    tenant,
    kind === 'interactive' ? 'i' : 'b',
    rows,
    queuedBytesOf(wanted),
    BYTES_PER_DIM[output.dtype],
    output.dimensions ?? 0,
  ];
}
