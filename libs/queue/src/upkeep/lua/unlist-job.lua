#!lua flags=allow-oom
-- Takes an id without a record out of its list.
--
-- Runs: by a repair for each such id
-- KEYS[1] list: the list or sorted set of a state
-- KEYS[2] job: the key under the id
-- ARGV[1] id: of the job
-- Answers: how often it was removed; 0 when it has a record by now
-- Writes: nothing
-- Deletes: the id from its list
if redis.call('TYPE', KEYS[2]).ok == 'hash' then
  return 0
end
if redis.call('TYPE', KEYS[1]).ok == 'list' then
  return redis.call('LREM', KEYS[1], 0, ARGV[1])
end
return redis.call('ZREM', KEYS[1], ARGV[1])
