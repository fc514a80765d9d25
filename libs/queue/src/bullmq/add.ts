// Adds a group of jobs in one call of one script: what BullMQ 6.7.0's addStandardJob keeps of a job, with the job's
// input, and what was found under each id before; bullmq-add.test.ts compares all that either leaves behind. It knows
// jobs that just wait: no priority, delay, parent or repetition.
//
// A job of one text took the server 94 µs of CPU by BullMQ's script in a transaction, 12 of it for what is done: the
// rest is what each call costs, and the functions that BullMQ's script makes anew each time. It takes 28 so, and the
// producer 20 instead of 94 (50 jobs a call, Valkey 9.1, 2026-11).

import { randomUUID } from 'node:crypto';
import { ShoalError, checkJobId, type KeySpace } from '@shoal/contract';
import { Job, type Queue } from 'bullmq';
import type { Redis } from '../redis/connection.ts';
import { toFound, type Found } from '../producer/job-verdict.ts';
import { askOnce, valueOf, type Argument, type Command } from '../redis/command-pipeline.ts';
import { runScriptOnce, script } from '../redis/script.ts';
import { STAGED_FROM_BYTES, STAGED_TTL_MS } from '../redis/staging.ts';

export interface AddedJob {
  readonly jobId: string;
  readonly name: string;
  readonly data: unknown;
  readonly input?: Buffer | undefined;
}

/** What is staged is used by the next command: only a server that was away between the two has lost it. */
const MAX_ROUNDS = 4;

const NOT_STAGED = 'not-staged';

// KEYS[1] wait, [2] meta, [3] id, [4] active, [5] events, [6] marker. ARGV[1] to [3] what keys of jobs, inputs and
// results begin with, [4] how many jobs, then for each: id, name, data, options, when it was made, and '-', or 's' and
// a small input, or 'l' and where a large one was staged. Returns for each job false where nothing was found and all
// was done, else data, finishedOn, failedReason and the head of the result as they were, and with a fifth value why
// nothing was done: it was not staged, or what is there is of another type.
//
// The first write is one that a full server refuses: then nothing was done, and after it nothing is refused. An input
// is only written for a job that does not exist (else one would stay behind for every job that had completed already).
// What an acknowledged result left behind (TAKEN, the lowest bit of byte 6) goes, because a worker would take it for an
// answer.
const ADD = script(
  6,
  '',
  `
local call, try = redis.call, redis.pcall
local count = tonumber(ARGV[4])
call('INCRBY', KEYS[3], count)
local meta = call('HMGET', KEYS[2], 'opts.maxLenEvents', 'paused', 'concurrency')
local most = meta[1]
if not most then
  most = 10000
  call('HSET', KEYS[2], 'opts.maxLenEvents', most)
end
local found, added, at = {}, {}, 5
for n = 1, count do
  local id, name, form, input = ARGV[at], ARGV[at + 1], ARGV[at + 5], nil
  local job, output, looked, hasJob, fault = ARGV[1] .. id, ARGV[3] .. id, false, false, nil
  if call('EXISTS', job, output) > 0 then
    hasJob = call('EXISTS', job) == 1
    looked = hasJob and try('HMGET', job, 'data', 'finishedOn', 'failedReason') or {false, false, false}
    local head = try('GETRANGE', output, 0, 31)
    fault = looked.err or type(head) == 'table' and head.err
    looked[4] = head
  end
  if form ~= '-' then input = ARGV[at + 6] end
  if hasJob or fault then
    if form == 'l' then call('UNLINK', input) end
    if not fault then call('XADD', KEYS[5], 'MAXLEN', '~', most, '*', 'event', 'duplicated', 'jobId', id) end
  elseif form == 'l' and try('RENAME', input, ARGV[2] .. id).err then
    fault = '${NOT_STAGED}'
  else
    if form == 'l' then call('PERSIST', ARGV[2] .. id) elseif form == 's' then call('SET', ARGV[2] .. id, input) end
    if looked and #looked[4] > 6 and string.byte(looked[4], 7) % 2 == 1 then call('DEL', output) end
    call('HMSET', job, 'name', name, 'data', ARGV[at + 2], 'opts', ARGV[at + 3], 'timestamp', ARGV[at + 4], 'delay', 0, 'priority', 0)
    call('XADD', KEYS[5], '*', 'event', 'added', 'jobId', id, 'name', name)
    call('XADD', KEYS[5], 'MAXLEN', '~', most, '*', 'event', 'waiting', 'jobId', id)
    added[#added + 1] = id
  end
  found[n] = fault and {false, false, false, '', fault} or looked
  at = at + (input and 7 or 6)
end
if #added > 0 then
  call('LPUSH', KEYS[1], unpack(added))
  local isHeld = meta[2] or meta[3] and call('LLEN', KEYS[4]) >= tonumber(meta[3])
  if not isHeld then call('ZADD', KEYS[6], 0, '0') end
end
return found
`,
);

