-- Adds jobs that just wait, with their inputs, and says what was found under each id before.
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
-- @include "../../redis/lua/includes/result-header.lua"
local DEFAULT_MOST_EVENTS = 10000

local waitKey, metaKey, idKey, activeKey, eventsKey, markerKey = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local jobPrefix, inputPrefix, outputPrefix, count = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

-- A key of another type would stop the script after its first writes.
redis.call('LLEN', waitKey)
redis.call('LLEN', activeKey)
redis.call('ZCARD', markerKey)
redis.call('XLEN', eventsKey)
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
