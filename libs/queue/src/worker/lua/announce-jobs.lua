#!lua flags=allow-oom
-- Tells producers of jobs that ended, one message for each channel, and cleans up after these jobs.
--
-- Runs: by a worker right behind the endings of up to 64 jobs; again for those whose ending the server took later than
--   that; by whoever cancels a job that waits
-- KEYS[1..] of each job: its record, its input and its result
-- ARGV[1] queue: the main queue of the model
-- ARGV[2] certain: 1 when the server has taken these endings, 0 when the records decide
-- ARGV[3..] of each job: "completed" or "failed", id, reply channel or nothing, and the result's time to live in ms, 0
--   to leave it as it is
-- Answers: for each job 1 when it was announced, else 0
-- Writes: the result's time to live; publishes {v, queue, completed, failed} on each reply channel
-- Deletes: the input
--
-- Where the records decide, a job that has not ended that way is left alone. Where the endings are certain, a record
-- may be gone already; one that has not finished belongs to a job that was added again under the same id, maybe while
-- this call waited for a server that was away: then input and result are the new job's, and only the message goes out.
local END_FIELDS = { completed = 'returnvalue', failed = 'failedReason' }
local queue, isCertain = ARGV[1], ARGV[2] == '1'
local told, channels = {}, {}

local function hasEnded(job, outcome)
  local found = redis.pcall('HMGET', job, 'finishedOn', END_FIELDS[outcome])
  return not found.err and found[1] and found[2]
end

-- What is no record at all counts as well: it is for the janitor to judge.
local function isOpen(job)
  return redis.call('EXISTS', job) == 1 and redis.pcall('HEXISTS', job, 'finishedOn') ~= 1
end

local function cleanUp(input, output, ttl)
  redis.call('UNLINK', input)
  if ttl ~= '0' then
    redis.call('PEXPIRE', output, ttl)
  end
end

local function addToMessage(channel, outcome, id)
  if channel == '' then
    return
  end
  channels[channel] = channels[channel] or { v = 1, queue = queue }
  local message = channels[channel]
  message[outcome] = message[outcome] or {}
  table.insert(message[outcome], id)
end

for at = 1, #KEYS / 3 do
  local job, input, output = KEYS[3 * at - 2], KEYS[3 * at - 1], KEYS[3 * at]
  local outcome, id, channel, ttl = ARGV[4 * at - 1], ARGV[4 * at], ARGV[4 * at + 1], ARGV[4 * at + 2]
  local isTold = isCertain or hasEnded(job, outcome)
  if isTold then
    addToMessage(channel, outcome, id)
    if not (isCertain and isOpen(job)) then
      cleanUp(input, output, ttl)
    end
  end
  told[at] = isTold and 1 or 0
end
for channel, message in pairs(channels) do
  redis.call('PUBLISH', channel, cjson.encode(message))
end
return told
