-- Ids under which a job would lie where the queue keeps something of its own; contract's QUEUE_KEY_NAMES and
-- JOB_KEY_PARTS. true: no job belongs there, and what BullMQ keeps there is never a hash, so a hash is a job's record.
local RESERVED_IDS = {
  ['wait'] = true,
  ['paused'] = true,
  ['active'] = true,
  ['prioritized'] = true,
  ['delayed'] = true,
  ['completed'] = true,
  ['failed'] = true,
  ['waiting-children'] = true,
  ['stalled'] = true,
  ['stalled-check'] = true,
  ['marker'] = true,
  ['meta'] = 'hash',
  ['events'] = true,
  ['limiter'] = true,
  ['id'] = true,
  ['pc'] = true,
  ['repeat'] = true,
  ['de'] = true,
  ['metrics'] = true,
  ['priority'] = true,
  ['relay'] = true,
}
local RESERVED_BEGINNINGS = {
  ['metrics'] = 'hash',
  ['de'] = true,
  ['dn'] = 'hash',
  ['relay'] = 'hash',
  ['repeat'] = 'hash',
}
local RESERVED_ENDS = {
  ['lock'] = true,
  ['logs'] = true,
  ['dependencies'] = true,
  ['processed'] = 'hash',
  ['failed'] = 'hash',
  ['unsuccessful'] = true,
}

-- False for an id that a job may have; 'hash' where the queue's own thing of that name is a hash.
local function reservedKind(id)
  if not string.find(id, ':', 1, true) then
    return RESERVED_IDS[id] or false
  end
  if string.match(id, '^repeat:.+:%d+$') then
    return false
  end
  return RESERVED_BEGINNINGS[string.match(id, '^[^:]*')] or RESERVED_ENDS[string.match(id, '[^:]*$')] or false
end

-- Whether a hash is a record as BullMQ writes one, under a name where it keeps hashes of other kinds as well.
local function isRecord(key)
  local fields = redis.call('HMGET', key, 'name', 'data', 'timestamp', 'delay', 'priority')
  return fields[1] and fields[2] and fields[3] and fields[4] and fields[5]
end

-- @include "tell-set-aside.lua"
-- Moves what lies under a job's name and is no record of a job that may be to `<prefix>:set-aside:<queue>:<id>:<µs>`,
-- and notes it in `<prefix>:set-aside:<queue>`, so that nothing of it is lost and the name is free. Its producer is
-- told.
local function setAside(jobPrefix, id)
  local prefix, queue = string.match(jobPrefix, '^(.*):([^:]*):$')
  local noted = prefix .. ':set-aside:' .. queue
  local time = redis.call('TIME')
  local name = string.format('%s:%d%06d', id, time[1], time[2])
  local reserved, found = reservedKind(id), redis.call('TYPE', jobPrefix .. id).ok
  local isForeign = found ~= 'none' and found ~= 'hash'
  if reserved then
    isForeign = found == 'hash' and (reserved ~= 'hash' or id ~= 'meta' and isRecord(jobPrefix .. id))
  end
  if isForeign then
    redis.call('RENAME', jobPrefix .. id, noted .. ':' .. name)
    tellSetAside(noted .. ':' .. name, prefix, queue, id)
  end
  redis.call('ZADD', noted, time[1] * 1000 + math.floor(time[2] / 1000), name)
end
