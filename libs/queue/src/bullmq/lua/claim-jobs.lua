-- Claims many jobs at once, each as BullMQ's moveToActive would claim it.
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
-- ARGV[2] now: ms since 1970, by the worker's clock; with "b" behind it for bulk jobs alone
-- ARGV[3..] of each claim: its options in MessagePack (token, lockDuration, name, limiter)
-- Answers: for each claim what moveToActive would answer, the error that it would meet, or 1 where BullMQ has to be
--   asked itself; then nothing was done
-- Writes: wait, active, prioritized, delayed, events, pc, marker; the lock and the record of each claimed job; what is
--   set aside
-- Deletes: pc, when nothing is left in line; ids that no job may have, from the list that they were in
--
-- It asks once for all whether the queue is paused, limited, or has delayed jobs that are due. Where it would have to
-- limit, or to let a delayed job go, BullMQ's own script does it. Ids under which the queue keeps something of its own
-- are set aside before a key is touched.
--
-- Where bulk jobs alone are wanted, those among the first 256 in line are taken, whoever is before them; what has no
-- place yet, or a place that BullMQ gave it, is nobody's then. Places of interactive jobs are odd.
-- @include "../../redis/lua/includes/set-aside.lua"
local waitKey, activeKey, lineKey, eventsKey, delayedKey = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[7]
local metaKey, counterKey, markerKey = KEYS[9], KEYS[10], KEYS[11]
local jobPrefix, wanted = ARGV[1], #ARGV - 2
local now, bulk = string.match(ARGV[2], '^(%d+)(b?)$')
local isBulkAlone = bulk == 'b'
local answers = {}
-- Delayed jobs that BullMQ's script lets go in one call.
local MOST_PROMOTED = 1000
local MOST_LOOKED_AT = 256

local function setReservedAside(ids, remove)
  local isOne = false
  for _, id in ipairs(ids) do
    if reservedKind(id) then
      remove(id)
      setAside(jobPrefix, id)
      isOne = true
    end
  end
  return isOne
end

local function fromWait(id)
  redis.call('LREM', waitKey, 0, id)
end
local function fromDelayed(id)
  redis.call('ZREM', delayedKey, id)
end

while setReservedAside(redis.call('LRANGE', waitKey, -wanted, -1), fromWait) do
end

local meta = redis.call('HMGET', metaKey, 'paused', 'concurrency', 'max')
local isPaused, concurrency, mostInTime = meta[1], meta[2], meta[3]
-- BullMQ's scores of delayed jobs are milliseconds times 4096, plus a counter.
local delayed = tonumber(redis.call('ZRANGE', delayedKey, 0, 0, 'WITHSCORES')[2])
local isDue = delayed and delayed <= (now + 1) * 0x1000 - 1
if isDue then
  local due = redis.call('ZRANGEBYSCORE', delayedKey, '-inf', (now + 1) * 0x1000 - 1, 'LIMIT', 0, MOST_PROMOTED)
  setReservedAside(due, fromDelayed)
end
if isDue or concurrency or mostInTime or cmsgpack.unpack(ARGV[3])['limiter'] then
  for at = 1, wanted do
    answers[at] = 1
  end
  return answers
end

local function takeBulkIds()
  local line, ids = redis.call('ZRANGE', lineKey, 0, MOST_LOOKED_AT - 1, 'WITHSCORES'), {}
  for at = 1, #line, 2 do
    local id, place = line[at], tonumber(line[at + 1])
    if #ids < wanted and place < 0 and place % 2 == 0 and not reservedKind(id) then
      ids[#ids + 1] = id
    end
  end
  if #ids > 0 then
    redis.call('ZREM', lineKey, unpack(ids))
    redis.call('LPUSH', activeKey, unpack(ids))
  end
  return ids
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
    if reservedKind(placed[at]) then
      setAside(jobPrefix, placed[at])
    else
      ids[#ids + 1] = placed[at]
    end
  end
  if #ids >= first then
    redis.call('LPUSH', activeKey, unpack(ids, first))
  end
  if #ids < wanted then
    redis.call('DEL', counterKey)
  end
  return ids
end

local nothing = { 0, 0, 0, delayed and not isPaused and delayed / 0x1000 or 0 }
local function isForeign(fault)
  return string.find(fault.err, 'WRONGTYPE', 1, true)
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
  if type(written) == 'table' and isForeign(written) then
    redis.call('DEL', job .. ':lock')
    redis.call('LREM', activeKey, 1, id)
    setAside(jobPrefix, id)
    return nothing
  end
  if type(written) == 'table' then
    return written
  end
  local counted = redis.pcall('HINCRBY', job, 'ats', 1)
  if type(counted) == 'table' then
    return counted
  end
  return { redis.call('HGETALL', job), id, 0, 0 }
end

local ids = isPaused and {} or isBulkAlone and takeBulkIds() or takeIds()
for at = 1, wanted do
  answers[at] = ids[at] and begin(ids[at], cmsgpack.unpack(ARGV[2 + at])) or nothing
end
if #ids > 0 then
  redis.call('ZADD', markerKey, 0, '0')
end
return answers
