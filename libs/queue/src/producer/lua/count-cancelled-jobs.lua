#!lua flags=no-writes
-- Counts the failed jobs that failed because somebody cancelled them.
--
-- Runs: by whoever asks how full a queue is (`shoal queue counts`, `shoal fleet status`, HTTP's metrics)
-- KEYS[1] cancelled: sorted set of ids that were cancelled, by when; some may be gone, or have ended otherwise since
-- KEYS[2] failed: sorted set of ids by when they failed
-- ARGV[1] jobs: what keys of jobs begin with
-- ARGV[2] most: so many are looked at, the newest
-- Answers: how many
-- Writes: nothing
-- Deletes: nothing
local cancelledKey, failedKey, jobPrefix, most = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local count = 0
for _, id in ipairs(redis.call('ZRANGE', cancelledKey, -most, -1)) do
  local reason = redis.pcall('HGET', jobPrefix .. id, 'failedReason')
  local isCancelled = type(reason) == 'string' and string.sub(reason, 1, 10) == 'CANCELLED:'
  if isCancelled and redis.call('ZSCORE', failedKey, id) then
    count = count + 1
  end
end
return count
