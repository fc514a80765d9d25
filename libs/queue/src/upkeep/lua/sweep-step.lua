#!lua flags=allow-oom
-- Looks at some keys of a queue: takes inputs that have had no job for long, and lets results age that would stay.
--
-- Runs: by the janitor that sweeps, until it has seen every key
-- KEYS[1] lock: holds the token of the janitor that sweeps
-- KEYS[2] seen: sorted set of inputs by when they were first seen without a job
-- ARGV[1] token: of this sweep
-- ARGV[2] life: of the lock, ms
-- ARGV[3] now: ms since 1970, by the server's clock
-- ARGV[4] interval: how long an input must have been without a job, ms
-- ARGV[5] cursor: where to go on
-- ARGV[6] pattern: that keys of inputs and results match
-- ARGV[7] count: keys to look at
-- ARGV[8] results: what keys of results begin with
-- ARGV[9] life: what a result gets that has no time to live, ms
-- ARGV[10..] of each kind of inputs: what their keys begin with, how many beginnings of job keys follow, and these
-- Answers: where to go on, inputs taken, their bytes, and results that had no time to live; false when the lock is not
--   ours any more
-- Writes: the lock's time to live, seen, the time to live of a result that had none
-- Deletes: inputs that have had no job for an interval
local lockKey, seenKey, token, lockMs = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local now, interval = tonumber(ARGV[3]), tonumber(ARGV[4])
local cursor, pattern, count, outputPrefix, strayMs = ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]

if redis.call('GET', lockKey) ~= token then
  return false
end
redis.call('PEXPIRE', lockKey, lockMs)

local function beginsWith(key, prefix)
  return string.sub(key, 1, #prefix) == prefix
end

local function readKinds()
  local kinds, at = {}, 10
  while at <= #ARGV do
    local kind = { prefix = ARGV[at], lanes = {} }
    for lane = at + 2, at + 1 + ARGV[at + 1] do
      kind.lanes[#kind.lanes + 1] = ARGV[lane]
    end
    kinds[#kinds + 1] = kind
    at = at + 2 + #kind.lanes
  end
  return kinds
end

local function isFinished(job)
  return redis.call('TYPE', job).ok == 'hash' and redis.call('HEXISTS', job, 'finishedOn') == 1
end

local function hasJob(kind, id)
  for _, lane in ipairs(kind.lanes) do
    local job = lane .. id
    if redis.call('EXISTS', job) == 1 and not isFinished(job) then
      return true
    end
  end
  return false
end

local taken, bytes, strays = 0, 0, 0
local function lookAtInput(kind, key)
  local seen = tonumber(redis.call('ZSCORE', seenKey, key))
  if hasJob(kind, string.sub(key, #kind.prefix + 1)) then
    if seen then
      redis.call('ZREM', seenKey, key)
    end
  elseif not seen or now < seen then
    redis.call('ZADD', seenKey, now, key)
  elseif now - seen >= interval then
    bytes = bytes + redis.call('MEMORY', 'USAGE', key, 'SAMPLES', 1)
    redis.call('UNLINK', key)
    redis.call('ZREM', seenKey, key)
    taken = taken + 1
  end
end

local kinds = readKinds()
local page = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count)
for _, key in ipairs(page[2]) do
  if beginsWith(key, outputPrefix) then
    if redis.call('PTTL', key) == -1 then
      strays = strays + redis.call('PEXPIRE', key, strayMs)
    end
  else
    for _, kind in ipairs(kinds) do
      if beginsWith(key, kind.prefix) then
        lookAtInput(kind, key)
      end
    end
  end
end
return { page[1], taken, bytes, strays }
