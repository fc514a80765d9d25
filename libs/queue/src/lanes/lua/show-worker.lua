#!lua flags=allow-oom
-- Shows that a worker is alive, and takes away those whose time is up.
--
-- Runs: by each worker every two seconds, for each of its lanes
-- KEYS[1] workers: sorted set of worker ids by until when they are alive
-- KEYS[2] facts: hash of what each worker says of itself
-- KEYS[3] drained: set of workers that claim nothing
-- ARGV[1] worker: its id
-- ARGV[2] life: how long it is alive from now, ms
-- ARGV[3] facts: JSON, or nothing
-- ARGV[4] drained: how long a drained worker stays drained unseen, ms
-- Answers: nothing
-- Writes: workers, facts
-- Deletes: from workers, facts and drained those whose time is up
--
-- There is no other sweep. Drained ones keep their entry, which nobody sees any more, until they are drained no longer:
-- after an outage everybody's time is up.
-- @include "../../redis/lua/includes/server-clock.lua"
-- Ten times that of this version.
local LONGEST_LIFE_MS = 60000
local workersKey, factsKey, drainedKey = KEYS[1], KEYS[2], KEYS[3]
local worker, lifeMs, facts, drainedMs = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local now = serverClockMs()

-- Who seems to be alive for longer than anybody may be wrote that before the clock was set back.
for _, ghost in ipairs(redis.call('ZRANGEBYSCORE', workersKey, '(' .. now + LONGEST_LIFE_MS, '+inf')) do
  redis.call('ZADD', workersKey, now, ghost)
end
for _, old in ipairs(redis.call('ZRANGEBYSCORE', workersKey, '-inf', now - drainedMs)) do
  redis.call('SREM', drainedKey, old)
end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', workersKey, '-inf', now)) do
  redis.call('HDEL', factsKey, gone)
  if redis.call('SISMEMBER', drainedKey, gone) == 0 then
    redis.call('ZREM', workersKey, gone)
  end
end
redis.call('ZADD', workersKey, now + lifeMs, worker)
if facts ~= '' then
  redis.call('HSET', factsKey, worker, facts)
end
