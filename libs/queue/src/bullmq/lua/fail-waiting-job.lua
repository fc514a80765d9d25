#!lua flags=allow-oom
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
-- KEYS[8] cancelled: sorted set of ids that were cancelled, by when
-- ARGV[1] id: of the job
-- ARGV[2] reason: why it fails
-- ARGV[3] jobs: what keys of jobs begin with
-- ARGV[4] kept: how many failed jobs stay
-- Answers: "failed" and the job's data, or one of "unknown", "finished", "waiting-children" and "active"
-- Writes: wait, prioritized, delayed, failed, cancelled, events; failedReason and finishedOn of the record
-- Deletes: the oldest cancelled ids beyond as many; a few of the oldest failed jobs beyond those that stay, with what
--   belongs to them
--
-- The failed ones are trimmed in steps. Those with a parent are left to a worker, because BullMQ's own trimming lets
-- the parent go on, and what is no record is left to a repair. LREM walks the list, which holds only jobs that plain
-- producers added without a priority.
-- @include "../../redis/lua/includes/server-clock.lua"

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
if string.sub(reason, 1, 10) == 'CANCELLED:' then
  redis.call('ZADD', KEYS[8], now, id)
  redis.call('ZREMRANGEBYRANK', KEYS[8], 0, -kept - 1)
end

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
