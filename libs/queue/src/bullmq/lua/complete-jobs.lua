#!lua flags=allow-oom
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
