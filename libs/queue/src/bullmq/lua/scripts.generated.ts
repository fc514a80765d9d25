// Written by tools/build-lua.ts from the .lua files of this folder: npm run lua.

import type { Script } from '../../redis/script.ts';

export const ADD_JOBS: Script = {
  name: 'bullmq/add-jobs',
  sha: '17e28463812a2a17d90474dad2ba5ad7bbb84c44',
  keyCount: 6,
  lua: `-- Adds jobs that just wait, with their inputs, and says what was found under each id before.
--
-- Runs: by a producer for up to 50 jobs a call
-- KEYS[1] wait: list of ids that wait
-- KEYS[2] meta: hash with the settings of the queue
-- KEYS[3] id: counter of all jobs ever added
-- KEYS[4] active: list of claimed ids
-- KEYS[5] events: stream of what happened
-- KEYS[6] marker: sorted set that idle workers wait for
-- ARGV[1] jobs: what keys of jobs begin with
-- ARGV[2] inputs: what keys of inputs begin with
-- ARGV[3] results: what keys of results begin with
-- ARGV[4] count: how many jobs follow
-- ARGV[5..] of each job: id, name, data, options, when it was made in ms, and a form: "-" without an input, "s" with a
--   small input behind it, "l" with the key behind it under which a large input was staged
-- Answers: for each job false where nothing was found and all was done, else a list of data, finishedOn, failedReason
--   and the result's header as they were; a fifth value says why nothing was done: "not-staged", or the server's error
--   where what is there is of another type
-- Writes: wait, meta, id, events, marker; the record and the input of each job that is new
-- Deletes: a staged input whose job was there already; a result that was taken, where its job is new
--
-- The first write is one that a full server refuses: then nothing was done, and after it nothing is refused. An input
-- is only written for a job that does not exist, else one would stay behind for every job that had completed already.
-- The header of a taken result goes, because a worker would take it for an answer.
-- The header of a result (SHL1): "SHL1" in bytes 0 to 3, flags as a little-endian u16 in bytes 6 and 7, whose lowest
-- bit is TAKEN, and the fingerprint in bytes 20 to 27. Lua counts from 1. Its size is contract's RESULT_HEADER_BYTES.
local HEADER_BYTES = 32

-- What the server has of a header: '' where there is no result, an error where the key is no string.
local function readHeader(output)
  return redis.pcall('GETRANGE', output, 0, HEADER_BYTES - 1)
end

local function isHeader(header)
  return type(header) == 'string' and #header >= HEADER_BYTES and string.sub(header, 1, 4) == 'SHL1'
end

local function isTaken(header)
  return string.byte(header, 7) % 2 == 1
end

local function markTaken(header)
  return string.sub(header, 1, 6) .. string.char(string.byte(header, 7) + 1) .. string.sub(header, 8)
end

local function fingerprintIn(header)
  return string.sub(header, 21, 28)
end
local DEFAULT_MOST_EVENTS = 10000

local waitKey, metaKey, idKey, activeKey, eventsKey, markerKey = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local jobPrefix, inputPrefix, outputPrefix, count = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

redis.call('INCRBY', idKey, count)
local meta = redis.call('HMGET', metaKey, 'opts.maxLenEvents', 'paused', 'concurrency')
local mostEvents, isPaused, concurrency = meta[1], meta[2], meta[3]
if not mostEvents then
  mostEvents = DEFAULT_MOST_EVENTS
  redis.call('HSET', metaKey, 'opts.maxLenEvents', mostEvents)
end

-- What is there: whether there is a job, what a producer judges it by, and an error where a key is of another type.
local function look(job, output)
  if redis.call('EXISTS', job, output) == 0 then
    return false, false, nil
  end
  local hasJob = redis.call('EXISTS', job) == 1
  local found = { false, false, false }
  if hasJob then
    found = redis.pcall('HMGET', job, 'data', 'finishedOn', 'failedReason')
  end
  local header = readHeader(output)
  local fault = found.err or type(header) == 'table' and header.err
  found[4] = header
  return hasJob, found, fault
end

local function reportDuplicate(id)
  redis.call('XADD', eventsKey, 'MAXLEN', '~', mostEvents, '*', 'event', 'duplicated', 'jobId', id)
end

local function writeJob(job, id, name, data, options, madeMs)
  redis.call(
    'HMSET', job, 'name', name, 'data', data, 'opts', options, 'timestamp', madeMs, 'delay', 0, 'priority', 0
  )
  redis.call('XADD', eventsKey, '*', 'event', 'added', 'jobId', id, 'name', name)
  redis.call('XADD', eventsKey, 'MAXLEN', '~', mostEvents, '*', 'event', 'waiting', 'jobId', id)
end

local answers, added, at = {}, {}, 5
for nth = 1, count do
  local id, name, data, options, madeMs, form = unpack(ARGV, at, at + 5)
  local input = nil
  at = at + 6
  if form ~= '-' then
    input = ARGV[at]
    at = at + 1
  end
  local job, output, inputKey = jobPrefix .. id, outputPrefix .. id, inputPrefix .. id
  local hasJob, found, fault = look(job, output)
  if hasJob or fault then
    if form == 'l' then
      redis.call('UNLINK', input)
    end
    if not fault then
      reportDuplicate(id)
    end
  elseif form == 'l' and redis.pcall('RENAME', input, inputKey).err then
    fault = 'not-staged'
  else
    if form == 'l' then
      redis.call('PERSIST', inputKey)
    elseif form == 's' then
      redis.call('SET', inputKey, input)
    end
    if found and #found[4] > 6 and isTaken(found[4]) then
      redis.call('DEL', output)
    end
    writeJob(job, id, name, data, options, madeMs)
    added[#added + 1] = id
  end
  answers[nth] = fault and { false, false, false, '', fault } or found
end

if #added > 0 then
  redis.call('LPUSH', waitKey, unpack(added))
  local isHeld = isPaused or concurrency and redis.call('LLEN', activeKey) >= tonumber(concurrency)
  if not isHeld then
    redis.call('ZADD', markerKey, 0, '0')
  end
end
return answers
`,
};

