#!lua flags=allow-oom
-- Lets one janitor begin a sweep, when it is time for one.
--
-- Runs: by each worker's janitor once an interval
-- KEYS[1] lock: holds the token of the janitor that sweeps
-- KEYS[2] seen: sorted set of inputs by when they were first seen without a job; under the empty name the last sweep
-- ARGV[1] token: of this sweep
-- ARGV[2] life: of the lock, ms
-- ARGV[3] now: ms since 1970, by the server's clock
-- ARGV[4] interval: from one sweep to the next, ms
-- Answers: 1 when it may sweep, else 0
-- Writes: the lock
-- Deletes: a lock that would last for longer than one may
--
-- Not before nine tenths of the interval have passed since the last sweep, whoever did it. A last
-- sweep in the future, and such a lock, are of a clock that was set back since.
local LEAST_SHARE = 0.9
local last = redis.call('ZSCORE', KEYS[2], '')
local passedMs = last and tonumber(ARGV[3]) - tonumber(last)
if passedMs and passedMs >= 0 and passedMs < LEAST_SHARE * tonumber(ARGV[4]) then
  return 0
end
if redis.call('PTTL', KEYS[1]) > tonumber(ARGV[2]) then
  redis.call('DEL', KEYS[1])
end
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return 1
end
return 0
