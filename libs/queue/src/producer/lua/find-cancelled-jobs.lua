#!lua flags=no-writes
-- Says which of some jobs are marked as cancelled.
--
-- Runs: by a worker after every claim, after every reconnect and now and then, while jobs of its lane may be marked
-- KEYS[1] cancelled: is there while jobs of the lane may be marked
-- ARGV[1] jobs: what keys of jobs begin with
-- ARGV[2] mark: the field that marks a cancelled job
-- ARGV[3..] of each job: its id
-- Answers: the ids that are marked
-- Writes: nothing
-- Deletes: nothing
local marked = {}
if redis.call('EXISTS', KEYS[1]) == 0 then
  return marked
end
for at = 3, #ARGV do
  if redis.call('HEXISTS', ARGV[1] .. ARGV[at], ARGV[2]) == 1 then
    marked[#marked + 1] = ARGV[at]
  end
end
return marked