export const CLAIM_JOBS: Script = {
  name: 'bullmq/claim-jobs',
  sha: 'ba84a7aa173995fac1015b8ea429bc53974f198c',
  keyCount: 11,
  lua: `-- Claims many jobs at once, each as BullMQ's moveToActive would claim it.
--
-- Runs: by a worker for all claims that it asks for in one turn of its event loop, up to 32 a call
-- KEYS[1] wait: list of ids that wait without a place in line
-- KEYS[2] active: list of claimed ids
-- KEYS[3] prioritized: sorted set of ids by their place in line
-- KEYS[4] events: stream of what happened
-- KEYS[5] stalled: as moveToActive's, not used
-- KEYS[6] limiter: as moveToActive's, not used
-- KEYS[7] delayed: sorted set of ids that wait for their time
-- KEYS[8] paused: as moveToActive's, not used
-- KEYS[9] meta: hash with the settings of the queue
-- KEYS[10] pc: counter of prioritized jobs
-- KEYS[11] marker: sorted set that idle workers wait for
-- ARGV[1] jobs: what keys of jobs begin with
-- ARGV[2] now: ms since 1970, by the worker's clock
-- ARGV[3..] of each claim: its options in MessagePack (token, lockDuration, name, limiter)
-- Answers: for each claim what moveToActive would answer, the error that it would meet, or 1 where BullMQ has to be
--   asked itself; then nothing was done
-- Writes: wait, active, prioritized, events, pc, marker; the lock and the record of each claimed job
-- Deletes: pc, when nothing is left in line
--
-- It asks once for all whether the queue is paused, limited, or has delayed jobs that are due. Where it would have to
-- limit, or to let a delayed job go, BullMQ's own script does it.
local waitKey, activeKey, lineKey, eventsKey, delayedKey = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[7]
local metaKey, counterKey, markerKey = KEYS[9], KEYS[10], KEYS[11]
local jobPrefix, now, wanted = ARGV[1], ARGV[2], #ARGV - 2
local answers = {}

local meta = redis.call('HMGET', metaKey, 'paused', 'concurrency', 'max')
local isPaused, concurrency, mostInTime = meta[1], meta[2], meta[3]
-- BullMQ's scores of delayed jobs are milliseconds times 4096, plus a counter.
local delayed = tonumber(redis.call('ZRANGE', delayedKey, 0, 0, 'WITHSCORES')[2])
local isDue = delayed and delayed <= (now + 1) * 0x1000 - 1
if isDue or concurrency or mostInTime or cmsgpack.unpack(ARGV[3])['limiter'] then
  for at = 1, wanted do
    answers[at] = 1
  end
  return answers
end

-- Those without a place first, as BullMQ does; an id that begins with "0:" is an old marker, no job.
local function takeIds()
  local ids = {}
  while #ids < wanted do
    local id = redis.call('RPOPLPUSH', waitKey, activeKey)
    if id and string.sub(id, 1, 2) == '0:' then
      redis.call('LREM', activeKey, 1, id)
      id = redis.call('RPOPLPUSH', waitKey, activeKey)
    end
    if not id then
      break
    end
    ids[#ids + 1] = id
  end
  if #ids == wanted then
    return ids
  end
  local placed, first = redis.call('ZPOPMIN', lineKey, wanted - #ids), #ids + 1
  for at = 1, #placed, 2 do
    ids[#ids + 1] = placed[at]
  end
  if #placed > 0 then
    redis.call('LPUSH', activeKey, unpack(ids, first))
  end
  if #ids < wanted then
    redis.call('DEL', counterKey)
  end
  return ids
end

local function begin(id, options)
  local job = jobPrefix .. id
  if options['token'] ~= '0' then
    redis.call('SET', job .. ':lock', options['token'], 'PX', options['lockDuration'])
  end
  redis.call('XADD', eventsKey, '*', 'event', 'active', 'jobId', id, 'prev', 'waiting')
  local fields = { 'processedOn', now }
  if options['name'] then
    fields = { 'processedOn', now, 'pb', options['name'] }
  end
  local written = redis.pcall('HSET', job, unpack(fields))
  if type(written) == 'table' then
    return written
  end
  local counted = redis.pcall('HINCRBY', job, 'ats', 1)
  if type(counted) == 'table' then
    return counted
  end
  return { redis.call('HGETALL', job), id, 0, 0 }
end

local ids = isPaused and {} or takeIds()
local nothing = { 0, 0, 0, delayed and not isPaused and delayed / 0x1000 or 0 }
for at = 1, wanted do
  answers[at] = ids[at] and begin(ids[at], cmsgpack.unpack(ARGV[2 + at])) or nothing
end
if #ids > 0 then
  redis.call('ZADD', markerKey, 0, '0')
end
return answers
`,
};

