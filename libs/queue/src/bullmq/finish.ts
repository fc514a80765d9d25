// Completes claimed jobs, many in one call. BullMQ's own script completes one, makes some forty functions anew for it,
// and asks after parents, deduplication and metrics that a plain job has none of: 123 µs of the server's time a job of
// one text, the smaller part of it for commands. What is more than plain is left to BullMQ's script.
// bullmq-finish.test.ts holds the two against each other, key by key.

import type { Job } from 'bullmq';
import { lockLost } from './internals.ts';
import { isPassingFault, type Redis } from '../redis/connection.ts';
import { Gathering } from '../worker/gathering.ts';
import { runScript, script } from '../redis/script.ts';

export interface CompletionsOptions {
  readonly connection: Redis;
  readonly prefix: string;
  readonly queue: string;
  /** Finished jobs that stay; a job that says how many itself is left to BullMQ. */
  readonly kept: number;
  /** After it nothing is tried again. */
  readonly signal: AbortSignal;
}

const NOT_PLAIN = 1;
/** Finished jobs that one call removes beyond as many as it adds: 100 take the server a millisecond or two. */
const REMOVED_AT_ONCE = 100;

// KEYS active, stalled, completed, events, meta, wait, prioritized; then for each job its record and its lock. ARGV
// what records begin with, ms since 1970, finished jobs to keep; then for each job its id, the claim's token and the
// return value. Answers with a number for each job: 0, or the code of BullMQ's moveToFinished, or NOT_PLAIN where
// nothing was done. What a key of the wrong kind could stop is looked at first, because a script that ends half-way
// leaves what it wrote.
const COMPLETE = script(
  0,
  'allow-oom',
  `
local now, kept = ARGV[2], tonumber(ARGV[3])
local most = redis.call('HGET', KEYS[5], 'opts.maxLenEvents')
if not most then
  most = 10000
  redis.call('HSET', KEYS[5], 'opts.maxLenEvents', most)
end
redis.call('XTRIM', KEYS[4], 'MAXLEN', '~', most)
redis.call('ZCARD', KEYS[3])

local locks, children = {}, {}
for at = 8, #KEYS, 2 do
  locks[#locks + 1] = KEYS[at + 1]
  children[#children + 1] = KEYS[at] .. ':dependencies'
  children[#children + 1] = KEYS[at] .. ':unsuccessful'
end
local holders, areParents = redis.call('MGET', unpack(locks)), redis.call('EXISTS', unpack(children)) > 0

local ids, taken, places = {}, {}, {}
local function complete(at, job, id, token, value)
  local found = redis.pcall('HMGET', job, 'ats', 'atm', 'parentKey', 'parent', 'deid')
  if found.err or found[3] or found[4] or found[5] then return ${NOT_PLAIN} end
  if not found[1] and redis.call('EXISTS', job) == 0 then return -1 end
  if found[2] and not string.find(found[2], '^%d+$') then return ${NOT_PLAIN} end
  if areParents and redis.call('EXISTS', children[2 * at - 1], children[2 * at]) > 0 then return ${NOT_PLAIN} end
  if holders[at] ~= token then return holders[at] and -6 or -2 end
  local wasActive = redis.call('LREM', KEYS[1], -1, id) > 0
  ids[#ids + 1] = id
  taken[#taken + 1] = locks[at]
  if not wasActive then return -3 end
  redis.call('HSET', job, 'atm', (tonumber(found[2]) or 0) + 1, 'returnvalue', value, 'finishedOn', now)
  redis.call('XADD', KEYS[4], '*', 'event', 'completed', 'jobId', id, 'returnvalue', value, 'prev', 'active')
  places[#places + 1] = now
  places[#places + 1] = id
  return 0
end

local answers = {}
for at = 1, #locks do answers[at] = complete(at, KEYS[6 + 2 * at], ARGV[1 + 3 * at], ARGV[2 + 3 * at], ARGV[3 + 3 * at]) end
if #ids == 0 then return answers end
redis.call('DEL', unpack(taken))
redis.pcall('SREM', KEYS[2], unpack(ids))
if #places == 0 then return answers end
redis.call('ZADD', KEYS[3], unpack(places))

local excess = redis.call('ZCARD', KEYS[3]) - kept
if excess > 0 then
  local old, keys = {}, {}
  for _, id in ipairs(redis.call('ZRANGE', KEYS[3], 0, math.min(excess, #ids + ${REMOVED_AT_ONCE}) - 1)) do
    local key = ARGV[1] .. id
    local parent = redis.pcall('HGET', key, 'parentKey')
    if type(parent) ~= 'string' or redis.call('SISMEMBER', parent .. ':dependencies', key) == 0 then
      old[#old + 1] = id
      for _, part in ipairs({ '', ':logs', ':dependencies', ':processed', ':failed', ':unsuccessful' }) do keys[#keys + 1] = key .. part end
    end
  end
  if #old > 0 then
    redis.call('UNLINK', unpack(keys))
    redis.call('ZREM', KEYS[3], unpack(old))
  end
end
if redis.call('LLEN', KEYS[6]) == 0 and redis.call('LLEN', KEYS[1]) == 0 and redis.call('ZCARD', KEYS[7]) == 0 then
  redis.call('XADD', KEYS[4], '*', 'event', 'drained')
end
return answers
`,
);

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
  private readonly gathering = new Gathering(() => this.flush());
  private waiting: Waiting[] = [];

  constructor(options: CompletionsOptions) {
    this.options = options;
    this.keyPrefix = `${options.prefix}:${options.queue}:`;
    this.sharedKeys = ['active', 'stalled', 'completed', 'events', 'meta', 'wait', 'prioritized'].map(
      (name) => this.keyPrefix + name,
    );
  }

  /** So that the first jobs need no second round trip; whoever leaves it out only waits for that. */
  async prepare(): Promise<void> {
    await this.options.connection.script('LOAD', COMPLETE.lua).catch(() => undefined);
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
    while (this.waiting.length > 0) void this.send(this.waiting.splice(0, JOBS_PER_CALL));
  }

  private ask(job: Job, token: string, value: string, mayWaitMs: number): Promise<number> {
    this.gathering.within(mayWaitMs);
    return new Promise((answer, fail) => this.waiting.push({ job, token, value, answer, fail }));
  }

  private async send(batch: readonly Waiting[]): Promise<void> {
    const { connection, kept, signal } = this.options;
    const keys = batch.flatMap(({ job }) => [`${this.keyPrefix}${job.id}`, `${this.keyPrefix}${job.id}:lock`]);
    const facts = batch.flatMap(({ job, token, value }) => [job.id ?? '', token, value]);
    const call = { ...COMPLETE, keyCount: this.sharedKeys.length + keys.length };
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
