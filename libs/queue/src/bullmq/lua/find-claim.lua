#!lua flags=no-writes
-- Finds the job that a token has claimed.
--
-- Runs: by a worker whose claim took a job and could not say which, because its record cannot be read
-- KEYS[1] active: list of claimed ids, the newest first
-- ARGV[1] jobs: what keys of jobs begin with
-- ARGV[2] token: of the claim
-- Answers: the id, or false
-- Writes: nothing
-- Deletes: nothing
for _, id in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  if redis.call('GET', ARGV[1] .. id .. ':lock') == ARGV[2] then
    return id
  end
end
return false
