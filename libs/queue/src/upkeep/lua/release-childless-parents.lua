#!lua flags=allow-oom
-- Lets jobs run again that wait for a child which is gone.
--
-- Runs: by a repair for up to 250 jobs a call
-- KEYS[1] waiting-children: sorted set of ids that wait for a child
-- KEYS[2] wait: list of ids that wait without a place in line
-- KEYS[3] marker: sorted set that idle workers wait for
-- ARGV[1] jobs: what keys of jobs begin with
-- ARGV[2..] of each job: its id
-- Answers: how many were released
-- Writes: waiting-children, wait, marker
-- Deletes: the dependencies of each released job
--
-- BullMQ lets a parent go when its child ends; one whose child was deleted, or lost its parent's name, would wait for
-- ever.
local parentsKey, waitKey, markerKey, jobPrefix = KEYS[1], KEYS[2], KEYS[3], ARGV[1]

local function isChildOf(child, parent)
  return redis.call('TYPE', child).ok == 'hash'
    and redis.call('HGET', child, 'parentKey') == parent
    and redis.call('HEXISTS', child, 'finishedOn') == 0
end

local function hasChild(job)
  for _, child in ipairs(redis.call('SMEMBERS', job .. ':dependencies')) do
    if isChildOf(child, job) then
      return true
    end
  end
  return false
end

local released = 0
for at = 2, #ARGV do
  local id, job = ARGV[at], jobPrefix .. ARGV[at]
  if not hasChild(job) and redis.call('ZREM', parentsKey, id) == 1 then
    redis.call('DEL', job .. ':dependencies')
    redis.call('RPUSH', waitKey, id)
    redis.call('ZADD', markerKey, 0, '0')
    released = released + 1
  end
end
return released
