// Written by tools/build-lua.ts from the .lua files of this folder: npm run lua.

import type { Script } from '../../redis/script.ts';

export const ADOPT_UNLISTED_JOBS: Script = {
  name: 'upkeep/adopt-unlisted-jobs',
  sha: '6526803cb2ad8477a252ff9ce779840c1d01ae3e',
  keyCount: 8,
  lua: `#!lua flags=allow-oom
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
`,
};

export const BEGIN_SWEEP: Script = {
  name: 'upkeep/begin-sweep',
  sha: 'be63746f27e3dd114bb7bb36ffbf178f0c6f6eda',
  keyCount: 2,
  lua: `#!lua flags=allow-oom
-- Lets one janitor begin a sweep, when it is time for one.
--
-- Runs: by each worker's janitor once an interval
-- KEYS[1] lock: holds the token of the janitor that sweeps
-- KEYS[2] seen: sorted set of inputs by when they were first seen without a job; under the empty name the last sweep
-- ARGV[1] token: of this sweep
-- ARGV[2] life: of the lock, ms
-- ARGV[3] now: ms since 1970, by the server's clock
-- ARGV[4] interval: from one sweep to the next, ms
-- Answers: 1 when it may sweep, else 0
-- Writes: the lock
-- Deletes: nothing
--
-- Not before nine tenths of the interval have passed since the last sweep, whoever did it.
local LEAST_SHARE = 0.9
local last = redis.call('ZSCORE', KEYS[2], '')
if last and tonumber(ARGV[3]) - tonumber(last) < LEAST_SHARE * tonumber(ARGV[4]) then
  return 0
end
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return 1
end
return 0
`,
};

export const END_SWEEP: Script = {
  name: 'upkeep/end-sweep',
  sha: '2a6ce572fecb0553dfce51cb698fa62d47596b6d',
  keyCount: 2,
  lua: `#!lua flags=allow-oom
-- Ends a sweep, and says when it was.
--
-- Runs: by the janitor that swept
-- KEYS[1] lock: holds the token of the janitor that sweeps
-- KEYS[2] seen: sorted set of inputs by when they were first seen without a job; under the empty name the last sweep
-- ARGV[1] token: of this sweep
-- ARGV[2] now: ms since 1970, by the server's clock
-- ARGV[3] interval: from one sweep to the next, ms
-- Answers: 1, or 0 when the lock is not ours any more
-- Writes: seen
-- Deletes: the lock; from seen what was not seen again for five intervals, because it is gone
local FORGOTTEN_AFTER = 5
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', ARGV[2] - FORGOTTEN_AFTER * ARGV[3])
redis.call('ZADD', KEYS[2], ARGV[2], '')
return redis.call('DEL', KEYS[1])
`,
};

export const FIND_SUSPECT_RECORDS: Script = {
  name: 'upkeep/find-suspect-records',
  sha: 'd75b65dbb628f00d29e98d4bbf136669c3340e2d',
  keyCount: 1,
  lua: `#!lua flags=allow-oom
-- Says which of some records have to be looked at closely.
--
-- Runs: by a repair for up to 250 jobs a call
-- KEYS[1] meta: any key of the queue
-- ARGV[1] jobs: what keys of jobs begin with
-- ARGV[2..] of each job: its id
-- Answers: the ids whose record may be damaged
-- Writes: nothing
-- Deletes: nothing
--
-- No JSON is parsed: that would take the server 100 µs for a job of 64 texts.
local function isCount(value)
  return not value or string.match(value, '^%d+$')
end

local function isObject(value)
  return value and string.sub(value, 1, 1) == '{' and string.sub(value, -1) == '}'
end

local function isWhole(job)
  if redis.call('TYPE', job).ok ~= 'hash' then
    return false
  end
  local fields = redis.call('HMGET', job, 'name', 'data', 'opts', 'atm', 'ats', 'stc')
  local name, data, options = fields[1], fields[2], fields[3]
  return name and isObject(data) and isObject(options)
    and isCount(fields[4]) and isCount(fields[5]) and isCount(fields[6])
end

local suspects = {}
for at = 2, #ARGV do
  if not isWhole(ARGV[1] .. ARGV[at]) then
    suspects[#suspects + 1] = ARGV[at]
  end
end
return suspects
`,
};

export const FORGIVE_JOB: Script = {
  name: 'upkeep/forgive-job',
  sha: '7f6b5485b0d2bc54cf95b56820b9f50a076ceb8a',
  keyCount: 1,
  lua: `#!lua flags=allow-oom
-- Removes from a failed job's record what would make it fail again at once.
--
-- Runs: by \`shoal queue retry\` for each job
-- KEYS[1] job: its record
-- ARGV[1] mark: the field that marks a cancelled job
-- Answers: how many fields went
-- Writes: nothing
-- Deletes: the marks of a cancel, of damage and of stalls; and \`progress\`
--
-- \`progress\` has the mark of a hand-over, which would pass for one of the new life, whose attempts begin at 0 again,
-- and bring the old failure as its ending.
return redis.call('HDEL', KEYS[1], 'defa', 'stc', ARGV[1], 'progress')
`,
};