export const COMPLETE_JOBS: Script = {
  name: 'bullmq/complete-jobs',
  sha: 'c2dfdab4888f242fa4b907c5741c70868ede8f5b',
  keyCount: 0,
  lua: `#!lua flags=allow-oom
-- Completes claimed jobs that are plain, many at once, each as BullMQ's moveToFinished would.
--
-- Runs: by a worker for all jobs that it completes in one turn of its event loop, or that may wait for each other, up
--   to 32 a call
-- KEYS[1] active: list of claimed ids
-- KEYS[2] stalled: set of ids that a check for lost leases looks at
-- KEYS[3] completed: sorted set of ids by when they completed
-- KEYS[4] events: stream of what happened
-- KEYS[5] meta: hash with the settings of the queue
-- KEYS[6] wait: list of ids that wait without a place in line
-- KEYS[7] prioritized: sorted set of ids by their place in line
-- KEYS[8..] of each job: its record and its lock
-- ARGV[1] jobs: what keys of jobs begin with
-- ARGV[2] now: ms since 1970, by the worker's clock
-- ARGV[3] kept: how many completed jobs stay
-- ARGV[4..] of each job: id, the claim's token, return value as JSON
-- Answers: for each job 0, or the negative code of BullMQ's moveToFinished (-1 no such job, -2 no lock, -3 not active,
--   -6 another's lock), or 1 where it is not plain and nothing was done
-- Writes: active, stalled, completed, events, meta; the record of each completed job
-- Deletes: the lock of each completed job; the oldest completed jobs beyond those that stay, with what belongs to them
--
-- A job is plain that has no parent, no children and stands for no other one. What a key of the wrong kind could stop
-- is looked at first, because a script that ends half-way leaves what it wrote.
local NOT_PLAIN, NO_JOB, NO_LOCK, NOT_ACTIVE, OTHER_LOCK = 1, -1, -2, -3, -6
local DEFAULT_MOST_EVENTS = 10000
-- So many are removed beyond as many as are added: 100 take the server a millisecond or two.
local REMOVED_AT_ONCE = 100
local PARTS = { '', ':logs', ':dependencies', ':processed', ':failed', ':unsuccessful' }

local activeKey, stalledKey, completedKey, eventsKey, metaKey = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local waitKey, lineKey = KEYS[6], KEYS[7]
local jobPrefix, now, kept = ARGV[1], ARGV[2], tonumber(ARGV[3])

local mostEvents = redis.call('HGET', metaKey, 'opts.maxLenEvents')
if not mostEvents then
  mostEvents = DEFAULT_MOST_EVENTS
  redis.call('HSET', metaKey, 'opts.maxLenEvents', mostEvents)
end
redis.call('XTRIM', eventsKey, 'MAXLEN', '~', mostEvents)
redis.call('ZCARD', completedKey)

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
  if found.err or found[3] or found[4] or found[5] then
    return NOT_PLAIN
  end
  local started, made = found[1], found[2]
  if not started and redis.call('EXISTS', job) == 0 then
    return NO_JOB
  end
  if made and not string.find(made, '^%d+$') then
    return NOT_PLAIN
  end
  if areParents and redis.call('EXISTS', children[2 * at - 1], children[2 * at]) > 0 then
    return NOT_PLAIN
  end
  if holders[at] ~= token then
    return holders[at] and OTHER_LOCK or NO_LOCK
  end
  local wasActive = redis.call('LREM', activeKey, -1, id) > 0
  ids[#ids + 1] = id
  taken[#taken + 1] = locks[at]
  if not wasActive then
    return NOT_ACTIVE
  end
  redis.call('HSET', job, 'atm', (tonumber(made) or 0) + 1, 'returnvalue', value, 'finishedOn', now)
  redis.call('XADD', eventsKey, '*', 'event', 'completed', 'jobId', id, 'returnvalue', value, 'prev', 'active')
  places[#places + 1] = now
  places[#places + 1] = id
  return 0
end

-- A job whose parent still counts on it stays.
local function isWanted(job)
  local parent = redis.pcall('HGET', job, 'parentKey')
  return type(parent) == 'string' and redis.call('SISMEMBER', parent .. ':dependencies', job) == 1
end

local function removeOldest(count)
  local old, keys = {}, {}
  for _, id in ipairs(redis.call('ZRANGE', completedKey, 0, count - 1)) do
    local job = jobPrefix .. id
    if not isWanted(job) then
      old[#old + 1] = id
      for _, part in ipairs(PARTS) do
        keys[#keys + 1] = job .. part
      end
    end
  end
  if #old > 0 then
    redis.call('UNLINK', unpack(keys))
    redis.call('ZREM', completedKey, unpack(old))
  end
end

local answers = {}
for at = 1, #locks do
  answers[at] = complete(at, KEYS[6 + 2 * at], ARGV[1 + 3 * at], ARGV[2 + 3 * at], ARGV[3 + 3 * at])
end
if #ids == 0 then
  return answers
end
redis.call('DEL', unpack(taken))
redis.pcall('SREM', stalledKey, unpack(ids))
if #places == 0 then
  return answers
end
redis.call('ZADD', completedKey, unpack(places))

local excess = redis.call('ZCARD', completedKey) - kept
if excess > 0 then
  removeOldest(math.min(excess, #ids + REMOVED_AT_ONCE))
end
local isIdle = redis.call('LLEN', waitKey) == 0 and redis.call('LLEN', activeKey) == 0
if isIdle and redis.call('ZCARD', lineKey) == 0 then
  redis.call('XADD', eventsKey, '*', 'event', 'drained')
end
return answers
`,
};

