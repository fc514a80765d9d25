#!lua flags=allow-oom
-- Gives back room of jobs that are over and of which nobody said so.
--
-- Runs: by the janitor for a hundred reservations a call
-- KEYS[1] admitted: hash of the reservations of the queue
-- KEYS[2] load: hash of what all queues have reserved
-- KEYS[3] drain: not used
-- ARGV[1] queue: the main queue of the model
-- ARGV[2] jobs: what keys of jobs begin with
-- ARGV[3] results: what keys of results begin with
-- ARGV[4] grace: how old a reservation without a job must be, ms
-- ARGV[5..] of each job: its id
-- Answers: how many reservations of which nothing was left, and how many of these were of results that went unread
-- Writes: admitted, load
-- Deletes: reservations that belong to no job and no unread result
-- @include "includes/release-room.lua"
-- @include "../../redis/lua/includes/server-clock.lua"
local RESERVED_AT = '^%a %d+ %d+ %d+ (%d+)'
-- A result that was taken has its header left, of 32 bytes.
local HEADER_BYTES = 32
local admittedKey, queue, jobPrefix, outputPrefix, graceMs = KEYS[1], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local now = serverClockMs()

local function isOpen(job)
  return redis.call('EXISTS', job) == 1 and redis.call('HEXISTS', job, 'finishedOn') == 0
end

-- Of a reservation that no job stands for; one from the future is of a clock that was set back since, and begins anew.
local function ageOf(id, held)
  local madeAt = tonumber(string.match(held, RESERVED_AT))
  if madeAt <= now then
    return now - madeAt
  end
  local renewed = string.gsub(held, '^(%a %d+ %d+ %d+) %d+', '%1 ' .. string.format('%.0f', now))
  redis.call('HSET', admittedKey, id, renewed)
  return 0
end

-- Once a result was owed nobody but its time to live takes it away before its reader has.
local count, expired = 0, 0
for at = 5, #ARGV do
  local id = ARGV[at]
  local held = redis.call('HGET', admittedKey, id)
  local isOver = held and not isOpen(jobPrefix .. id)
  if isOver and ageOf(id, held) >= graceMs then
    local bytes = redis.call('STRLEN', outputPrefix .. id)
    local hasResult = bytes > HEADER_BYTES
    release(queue, id, not hasResult)
    if not hasResult then
      count = count + 1
    end
    if bytes == 0 and string.sub(held, 1, 1) == 'o' then
      expired = expired + 1
    end
  end
end
settle()
return { count, expired }
