#!lua flags=allow-oom
-- Deletes the input of a job that is gone: it belongs to nobody.
--
-- Runs: by a producer that took a waiting job off the queue
-- KEYS[1] job: its record
-- KEYS[2] input: of the job
-- ARGV: none
-- Answers: nothing
-- Writes: nothing
-- Deletes: the input, where there is no record
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('DEL', KEYS[2])
end