export const FAIL_WAITING_JOB: Script = {
  name: 'bullmq/fail-waiting-job',
  sha: 'faf15f2efc551e4b2a8c5f73d1bdc0cd11cb6d54',
  keyCount: 7,
  lua: `#!lua flags=allow-oom
-- Fails a job that nobody has claimed, as BullMQ's moveToFinished fails a claimed one; says where one is that does not
-- wait.
--
-- Runs: by whoever cancels a job that waits, and by a repair for a job whose record is damaged
-- KEYS[1] job: its record
-- KEYS[2] wait: list of ids that wait without a place in line
-- KEYS[3] prioritized: sorted set of ids by their place in line
-- KEYS[4] delayed: sorted set of ids that wait for their time
-- KEYS[5] waiting-children: sorted set of ids that wait for a child
-- KEYS[6] failed: sorted set of ids by when they failed
-- KEYS[7] events: stream of what happened
-- ARGV[1] id: of the job
-- ARGV[2] reason: why it fails
-- ARGV[3] jobs: what keys of jobs begin with
-- ARGV[4] kept: how many failed jobs stay
-- Answers: "failed" and the job's data, or one of "unknown", "finished", "waiting-children" and "active"
-- Writes: wait, prioritized, delayed, failed, events; failedReason and finishedOn of the record
-- Deletes: a few of the oldest failed jobs beyond those that stay, with what belongs to them
--
-- The failed ones are trimmed in steps. Those with a parent are left to a worker, because BullMQ's own trimming lets
-- the parent go on, and what is no record is left to a repair. LREM walks the list, which holds only jobs that plain
-- producers added without a priority.
-- The server's clock in whole milliseconds since 1970: what several machines write is compared by one clock.
local function serverClockMs()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- 100 records take the server 2 ms. All at once, as a worker's next failure trims what is left: 2.3 s for 100,000
-- (Valkey 9.1 on a busy machine, 2026-11).
local TRIM_STEP = 100
local MOST_EVENTS = 1000

local jobKey, waitKey, lineKey, delayedKey, parentsKey = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local failedKey, eventsKey = KEYS[6], KEYS[7]
local id, reason, jobPrefix, kept = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

if redis.call('EXISTS', jobKey) == 0 then
  return { 'unknown' }
end
if redis.call('HEXISTS', jobKey, 'finishedOn') == 1 then
  return { 'finished' }
end
if redis.call('ZSCORE', parentsKey, id) then
  return { 'waiting-children' }
end
local waited = redis.call('ZREM', lineKey, id) + redis.call('ZREM', delayedKey, id)
if waited == 0 then
  waited = redis.call('LREM', waitKey, 1, id)
end
if waited == 0 then
  return { 'active' }
end

local now = serverClockMs()
redis.call('HSET', jobKey, 'failedReason', reason, 'finishedOn', now)
redis.call('ZADD', failedKey, now, id)

local function trim(count)
  for _, old in ipairs(redis.call('ZRANGE', failedKey, 0, count - 1)) do
    local job = jobPrefix .. old
    if redis.pcall('HEXISTS', job, 'parentKey') == 0 then
      redis.call(
        'UNLINK', job, job .. ':logs', job .. ':dependencies', job .. ':processed', job .. ':failed',
        job .. ':unsuccessful'
      )
      redis.call('ZREM', failedKey, old)
    end
  end
end
local excess = redis.call('ZCARD', failedKey) - kept
if excess > 0 then
  trim(math.min(excess, TRIM_STEP))
end
redis.call(
  'XADD', eventsKey, 'MAXLEN', '~', MOST_EVENTS, '*', 'event', 'failed', 'jobId', id, 'failedReason', reason, 'prev',
  'waiting'
)
return { 'failed', redis.call('HGET', jobKey, 'data') }
`,
};

