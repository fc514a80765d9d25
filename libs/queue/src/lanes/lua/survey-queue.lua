#!lua flags=no-writes
-- Tells how many jobs of a queue are in each state, and of those that wait how many are of each class.
--
-- Runs: by the fleet exporter and the dashboard, once for each queue a scrape
-- KEYS[1] wait: list of ids that wait without a place in line
-- KEYS[2] paused: the same of a queue that an older BullMQ has paused
-- KEYS[3] prioritized: sorted set of ids by their place in line
-- KEYS[4] active: list of ids that are claimed
-- KEYS[5] delayed: sorted set of ids that wait for a time
-- KEYS[6] children: sorted set of ids that wait for their child in the CPU lane
-- KEYS[7] completed: sorted set of ids
-- KEYS[8] failed: sorted set of ids
-- KEYS[9] meta: hash of the queue's own settings
-- KEYS[10] load: hash of what all queues have reserved
-- KEYS[11] drain: hash of how much has left the queue
-- KEYS[12] quarantined: list of ids in the quarantine of the queue
-- KEYS[13] line: sorted set of ids in the same quarantine
-- ARGV[1] queue: its name
-- ARGV[2] jobs: what keys of jobs begin with
-- ARGV[3] interactive: most rows of a job that is interactive unless it says otherwise
-- ARGV[4] places: so many are looked at from the head of the line, where interactive jobs are
-- ARGV[5] page: so many jobs without a place are looked at, the next first
-- Answers: interactive jobs and bulk jobs that wait; jobs that are active, delayed, handed over, completed, failed;
--   1 if the queue is paused; rows that are reserved; rows that left; jobs in quarantine
-- Writes: nothing
-- Deletes: nothing
--
-- Places of interactive jobs are odd and lie at the head of the line; what lies behind the places that are looked at
-- counts as bulk. Jobs without a place are counted as those of them that are looked at.
local MOST_DECODED_BYTES = 4096
local waitKey, pausedKey, lineKey = KEYS[1], KEYS[2], KEYS[3]
local queue, jobPrefix, interactiveRows, places, page = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]

local function isInteractive(id)
  local data = redis.pcall('HGET', jobPrefix .. id, 'data')
  if type(data) ~= 'string' then
    return false
  end
  if #data > MOST_DECODED_BYTES then
    return string.find(data, '"class"%s*:%s*"interactive"') ~= nil
  end
  local isJson, job = pcall(cjson.decode, data)
  if not isJson or type(job) ~= 'table' then
    return true
  end
  if job.class == 'interactive' or job.class == 'bulk' then
    return job.class == 'interactive'
  end
  local rows = type(job.texts) == 'table' and #job.texts or type(job.input) == 'table' and tonumber(job.input.rows) or 1
  return rows <= interactiveRows
end

local function countOf(ids)
  local count = 0
  for _, id in ipairs(ids) do
    count = count + (isInteractive(id) and 1 or 0)
  end
  return count
end

local placed = redis.call('ZCOUNT', lineKey, '-inf', '(0')
local interactive = 0
local head = redis.call('ZRANGEBYSCORE', lineKey, '-inf', '(0', 'WITHSCORES', 'LIMIT', 0, places)
for at = 2, #head, 2 do
  interactive = interactive + tonumber(head[at]) % 2
end

-- Of those without a place the last of the list comes next, and those in line behind all others have a priority of
-- their producer's.
local unplaced, seen = 0, {}
for _, list in ipairs({ waitKey, pausedKey }) do
  unplaced = unplaced + redis.call('LLEN', list)
  for _, id in ipairs(redis.call('LRANGE', list, -page, -1)) do
    seen[#seen + 1] = id
  end
end
unplaced = unplaced + redis.call('ZCOUNT', lineKey, 0, '+inf')
for _, id in ipairs(redis.call('ZRANGEBYSCORE', lineKey, 0, '+inf', 'LIMIT', 0, page)) do
  seen[#seen + 1] = id
end
if #seen > 0 then
  interactive = interactive + math.floor(unplaced * countOf(seen) / #seen + 0.5)
end

return {
  interactive,
  placed + unplaced - interactive,
  redis.call('LLEN', KEYS[4]),
  redis.call('ZCARD', KEYS[5]),
  redis.call('ZCARD', KEYS[6]),
  redis.call('ZCARD', KEYS[7]),
  redis.call('ZCARD', KEYS[8]),
  redis.call('HEXISTS', KEYS[9], 'paused'),
  tonumber(redis.call('HGET', KEYS[10], 'rows ' .. queue)) or 0,
  tonumber(redis.call('HGET', KEYS[11], 'rows')) or 0,
  redis.call('LLEN', KEYS[12]) + redis.call('ZCARD', KEYS[13]),
}
