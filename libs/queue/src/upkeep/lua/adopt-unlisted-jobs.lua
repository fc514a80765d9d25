#!lua flags=allow-oom
-- Puts whole jobs that are in no list back into line, and takes away what is left of finished ones.
--
-- Runs: by a repair for records whose id it has found in no list
-- KEYS[1] wait: list of ids that wait without a place in line
-- KEYS[2] active: list of claimed ids
-- KEYS[3] marker: sorted set that idle workers wait for
-- KEYS[4] prioritized: sorted set of a state, like the next four
-- KEYS[5] delayed: sorted set
-- KEYS[6] waiting-children: sorted set
-- KEYS[7] completed: sorted set
-- KEYS[8] failed: sorted set
-- ARGV[1] jobs: what keys of jobs begin with
-- ARGV[2..] of each job: its id
-- Answers: how many wait again, and how many were removed
-- Writes: wait, marker
-- Deletes: the record of a finished job that no list holds, with what belongs to it
--
-- LPOS walks its list: few ids come this far.
local waitKey, activeKey, markerKey, jobPrefix = KEYS[1], KEYS[2], KEYS[3], ARGV[1]

local function isListed(id)
  for set = 4, 8 do
    if redis.call('ZSCORE', KEYS[set], id) then
      return true
    end
  end
  return redis.call('LPOS', waitKey, id) or redis.call('LPOS', activeKey, id)
end

-- Whether the key is a job's record, and whether that job could still run.
local function judge(job)
  if redis.call('TYPE', job).ok ~= 'hash' then
    return false, false
  end
  local fields = redis.call('HMGET', job, 'name', 'data', 'ats', 'stc', 'finishedOn')
  local name, data, finishedOn = fields[1], fields[2], fields[5]
  return name or data or fields[3] or fields[4], not finishedOn and name and data
end

local requeued, removed = 0, 0
for at = 2, #ARGV do
  local id, job = ARGV[at], jobPrefix .. ARGV[at]
  local isJob, canRun = judge(job)
  if isJob and redis.call('EXISTS', job .. ':lock') == 0 and not isListed(id) then
    if canRun then
      redis.call('LPUSH', waitKey, id)
      redis.call('ZADD', markerKey, 0, '0')
      requeued = requeued + 1
    else
      redis.call(
        'UNLINK', job, job .. ':logs', job .. ':dependencies', job .. ':processed', job .. ':failed',
        job .. ':unsuccessful'
      )
      removed = removed + 1
    end
  end
end
return { requeued, removed }
