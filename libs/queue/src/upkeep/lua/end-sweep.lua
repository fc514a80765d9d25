#!lua flags=allow-oom
-- Ends a sweep, and says when it was.
--
-- Runs: by the janitor that swept
-- KEYS[1] lock: holds the token of the janitor that sweeps
-- KEYS[2] seen: sorted set of inputs by when they were first seen without a job; under the empty name the last sweep
-- ARGV[1] token: of this sweep
-- ARGV[2] now: ms since 1970, by the server's clock
-- ARGV[3] interval: from one sweep to the next, ms
-- Answers: 1, or 0 when the lock is not ours any more
-- Writes: seen
-- Deletes: the lock; from seen what was not seen again for five intervals, because it is gone
local FORGOTTEN_AFTER = 5
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', ARGV[2] - FORGOTTEN_AFTER * ARGV[3])
redis.call('ZADD', KEYS[2], ARGV[2], '')
return redis.call('DEL', KEYS[1])
