#!lua flags=allow-oom
-- Looks whether the server's clock was set back, and shortens what would last too long by it.
--
-- Runs: by each worker every second or two for its lane, and by a repair
-- KEYS[1] clock: the latest time at which this was looked at, ms since 1970
-- KEYS[2] active: list of claimed ids
-- KEYS[3] stalled-check: is there while no check for lost leases is due
-- KEYS[4] limiter: counts jobs of a time, where the queue has a limit
-- KEYS[5] meta: hash with the settings of the queue
-- ARGV[1] jobs: what keys of jobs begin with
-- ARGV[2] interval: from one check for lost leases to the next, ms
-- ARGV[3] lease: longest that a worker may have whose lock tokens do not tell it, ms
-- ARGV[4] thorough: 1 to look at every lock, whatever the clock did
-- Answers: the server's time in ms, by how many ms the clock went back, and how many locks were shortened
-- Writes: clock; the time to live of limiter and of locks
-- Deletes: stalled-check, where it would last for longer than an interval
--
-- Times to live are absolute on the server: of a clock that goes back by two hours, every lock of a worker that died
-- lasts for two hours more. A token ends in "@" and its lease; locks of workers that live are renewed by them.
-- @include "../../redis/lua/includes/server-clock.lua"

-- A clock that is trimmed goes back by less.
local STEP_MS = 500
local clockKey, activeKey, checkKey, limiterKey, metaKey = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local jobPrefix, intervalMs, longestLeaseMs, isThorough = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'

local now = serverClockMs()
local seen = tonumber(redis.call('GET', clockKey) or now)
local backMs = math.max(0, seen - now)
redis.call('SET', clockKey, string.format('%.0f', now))

local function lastsTooLong(key, mostMs)
  local leftMs = redis.call('PTTL', key)
  return leftMs == -1 or leftMs > mostMs
end

if lastsTooLong(checkKey, intervalMs) then
  redis.call('DEL', checkKey)
end
local limitMs = tonumber(redis.call('HGET', metaKey, 'duration'))
if limitMs and lastsTooLong(limiterKey, limitMs) then
  redis.call('PEXPIRE', limiterKey, limitMs)
end

-- Of a lock that was set before the step, what is left of its lease.
local function shorten(lock)
  local leftMs = redis.call('PTTL', lock)
  local token = redis.call('GET', lock)
  local leaseMs = tonumber(string.match(token, '@(%d+)$')) or longestLeaseMs
  if leftMs ~= -1 and leftMs <= leaseMs then
    return false
  end
  local restMs = leftMs == -1 and leaseMs or math.min(leaseMs, math.max(1, leftMs - backMs))
  redis.call('PEXPIRE', lock, restMs)
  return true
end

local shortened = 0
if isThorough or backMs >= STEP_MS then
  for _, id in ipairs(redis.call('LRANGE', activeKey, 0, -1)) do
    local lock = jobPrefix .. id .. ':lock'
    if redis.call('TYPE', lock).ok == 'string' and shorten(lock) then
      shortened = shortened + 1
    end
  end
end
return { string.format('%.0f', now), backMs >= STEP_MS and backMs or 0, shortened }
