#!lua flags=allow-oom
-- Moves a key of a queue aside that is of another type than it should be.
--
-- Runs: by a repair, and by a worker that has met such a key
-- KEYS[1] key: of the queue
-- KEYS[2] aside: its new name
-- KEYS[3] noted: sorted set of what was set aside, by when
-- ARGV[1] type: that it should be of; "none" where no key should be
-- ARGV[2] name: under which it is noted
-- ARGV[3] prefix: of all keys
-- ARGV[4] queue: whose key it is
-- ARGV[5] id: that a job has whose record lies there; nothing where no job can
-- Answers: the type that was found where it was moved, else false
-- Writes: the key under its new name, noted; publishes on the reply channel of a job whose record it was
-- Deletes: the key
-- @include "../../redis/lua/includes/server-clock.lua"
-- @include "../../redis/lua/includes/tell-set-aside.lua"
local found = redis.call('TYPE', KEYS[1]).ok
if found == 'none' or found == ARGV[1] then
  return false
end
redis.call('RENAME', KEYS[1], KEYS[2])
redis.call('ZADD', KEYS[3], serverClockMs(), ARGV[2])
if ARGV[5] ~= '' then
  tellSetAside(KEYS[2], ARGV[3], ARGV[4], ARGV[5])
end
return found
