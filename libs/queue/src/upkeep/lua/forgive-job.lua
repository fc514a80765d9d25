#!lua flags=allow-oom
-- Removes from a failed job's record what would make it fail again at once.
--
-- Runs: by `shoal queue retry` for each job
-- KEYS[1] job: its record
-- ARGV[1] mark: the field that marks a cancelled job
-- Answers: how many fields went
-- Writes: shoalSince, since when it waits
-- Deletes: the marks of a cancel, of damage and of stalls; and `progress`
--
-- `progress` has the mark of a hand-over, which would pass for one of the new life, whose attempts begin at 0 again,
-- and bring the old failure as its ending.
-- @include "../../redis/lua/includes/server-clock.lua"
redis.call('HSET', KEYS[1], 'shoalSince', string.format('%.0f', serverClockMs()))
return redis.call('HDEL', KEYS[1], 'defa', 'stc', ARGV[1], 'progress')
