-- Gives back room that was reserved for jobs. A reservation is
-- "<q|o> <rows> <queued bytes> <owed bytes> <ms> <tenant>": q while the job waits or runs, o when only its result is
-- owed. Sums are written once for all that was released.
-- KEYS[1] reservations of the queue, KEYS[2] load of all queues.
local RESERVATION = '^(%a) (%d+) (%d+) (%d+) (%d+) (.*)$'
local released = {}

local function subtract(field, amount)
  released[field] = (released[field] or 0) + amount
end

-- Of one job all, or what it has queued. Returns the rows and bytes that are free now.
local function release(queue, id, isAll)
  local held = redis.call('HGET', KEYS[1], id)
  if not held then
    return 0, 0
  end
  local state, rows, queued, owed, ms, tenant = string.match(held, RESERVATION)
  rows, queued, owed = tonumber(rows), tonumber(queued), tonumber(owed)
  if isAll then
    redis.call('HDEL', KEYS[1], id)
  elseif state == 'q' then
    redis.call('HSET', KEYS[1], id, 'o 0 0 ' .. owed .. ' ' .. ms .. ' ' .. tenant)
  else
    return 0, 0
  end
  local bytes = isAll and queued + owed or queued
  subtract('rows ' .. queue, rows)
  subtract('bytes', bytes)
  subtract('rows ' .. queue .. ' ' .. tenant, rows)
  subtract('bytes ' .. tenant, bytes)
  if not isAll then
    subtract('unread', -owed)
  elseif state == 'o' then
    subtract('unread', owed)
  end
  return rows, bytes
end

local function settle()
  for field, amount in pairs(released) do
    if amount ~= 0 and redis.call('HINCRBY', KEYS[2], field, -amount) <= 0 then
      redis.call('HDEL', KEYS[2], field)
    end
  end
end
