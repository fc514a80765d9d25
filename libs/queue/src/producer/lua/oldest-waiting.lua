#!lua flags=no-writes
-- Says for how long the job waits that waits longest, of each class.
--
-- Runs: by whoever asks how full a queue is (`shoal queue counts`, `shoal fleet status`, HTTP's metrics)
-- KEYS[1] wait: list of ids that wait without a place in line
-- KEYS[2] paused: the same of a queue that an older BullMQ has paused
-- KEYS[3] prioritized: sorted set of ids by their place in line
-- KEYS[4] order: sorted set with the virtual time under the empty name
-- ARGV[1] jobs: what keys of jobs begin with
-- ARGV[2] lead: tokens by which a bulk tenant that was idle may go ahead
-- ARGV[3] interactive: most rows of a job that is interactive unless it says otherwise
-- ARGV[4] page: so many jobs are looked at in each place
-- Answers: ms of interactive jobs and of bulk jobs, 0 where none waits
-- Writes: nothing
-- Deletes: nothing
--
-- Jobs of a flow lie in line in the order in which they came, and the first of each flow that has waited for long lies
-- close behind the virtual time; before it lie interactive jobs and those of tenants with a lead. So a page from the
-- head, one from where leads begin and one from the virtual time on have the oldest, unless hundreds of tenants wait,
-- or one with very short jobs among others with very long ones: then the answer may be a little too small. A job waits
-- since it was added, since its delay was over, or since it was run again by hand.
-- @include "../../redis/lua/includes/server-clock.lua"
local UNITS_PER_TOKEN = 16
local MOST_DECODED_BYTES = 4096
local waitKey, pausedKey, lineKey, orderKey = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local jobPrefix, lead, interactiveRows, page = ARGV[1], ARGV[2] * UNITS_PER_TOKEN, tonumber(ARGV[3]), tonumber(ARGV[4])
local now = serverClockMs()
local oldest = { i = now, b = now }
local seen = {}

local function delayIn(options)
  if not string.find(options, '"delay"', 1, true) then
    return 0
  end
  local isJson, parsed = pcall(cjson.decode, options)
  return isJson and type(parsed) == 'table' and tonumber(parsed.delay) or 0
end

local function classOf(data)
  if #data > MOST_DECODED_BYTES then
    return string.find(data, '"class"%s*:%s*"interactive"') and 'i' or 'b'
  end
  local isJson, job = pcall(cjson.decode, data)
  if not isJson or type(job) ~= 'table' then
    return 'i'
  end
  if job.class == 'interactive' or job.class == 'bulk' then
    return job.class == 'bulk' and 'b' or 'i'
  end
  local rows = type(job.texts) == 'table' and #job.texts or type(job.input) == 'table' and tonumber(job.input.rows) or 1
  return rows <= interactiveRows and 'i' or 'b'
end

local function look(id, class)
  if seen[id] then
    return
  end
  seen[id] = true
  local found = redis.pcall('HMGET', jobPrefix .. id, 'timestamp', 'opts', 'shoalSince', class and 'v' or 'data')
  if found.err or not found[1] then
    return
  end
  local since = tonumber(found[3]) or (tonumber(found[1]) or now) + delayIn(found[2] or '')
  local own = class or classOf(found[4] or '')
  oldest[own] = math.min(oldest[own], since)
end

local function lookAtPlaces(places)
  for at = 1, #places, 2 do
    local place = tonumber(places[at + 1])
    if place < 0 then
      look(places[at], place % 2 == 1 and 'i' or 'b')
    end
  end
end

local function placesFrom(place)
  return redis.call(
    'ZRANGEBYSCORE', lineKey, string.format('%.0f', place), '(0', 'WITHSCORES', 'LIMIT', 0, page
  )
end

lookAtPlaces(redis.call('ZRANGE', lineKey, 0, page - 1, 'WITHSCORES'))
local virtual = tonumber(redis.call('ZSCORE', orderKey, '') or nil)
if virtual then
  lookAtPlaces(placesFrom(virtual - lead))
  lookAtPlaces(placesFrom(virtual))
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', lineKey, 0, '+inf', 'LIMIT', 0, page)) do
  look(id)
end
for _, list in ipairs({ waitKey, pausedKey }) do
  for _, id in ipairs(redis.call('LRANGE', list, -page, -1)) do
    look(id)
  end
end
return { now - oldest.i, now - oldest.b }
