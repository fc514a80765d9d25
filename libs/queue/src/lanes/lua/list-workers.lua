#!lua flags=no-writes
-- Lists the workers of a lane that are alive.
--
-- Runs: by whoever asks how many workers serve a queue (`shoal queue counts`, a client that waits)
-- KEYS[1] workers: sorted set of worker ids by until when they are alive
-- ARGV: none
-- Answers: the ids of those alive
-- Writes: nothing
-- Deletes: nothing
-- @include "../../redis/lua/includes/server-clock.lua"

-- Who seems to be alive for longer wrote that before the clock was set back.
local LONGEST_LIFE_MS = 60000
local now = serverClockMs()
return redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, now + LONGEST_LIFE_MS)
