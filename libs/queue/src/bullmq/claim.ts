// Claims many jobs in one call. BullMQ's own script claims one, and asks the queue anew each time whether it is paused,
// limited, or has delayed jobs that are due: 70 µs of the server's time a job. This one asks once for all that are
// claimed together, and answers each as BullMQ's does, so that all of BullMQ's own code around it stays. Where it would
// have to limit, or to let a delayed job go, BullMQ's does it. bullmq-claim.test.ts holds the two against each other,
// key by key.

import type { Worker } from 'bullmq';
import { Command } from 'ioredis';
import type { Redis } from '../redis/connection.ts';
import { script } from '../redis/script.ts';

/** Names and places of moveToActive's arguments. */
const KEY_COUNT = 11;

// KEYS as moveToActive's: wait, active, prioritized, events, stalled, limiter, delayed, paused, meta, pc, marker. ARGV
// what records begin with, ms since 1970, then for each job its options (MessagePack: token, lockDuration, name,
// limiter). Answers with a list for each: what moveToActive would answer, the error that it would meet, or 1 where it
// has to be asked itself; then nothing was done.
const CLAIM = script(
  KEY_COUNT,
  '',
  `
local prefix, now, answers = ARGV[1], ARGV[2], {}
local meta = redis.call('HMGET', KEYS[9], 'paused', 'concurrency', 'max')
local delayed = tonumber(redis.call('ZRANGE', KEYS[7], 0, 0, 'WITHSCORES')[2])
local isDue = delayed and delayed <= (now + 1) * 0x1000 - 1
local wanted = #ARGV - 2
if isDue or meta[2] or meta[3] or cmsgpack.unpack(ARGV[3])['limiter'] then
  for at = 1, wanted do answers[at] = 1 end
  return answers
end

local ids = {}
if not meta[1] then
  while #ids < wanted do
    local id = redis.call('RPOPLPUSH', KEYS[1], KEYS[2])
    if id and string.sub(id, 1, 2) == '0:' then
      redis.call('LREM', KEYS[2], 1, id)
      id = redis.call('RPOPLPUSH', KEYS[1], KEYS[2])
    end
    if not id then break end
    ids[#ids + 1] = id
  end
  if #ids < wanted then
    local placed, first = redis.call('ZPOPMIN', KEYS[3], wanted - #ids), #ids + 1
    for at = 1, #placed, 2 do ids[#ids + 1] = placed[at] end
    if #placed > 0 then redis.call('LPUSH', KEYS[2], unpack(ids, first)) end
    if #ids < wanted then redis.call('DEL', KEYS[10]) end
  end
end

local function begin(id, opts)
  local job = prefix .. id
  if opts['token'] ~= '0' then redis.call('SET', job .. ':lock', opts['token'], 'PX', opts['lockDuration']) end
  redis.call('XADD', KEYS[4], '*', 'event', 'active', 'jobId', id, 'prev', 'waiting')
  local written = opts['name'] and redis.pcall('HSET', job, 'processedOn', now, 'pb', opts['name']) or redis.pcall('HSET', job, 'processedOn', now)
  if type(written) == 'table' then return written end
  local counted = redis.pcall('HINCRBY', job, 'ats', 1)
  if type(counted) == 'table' then return counted end
  return { redis.call('HGETALL', job), id, 0, 0 }
end
local nothing = { 0, 0, 0, delayed and not meta[1] and delayed / 0x1000 or 0 }
for at = 1, wanted do answers[at] = ids[at] and begin(ids[at], cmsgpack.unpack(ARGV[2 + at])) or nothing end
if #ids > 0 then redis.call('ZADD', KEYS[11], 0, '0') end
return answers
`,
);

/** The server does nothing else meanwhile: some 35 µs a job. */
const JOBS_PER_CALL = 32;

type Backend = Awaited<ReturnType<Worker['getBackend']>>;
type Execute = Backend['execCommand'];
type Arguments = Parameters<Execute>[2];

interface Waiting {
  readonly client: Parameters<Execute>[0];
  readonly values: Arguments;
  readonly answer: (reply: unknown) => void;
  readonly fail: (error: unknown) => void;
}

/** From now on the claims that this worker asks for in one turn of the event loop travel together. */
export async function joinClaims(worker: Worker, connection: Redis): Promise<void> {
  const backend = worker.getBackend();
  const executeAlone = backend.execCommand.bind(backend);
  let waiting: Waiting[] = [];

  const sendAll = (): void => {
    const all = waiting;
    waiting = [];
    for (let at = 0; at < all.length; at += JOBS_PER_CALL) void send(all.slice(at, at + JOBS_PER_CALL));
  };
  const send = async (batch: readonly Waiting[]): Promise<void> => {
    const shared = batch[0]!.values.slice(0, KEY_COUNT + 2);
    try {
      const replies = await claim(connection, [...shared, ...batch.map(({ values }) => values[KEY_COUNT + 2])]);
      for (const [at, { client, values, answer, fail }] of batch.entries()) {
        const reply = replies[at];
        if (reply === 1) executeAlone(client, 'moveToActive', values).then(answer, fail);
        else if (reply instanceof Error) fail(reply);
        else answer(reply);
      }
    } catch (error) {
      for (const { fail } of batch) fail(error);
    }
  };

  backend.execCommand = (client, name, values) => {
    if (name !== 'moveToActive') return executeAlone(client, name, values);
    if (waiting.length === 0) queueMicrotask(sendAll);
    return new Promise((answer, fail) => waiting.push({ client, values, answer, fail }));
  };
  await connection.script('LOAD', CLAIM.lua).catch(() => undefined);
}

async function claim(connection: Redis, values: readonly unknown[]): Promise<unknown[]> {
  const ask = (): Promise<unknown[]> =>
    connection.sendCommand(
      new Command('EVALSHA', [CLAIM.sha, KEY_COUNT, ...(values as string[])], { replyEncoding: 'utf8' }),
    ) as Promise<unknown[]>;
  try {
    return await ask();
  } catch (error) {
    if (!(error instanceof Error && error.message.startsWith('NOSCRIPT'))) throw error;
    await connection.script('LOAD', CLAIM.lua);
    return ask();
  }
}
