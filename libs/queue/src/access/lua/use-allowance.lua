#!lua flags=allow-oom
-- Takes from what a key of an HTTP caller may use a minute, or says how long to wait.
--
-- Runs: by HTTP before a request of a limited key becomes jobs, and once its tokens are known
-- KEYS[1] allowance: hash of what is left of each limit, and of when that was so
-- ARGV[1] asked: 1 where nothing is taken unless something is left of every limit, 0 where it is taken in any case
-- ARGV[2] requests: how many a minute, 0 for no limit
-- ARGV[3] texts: the same
-- ARGV[4] tokens: the same
-- ARGV[5] used requests: how many to take
-- ARGV[6] used texts: the same
-- ARGV[7] used tokens: the same
-- Answers: the wait in milliseconds, 0 where it was taken; then what is left of requests, texts and tokens
-- Writes: allowance
-- Deletes: nothing
--
-- Token buckets: each fills at its limit a minute and holds a minute's worth. A request may take more than there is
-- left and leave less than nothing, which fills up first: so one with more texts than a minute's worth is answered
-- once, and tokens, which are known afterwards, are counted all the same.
-- @include "../../redis/lua/includes/server-clock.lua"
local MINUTE_MS = 60000
local allowance, isAsked = KEYS[1], ARGV[1] == '1'
local now = serverClockMs()
local found = redis.call('HMGET', allowance, 'at', 'requests', 'texts', 'tokens')
-- a clock that was set back fills nothing, and does not stop the filling
local passedMs = math.max(0, now - (tonumber(found[1]) or now))

local left, waitMs, untilFullMs = {}, 0, MINUTE_MS
for kind = 1, 3 do
  local limit = tonumber(ARGV[1 + kind])
  left[kind] = math.min(limit, (tonumber(found[1 + kind]) or limit) + passedMs * limit / MINUTE_MS)
  if limit > 0 and left[kind] < 1 then
    waitMs = math.max(waitMs, math.ceil((1 - left[kind]) * MINUTE_MS / limit))
  end
end
if not isAsked then
  waitMs = 0
end
for kind = 1, 3 do
  local limit = tonumber(ARGV[1 + kind])
  if limit > 0 and waitMs == 0 then
    left[kind] = left[kind] - tonumber(ARGV[4 + kind])
  end
  if limit > 0 then
    untilFullMs = math.max(untilFullMs, math.ceil((limit - left[kind]) * MINUTE_MS / limit))
  end
end
redis.call('HSET', allowance, 'at', now, 'requests', left[1], 'texts', left[2], 'tokens', left[3])
redis.call('PEXPIRE', allowance, untilFullMs)
return { waitMs, math.floor(left[1]), math.floor(left[2]), math.floor(left[3]) }
