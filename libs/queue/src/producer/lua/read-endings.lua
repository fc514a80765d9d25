#!lua flags=no-writes
-- Says of jobs whether they ended, and how.
--
-- Runs: by a producer for up to 32 jobs a call that it has not heard of
-- KEYS[1..] of each job: its record
-- ARGV: none
-- Answers: for each job false while it is open, else a list of its state ("completed", "failed" or "unknown") and why
--   it failed
-- Writes: nothing
-- Deletes: nothing
--
-- BullMQ's getState reads all of a queue's lists to tell a waiting job from an active one. A record that is none is for
-- the janitor to fail.
local function endingOf(job)
  local fields = redis.pcall('HMGET', job, 'name', 'finishedOn', 'returnvalue', 'failedReason')
  if fields.err then
    return false
  end
  local name, finishedOn, value, reason = fields[1], fields[2], fields[3], fields[4]
  if not finishedOn then
    return not name and { 'unknown' }
  end
  return value and { 'completed' } or { 'failed', reason or '' }
end

local answers = {}
for at, job in ipairs(KEYS) do
  answers[at] = endingOf(job)
end
return answers
