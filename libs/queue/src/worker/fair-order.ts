// Decides who is next: gives every waiting job its place in line by start-time fair queueing over tenants. BullMQ keeps
// the line (the sorted set `prioritized`, lowest score first); the scores are Shoal's own. Jobs arrive in BullMQ's
// `wait` list, whoever adds them and by whatever means; a worker calls this script before it claims, so that a plain
// BullMQ job takes no turn before it has a place. Claims nothing and looks into nothing but who asks, of which class,
// and how much.
//
// The rule, in units of 1/16 token. A *flow* is a tenant and a class. `now` is the virtual time: the place at the head
// of the line, which never goes back while somebody waits. A job's place is
//     max(now − lead, where its flow's last job ends),   and it ends its length further on.
// So whoever waits alone for long moves up, whoever asked for little goes first, and many jobs of one tenant alternate
// with those of another. An interactive token is as long as 1/256 of a bulk token and its lead is larger: interactive
// jobs go before bulk ones without ever stopping them (a tenant that never ceases uses its lead up, and then shares 256
// : 1).
//
// Places of interactive jobs are odd, those of bulk jobs even: so whoever has room for interactive ones alone sees how
// many of them are next. Places lie between −2^53 and 0. BullMQ's own scores are 2^32 and above (a priority that a
// producer chose), so those are told apart, come last until they are given a place, and its 21 bits of priority are no
// limit here: 2^53 units are two years of a device that runs 8 million tokens a second without one moment of an empty
// line, which begins anew.

import { INTERACTIVE_ROWS, invariant, keySpace } from '@shoal/contract';
import { LEAD_TOKENS } from '@shoal/core';
import type { Redis } from '../redis/connection.ts';
import { runScript, script } from '../redis/script.ts';

export interface FairOrderOptions {
  readonly prefix: string;
  readonly queue: string;
  /** Most jobs that get their place in one call; the server does nothing else meanwhile. */
  readonly mostJobs?: number;
}

/** 256 keyed jobs of 64 rows take the server about 1.7 ms (Valkey 9.1, 2026-11). */
export const MOST_JOBS = 256;
const MOST_URGENT = 16;
/** Where an empty line begins: close to −2^53, with room for leads. */
const FIRST_PLACE = -(2 ** 53) + 2 ** 26;
const BULK_LEAD = 16 * LEAD_TOKENS;
/**
 * Twice that, so that interactive jobs go before a fresh bulk tenant too; at 1/256 they last for 134 million tokens.
 */
const INTERACTIVE_LEAD = 2 * BULK_LEAD;
const MOST_DECODED_BYTES = 4_096;
/** Of a job's hash; BullMQ passes over fields that it does not know. */
const PLACE_FIELD = 'shoalPlace';

