#!lua flags=allow-oom
-- Marks a claimed job as cancelled and tells all workers of its lane.
--
-- Runs: by whoever cancels a job that a worker has
-- KEYS[1] job: its record
-- KEYS[2] cancelled: is there while jobs of the lane may be marked
-- KEYS[3] waiting-children: sorted set of ids that wait for a child
-- ARGV[1] channel: on which workers of the lane hear of cancelled jobs
-- ARGV[2] message: JSON
-- ARGV[3] life: of KEYS[2], ms
-- ARGV[4] id: of the job
-- ARGV[5] mark: the field that marks a cancelled job
-- Answers: "marked", "moved" when it waits for its child in the CPU lane, or "finished"
-- Writes: the mark in the record, KEYS[2]; publishes the message
-- Deletes: nothing
local jobKey, cancelledKey, parentsKey = KEYS[1], KEYS[2], KEYS[3]
local channel, message, lifeMs, id, mark = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if redis.call('EXISTS', jobKey) == 0 or redis.call('HEXISTS', jobKey, 'finishedOn') == 1 then
  return 'finished'
end
if redis.call('ZSCORE', parentsKey, id) then
  return 'moved'
end
redis.call('HSET', jobKey, mark, 1)
redis.call('SET', cancelledKey, 1, 'PX', lifeMs)
redis.call('PUBLISH', channel, message)
return 'marked'