/**
 * Adds each job whose id is free, and says what was under each id before, in order; an id that comes twice is found the
 * second time. All is sent in one turn of the event loop, and may be done twice: what was added is found. Throws what
 * the server refused it for, after which either nothing was done or, where one id is no job at all (WRONGTYPE),
 * everything but that one.
 */
export async function addAndLook(
  connection: Redis,
  queue: Queue,
  keys: KeySpace,
  jobs: readonly AddedJob[],
): Promise<Found[]> {
  const found: Found[] = [];
  let open = jobs.map((_, index) => index);
  for (let round = 0; open.length > 0; round++) {
    if (round === MAX_ROUNDS)
      throw new ShoalError(
        'QUEUE_UNREACHABLE',
        'the queue server lost large inputs before it added their jobs, again and again; repeat the call as a whole',
        {},
      );
    const answers = await addOnce(
      connection,
      queue,
      keys,
      open.map((index) => jobs[index]!),
    );
    for (const [at, index] of open.entries()) if (answers[at] !== undefined) found[index] = answers[at];
    open = open.filter((_, at) => answers[at] === undefined);
  }
  return found;
}

/** Undefined for a job whose large input was not there any more. */
async function addOnce(
  connection: Redis,
  queue: Queue,
  keys: KeySpace,
  jobs: readonly AddedJob[],
): Promise<(Found | undefined)[]> {
  const token = randomUUID(); // another call with the same id must not write there before the script has come
  const staged = jobs.flatMap(({ jobId, input }, at) =>
    input !== undefined && isLarge(input) ? [{ at, key: keys.staged(queue.name, jobId, `${token}-${at}`), input }] : [],
  );
  const places = new Map(staged.map(({ at, key }) => [at, key]));
  const values = [
    ...queueKeys(queue),
    queue.toKey(''),
    keys.input(queue.name, ''),
    keys.output(queue.name, ''),
    jobs.length,
    ...jobs.flatMap((job, at) => argumentsOf(queue, job, places.get(at))),
  ];
  const [stagings, replies] = await Promise.all([
    askOnce(
      connection,
      staged.map(({ key, input }): Command => ['SET', key, input, 'PX', STAGED_TTL_MS]),
    ),
    runScriptOnce(connection, ADD, values),
  ]).catch((error: unknown) => {
    // a full server has no room for it; else it expires
    if (staged.length > 0) void connection.unlink(staged.map(({ key }) => key)).catch(() => undefined);
    throw error;
  });
  const answers = (replies as (readonly (Buffer | null)[] | null)[]).map(toAnswer);
  for (const [nth, { at }] of staged.entries()) if (answers[at] === undefined) valueOf(stagings[nth]!);
  return answers;
}

function toAnswer(reply: readonly (Buffer | null)[] | null): Found | undefined {
  const [data, finishedOn, failedReason, head, fault] = reply ?? [];
  if (fault?.toString() === NOT_STAGED) return undefined;
  if (fault !== undefined && fault !== null) throw new Error(fault.toString());
  return toFound(
    [data, finishedOn, failedReason].map((field) => field?.toString() ?? null),
    head ?? Buffer.alloc(0),
  );
}

function queueKeys(queue: Queue): string[] {
  return ['wait', 'meta', 'id', 'active', 'events', 'marker'].map((name) => queue.toKey(name));
}

/**
 * Throws JOB_INVALID for an id that cannot be one. What BullMQ would have packed of the options is what their JSON has.
 */
function argumentsOf(queue: Queue, { jobId, name, data, input }: AddedJob, staged: string | undefined): Argument[] {
  const json = new Job(queue, name, data, { jobId }, checkJobId(jobId)).asJSON();
  const fields = [jobId, json.name, json.data, JSON.stringify(json.opts), json.timestamp];
  if (staged !== undefined) return [...fields, 'l', staged];
  return input === undefined ? [...fields, '-'] : [...fields, 's', input];
}

/** Nothing large passes through a script; see staging.ts. */
function isLarge(input: Buffer): boolean {
  return input.length >= STAGED_FROM_BYTES;
}