// KEYS[1] wait, KEYS[2] prioritized, KEYS[3] the order: a sorted set with the end of each flow's last job, and under
// the empty name the virtual time. ARGV[1] prefix of job keys, ARGV[2] prefix of input keys, ARGV[3] most jobs. Returns
// how many in `wait` still have no place, how many jobs have one, and how many of those that are next are interactive.
//
// A job that was in line before (handed back, stalled, delayed, released by its child) keeps its place in its hash and
// is not charged again. Larger inline jobs are not decoded (256 KiB of JSON would take a millisecond): a quote inside a
// JSON string is always escaped, so `"tenant"` before a colon is a field.
const ORDER = script(
  3,
  'allow-oom',
  `
local UNITS, CHEAPER, BULK_LEAD, INTERACTIVE_LEAD, FIRST, LAST = 16, 256, ${BULK_LEAD}, ${INTERACTIVE_LEAD}, ${FIRST_PLACE}, -1
local most = tonumber(ARGV[3])
local listed = redis.call('LRANGE', KEYS[1], -most, -1)
local foreign = #listed < most and redis.call('ZRANGEBYSCORE', KEYS[2], 0, '+inf', 'LIMIT', 0, most - #listed) or {}
local function told()
  local first, urgent = redis.call('ZRANGE', KEYS[2], 0, ${MOST_URGENT - 1}, 'WITHSCORES'), 0
  while first[2 * urgent + 2] and tonumber(first[2 * urgent + 2]) < 0 and tonumber(first[2 * urgent + 2]) % 2 == 1 do urgent = urgent + 1 end
  return { redis.call('LLEN', KEYS[1]), redis.call('ZCARD', KEYS[2]), urgent }
end
if #listed == 0 and #foreign == 0 then return told() end

local function text(number) return string.format('%.0f', number) end

local head = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
local isEmpty = #head == 0 or tonumber(head[2]) >= 0
if isEmpty then
  redis.call('DEL', KEYS[3])
  redis.call('ZADD', KEYS[3], FIRST, '')
else
  redis.call('ZADD', KEYS[3], 'GT', head[2], '')
end
local now = tonumber(redis.call('ZSCORE', KEYS[3], '') or FIRST)
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', '(' .. text(now - INTERACTIVE_LEAD))

local function field(data, name)
  local from = 1
  while true do
    local at = string.find(data, name, from, true)
    if not at then return nil end
    local value = string.match(data, '^%s*:%s*"([^"\\\\]*)"', at + #name)
    if value then return value end
    from = at + #name
  end
end

local function facts(data)
  if #data > ${MOST_DECODED_BYTES} then return { tenant = field(data, '"tenant"'), class = field(data, '"class"'), rows = 256, tokens = #data / 4 } end
  local isJson, job = pcall(cjson.decode, data)
  if not isJson or type(job) ~= 'table' then return {} end
  local input = job.input
  if type(input) == 'table' then return { tenant = job.tenant, class = job.class, rows = input.rows, tokens = input.tokens, form = input.form } end
  return { tenant = job.tenant, class = job.class, rows = type(job.texts) == 'table' and #job.texts or 1, tokens = #data / 4 }
end

local function weigh(id, data)
  local job = facts(data)
  local rows = math.min(math.max(tonumber(job.rows) or 1, 1), 256)
  local tokens = tonumber(job.tokens) or (job.form == 'texts' and redis.call('STRLEN', ARGV[2] .. id) / 4) or 0
  if not (tokens >= 1 and tokens <= 16777216) then tokens = rows * 64 end
  local isInteractive = job.class == 'interactive' or (job.class ~= 'bulk' and rows <= ${INTERACTIVE_ROWS})
  local tenant = type(job.tenant) == 'string' and string.sub(job.tenant, 1, 128) or 'default'
  return isInteractive, (isInteractive and 'i:' or 'b:') .. tenant, math.max(1, math.ceil(tokens * UNITS / (isInteractive and CHEAPER or 1)))
end

local ends, line = {}, {}
local function enter(id)
  local key = ARGV[1] .. id
  local found = redis.call('HMGET', key, 'data', '${PLACE_FIELD}')
  local place = tonumber(found[2])
  if place then
    if place > now then place = now - now % 2 + place % 2 end
  else
    local isInteractive, flow, length = weigh(id, found[1] or '')
    local lead = isInteractive and INTERACTIVE_LEAD or (isEmpty and 0 or BULK_LEAD)
    place = math.min(math.max(now - lead, ends[flow] or tonumber(redis.call('ZSCORE', KEYS[3], flow) or -math.huge)), LAST)
    place = place - place % 2 + (isInteractive and 1 or 0)
    ends[flow] = place + length
    if found[1] then redis.call('HSET', key, '${PLACE_FIELD}', text(place)) end
  end
  line[#line + 1] = text(place)
  line[#line + 1] = id
end
for i = #listed, 1, -1 do enter(listed[i]) end
for _, id in ipairs(foreign) do enter(id) end
redis.call('ZADD', KEYS[2], unpack(line))
if #listed > 0 then redis.call('LTRIM', KEYS[1], 0, -#listed - 1) end
for flow, place in pairs(ends) do redis.call('ZADD', KEYS[3], text(place), flow) end
return told()
`,
);

/** How many jobs wait: in line, and without a place in it. */
export interface Line {
  readonly placed: number;
  readonly unplaced: number;
  /** Interactive ones that are next in line; counted up to MOST_URGENT. */
  readonly urgent: number;
}

/** Gives jobs their places. Some may have none afterwards, because one call orders no more than `mostJobs`. */
export async function orderWaiting(
  connection: Redis,
  { prefix, queue, mostJobs = MOST_JOBS }: FairOrderOptions,
  signal?: AbortSignal,
): Promise<Line> {
  const keys = keySpace(prefix);
  const [reply] = await runScript(
    connection,
    ORDER,
    [
      [
        `${prefix}:${queue}:wait`,
        `${prefix}:${queue}:prioritized`,
        keys.order(queue),
        keys.job(queue, ''),
        keys.input(queue, ''),
        mostJobs,
      ],
    ],
    { signal },
  );
  invariant(Array.isArray(reply), 'the order script answers with three numbers');
  return { unplaced: Number(reply[0]), placed: Number(reply[1]), urgent: Number(reply[2]) };
}
