#!lua flags=allow-oom
-- Takes an id out of a list when no job may have it, or when something else than a record lies under it, and moves what
-- lies there aside.
--
-- Runs: by a repair for each such id
-- KEYS[1] list: the list or sorted set of a state
-- KEYS[2] job: the key under the id
-- KEYS[3] stalled: set of ids that a check for lost leases looks at
-- ARGV[1] jobs: what keys of jobs begin with
-- ARGV[2] id: of the job
-- Answers: 1, or 0 when it has a record by now
-- Writes: what is set aside; publishes on the reply channel that its record names
-- Deletes: the id from its list and from stalled; its lock
-- @include "../../redis/lua/includes/set-aside.lua"
local listKey, jobKey, stalledKey, jobPrefix, id = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]
local reserved = reservedKind(id)
if not reserved and redis.call('TYPE', jobKey).ok == 'hash' then
  return 0
end
if redis.call('TYPE', listKey).ok == 'list' then
  redis.call('LREM', listKey, 0, id)
else
  redis.call('ZREM', listKey, id)
end
redis.call('SREM', stalledKey, id)
redis.call('DEL', jobKey .. ':lock')
setAside(jobPrefix, id)
return 1
