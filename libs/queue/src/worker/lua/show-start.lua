#!lua flags=allow-oom
-- Shows that this start of a worker lives, and tells of other starts under the same name.
--
-- Runs: by each worker when it starts and every two seconds, for each of its lanes
-- KEYS[1] starts: sorted set of starts (what their lock tokens begin with) by until when they live
-- ARGV[1] start: of the worker that calls
-- ARGV[2] name: what the starts of its name begin with
-- ARGV[3] life: how long it lives from now, ms
-- ARGV[4] kept: how long a start that is over is kept, ms
-- Answers: pairs of another start of the name and for how many ms it still lives; negative: since when it is over
-- Writes: starts
-- Deletes: from starts those that have been over for long
--
-- One that is over stays for a while, so that it can be told from one that never said anything.
-- @include "../../redis/lua/includes/server-clock.lua"
local startsKey, start, name, lifeMs, keptMs = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local now = serverClockMs()

redis.call('ZREMRANGEBYSCORE', startsKey, '-inf', string.format('%.0f', now - keptMs))
redis.call('ZADD', startsKey, string.format('%.0f', now + lifeMs), start)
local answer = {}
local all = redis.call('ZRANGE', startsKey, 0, -1, 'WITHSCORES')
for at = 1, #all, 2 do
  if all[at] ~= start and string.sub(all[at], 1, #name) == name then
    answer[#answer + 1] = all[at]
    answer[#answer + 1] = string.format('%.0f', all[at + 1] - now)
  end
end
return answer
