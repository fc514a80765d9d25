#!lua flags=allow-oom
-- Lets parked jobs go that the worker who calls can read: they wait again.
--
-- Runs: by each worker when it starts and every two seconds, for each of its lanes
-- KEYS[1] parked: sorted set of ids of parked jobs by the version of their format
-- KEYS[2] delayed: sorted set of ids that wait for their time
-- KEYS[3] wait: list of ids without a place
-- KEYS[4] events: stream of what happened
-- KEYS[5] marker: sorted set that idle workers wait for
-- ARGV[1] jobs: what keys of jobs begin with
-- ARGV[2] newest: newest version that the worker reads
-- ARGV[3] most: jobs that are let go in this call
-- Answers: how many were let go
-- Writes: wait, events, marker; the field delay of each job's record
-- Deletes: from parked and delayed those that were let go; the field shoalPlace of their records; from parked a few
--   others that are delayed no longer
--
-- They enter the list before what has no place yet, in the order in which they were added, and get a place as new jobs
-- do: those that they had are of a line that may have been empty since.
local PAGE_JOBS = 100
local parkedKey, delayedKey, waitKey, eventsKey, markerKey = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local jobPrefix, newest, most = ARGV[1], ARGV[2], ARGV[3]

if redis.call('EXISTS', parkedKey) == 0 then
  return 0
end

local function addedMs(id)
  local found = redis.pcall('HGET', jobPrefix .. id, 'timestamp')
  local ms = type(found) == 'string' and tonumber(found)
  return ms and ms >= 0 and ms or 0
end

local known, added = {}, {}
local function isNewer(a, b)
  return added[a] > added[b] or (added[a] == added[b] and a > b)
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', parkedKey, '-inf', newest, 'LIMIT', 0, most)) do
  if redis.call('ZREM', delayedKey, id) == 1 then
    known[#known + 1] = id
    added[id] = addedMs(id)
  end
  redis.call('ZREM', parkedKey, id)
end
table.sort(known, isNewer)
for _, id in ipairs(known) do
  redis.call('RPUSH', waitKey, id)
  redis.pcall('HSET', jobPrefix .. id, 'delay', 0)
  redis.pcall('HDEL', jobPrefix .. id, 'shoalPlace')
  redis.call('XADD', eventsKey, '*', 'event', 'waiting', 'jobId', id, 'prev', 'delayed')
end
for _, id in ipairs(redis.call('ZRANDMEMBER', parkedKey, PAGE_JOBS)) do
  if not redis.call('ZSCORE', delayedKey, id) then
    redis.call('ZREM', parkedKey, id)
  end
end
if #known > 0 then
  redis.call('ZADD', markerKey, 0, '0')
end
return #known