export const RELEASE_CHILDLESS_PARENTS: Script = {
  name: 'upkeep/release-childless-parents',
  sha: '585015b34f8b6a3097e6b262ecf33c0414494538',
  keyCount: 3,
  lua: `#!lua flags=allow-oom
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
`,
};

export const SWEEP_STEP: Script = {
  name: 'upkeep/sweep-step',
  sha: 'bcb90a34f82eee4a259adc83416f205a4565248d',
  keyCount: 2,
  lua: `#!lua flags=allow-oom
-- Looks at some keys of a queue: takes inputs that have had no job for long, and lets results age that would stay.
--
-- Runs: by the janitor that sweeps, until it has seen every key
-- KEYS[1] lock: holds the token of the janitor that sweeps
-- KEYS[2] seen: sorted set of inputs by when they were first seen without a job
-- ARGV[1] token: of this sweep
-- ARGV[2] life: of the lock, ms
-- ARGV[3] now: ms since 1970, by the server's clock
-- ARGV[4] interval: how long an input must have been without a job, ms
-- ARGV[5] cursor: where to go on
-- ARGV[6] pattern: that keys of inputs and results match
-- ARGV[7] count: keys to look at
-- ARGV[8] results: what keys of results begin with
-- ARGV[9] life: what a result gets that has no time to live, ms
-- ARGV[10..] of each kind of inputs: what their keys begin with, how many beginnings of job keys follow, and these
-- Answers: where to go on, inputs taken, their bytes, and results that had no time to live; false when the lock is not
--   ours any more
-- Writes: the lock's time to live, seen, the time to live of a result that had none
-- Deletes: inputs that have had no job for an interval
local lockKey, seenKey, token, lockMs = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local now, interval = tonumber(ARGV[3]), tonumber(ARGV[4])
local cursor, pattern, count, outputPrefix, strayMs = ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]

if redis.call('GET', lockKey) ~= token then
  return false
end
redis.call('PEXPIRE', lockKey, lockMs)

local function beginsWith(key, prefix)
  return string.sub(key, 1, #prefix) == prefix
end

local function readKinds()
  local kinds, at = {}, 10
  while at <= #ARGV do
    local kind = { prefix = ARGV[at], lanes = {} }
    for lane = at + 2, at + 1 + ARGV[at + 1] do
      kind.lanes[#kind.lanes + 1] = ARGV[lane]
    end
    kinds[#kinds + 1] = kind
    at = at + 2 + #kind.lanes
  end
  return kinds
end

local function isFinished(job)
  return redis.call('TYPE', job).ok == 'hash' and redis.call('HEXISTS', job, 'finishedOn') == 1
end

local function hasJob(kind, id)
  for _, lane in ipairs(kind.lanes) do
    local job = lane .. id
    if redis.call('EXISTS', job) == 1 and not isFinished(job) then
      return true
    end
  end
  return false
end

local taken, bytes, strays = 0, 0, 0
local function lookAtInput(kind, key)
  local seen = tonumber(redis.call('ZSCORE', seenKey, key))
  if hasJob(kind, string.sub(key, #kind.prefix + 1)) then
    if seen then
      redis.call('ZREM', seenKey, key)
    end
  elseif not seen or now < seen then
    redis.call('ZADD', seenKey, now, key)
  elseif now - seen >= interval then
    bytes = bytes + redis.call('MEMORY', 'USAGE', key, 'SAMPLES', 1)
    redis.call('UNLINK', key)
    redis.call('ZREM', seenKey, key)
    taken = taken + 1
  end
end

local kinds = readKinds()
local page = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count)
for _, key in ipairs(page[2]) do
  if beginsWith(key, outputPrefix) then
    if redis.call('PTTL', key) == -1 then
      strays = strays + redis.call('PEXPIRE', key, strayMs)
    end
  else
    for _, kind in ipairs(kinds) do
      if beginsWith(key, kind.prefix) then
        lookAtInput(kind, key)
      end
    end
  end
end
return { page[1], taken, bytes, strays }
`,
};

export const UNLIST_JOB: Script = {
  name: 'upkeep/unlist-job',
  sha: 'a048c1f6ca08279fe9006153eebd37d7f1f8bbf3',
  keyCount: 2,
  lua: `#!lua flags=allow-oom
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
`,
};