export const FIND_CLAIM: Script = {
  name: 'bullmq/find-claim',
  sha: 'c8a1042093198108648200d5fa8ab569c9cd1973',
  keyCount: 1,
  lua: `#!lua flags=allow-oom
-- Finds the job that a token has claimed.
--
-- Runs: by a worker whose claim took a job and could not say which, because its record cannot be read
-- KEYS[1] active: list of claimed ids, the newest first
-- ARGV[1] jobs: what keys of jobs begin with
-- ARGV[2] token: of the claim
-- Answers: the id, or false
-- Writes: nothing
-- Deletes: nothing
for _, id in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  if redis.call('GET', ARGV[1] .. id .. ':lock') == ARGV[2] then
    return id
  end
end
return false
`,
};

export const REPAIR_RECORD: Script = {
  name: 'bullmq/repair-record',
  sha: 'f949e535a07f5a8679180fd2cbc85ff0817af548',
  keyCount: 1,
  lua: `#!lua flags=allow-oom
-- Makes the record of a job readable: each damaged field gets a stand-in, and what it held is kept beside it.
--
-- Runs: by a worker that claimed a job whose record cannot be read, and by a repair
-- KEYS[1] job: its record
-- ARGV[1] most: bytes of a damaged field that are kept
-- ARGV[2] reason: why the job must fail, or nothing
-- ARGV[3] kept: what fields that keep damaged ones begin with
-- ARGV[4..] of each field: its name, what was found, its stand-in, and 1 if something was found
-- Answers: 1, or 0 when there is no such record
-- Writes: the record
-- Deletes: a damaged field without a stand-in
--
-- A field that has changed since it was looked at is left alone. BullMQ reads \`defa\` whenever the job is claimed, so
-- that the job fails by whoever claims it next, should this worker die now.
local jobKey, most, reason, kept = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]
if redis.call('TYPE', jobKey).ok ~= 'hash' then
  return 0
end
if reason ~= '' then
  redis.call('HSET', jobKey, 'defa', reason)
end
for at = 4, #ARGV, 4 do
  local field, was, standIn, wasThere = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3] == '1'
  local is = redis.call('HGET', jobKey, field)
  if wasThere and is == was then
    redis.call('HSET', jobKey, kept .. field, string.sub(was, 1, most), field, standIn)
    if standIn == '' then
      redis.call('HDEL', jobKey, field)
    end
  elseif not wasThere and not is then
    redis.call('HSET', jobKey, field, standIn)
  end
end
return 1
`,
};
