#!lua flags=allow-oom
-- Reserves room for as many jobs as there is, in order, and says how long the next one has to wait.
--
-- Runs: by producers before they add jobs, or beside that while room is ample, for up to 500 jobs a call
-- KEYS[1] admitted: hash of the reservations of the queue
-- KEYS[2] load: hash of what all queues have reserved
-- KEYS[3] drain: hash of how much has left the queue, by which waits are told
-- KEYS[4] door: sorted set of those who wait for room, by when they came
-- ARGV[1] queue: the main queue of the model
-- ARGV[2] caller: who asks
-- ARGV[3] rows: most that the queue may have
-- ARGV[4] bytes: most that all queues may have
-- ARGV[5] share: of both, most that one tenant may have
-- ARGV[6] reserve: share that is kept for interactive jobs
-- ARGV[7] dims: of a result, where no worker has told
-- ARGV[8] forced: 1 if limits do not hold
-- ARGV[9..] of each job: id, tenant, class as "i" or "b", rows, bytes of its input, bytes of one dimension of a result
--   row, and dimensions that were asked for or 0
-- Answers: jobs admitted, ms to wait, why ("rows", "bytes", "tenant" or "line"), and thousandths of what is fullest:
--   the queue, the server's share, one of these tenants (all, when somebody stands in line)
-- Writes: admitted, load, drain, door
-- Deletes: from door who asks, and those who did not come back
-- @include "../../redis/lua/includes/server-clock.lua"
local VALUES_PER_JOB = 7
-- Of those who stand in line, so many are looked at: whoever is behind them is told too short a wait, and comes back
-- too early.
local MOST_IN_LINE = 200
local LINE_LIFE_MS = 120000
-- Who comes back later than this loses its place; who was to come back later than anybody is told to, did so by a clock
-- that was set back since.
local LATE_MS = 2000
local SHORTEST_WAIT_MS, LONGEST_WAIT_MS = 20, 60000
-- The wait while nobody knows how fast room comes back: nothing has left the queue yet.
local UNKNOWN_RATE_MS = 1000
-- The rate is told anew after a second; a sample that is ten seconds old says nothing.
local SAMPLE_MS, OLD_SAMPLE_MS, FIRST_SAMPLE_MS = 1000, 10000, 100
local HEADER_BYTES = 96

local admittedKey, loadKey, drainKey, doorKey = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local queue, caller, mostRows, mostBytes = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local tenantShare, reserve, isForced = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[8] == '1'
local now = serverClockMs()

local function average(rate, fresh)
  return rate > 0 and (rate + fresh) / 2 or fresh
end

-- How fast rows and bytes leave the queue, per ms.
local function drainRates()
  local drain = redis.call(
    'HMGET', drainKey, 'rows', 'bytes', 'sampleMs', 'sampleRows', 'sampleBytes', 'rowRate', 'byteRate'
  )
  local rows, bytes, since = tonumber(drain[1]) or 0, tonumber(drain[2]) or 0, tonumber(drain[3])
  local rowRate, byteRate = tonumber(drain[6]) or 0, tonumber(drain[7]) or 0
  local passed = since and now - since or 0
  local freshRows = (rows - (tonumber(drain[4]) or 0)) / math.max(passed, 1)
  local freshBytes = (bytes - (tonumber(drain[5]) or 0)) / math.max(passed, 1)
  if passed >= SAMPLE_MS and passed < OLD_SAMPLE_MS then
    rowRate = average(rowRate, freshRows)
    byteRate = average(byteRate, freshBytes)
  end
  if passed >= SAMPLE_MS or passed < 0 or not since then
    redis.call(
      'HSET', drainKey, 'sampleMs', now, 'sampleRows', rows, 'sampleBytes', bytes, 'rowRate', rowRate, 'byteRate',
      byteRate
    )
  elseif rowRate == 0 and passed >= FIRST_SAMPLE_MS then
    rowRate = freshRows
    byteRate = freshBytes
  end
  return rowRate, byteRate
end

local rowRate, byteRate = drainRates()
local load = redis.call('HMGET', loadKey, 'rows ' .. queue, 'bytes', 'dims ' .. queue)
local rows, bytes, dims = tonumber(load[1]) or 0, tonumber(load[2]) or 0, tonumber(load[3]) or tonumber(ARGV[7])

-- In line: "<caller> <rows> <bytes> <ms at which it was to come back>", by the microsecond at which it came: two may
-- come within a millisecond.
local since
local aheadRows, aheadBytes, isPassed = 0, 0, false
local line = redis.call('ZRANGE', doorKey, 0, MOST_IN_LINE - 1, 'WITHSCORES')
for at = 1, #line, 2 do
  local who, itsRows, itsBytes, backMs = string.match(line[at], '^(%S+) (%d+) (%d+) (%d+)$')
  local isStale = tonumber(backMs) < now - LATE_MS or tonumber(backMs) > now + LONGEST_WAIT_MS + LATE_MS
  if who == caller or isStale then
    redis.call('ZREM', doorKey, line[at])
    if who == caller then
      since = tonumber(line[at + 1])
    end
  elseif not since then
    aheadRows = aheadRows + itsRows
    aheadBytes = aheadBytes + itsBytes
    isPassed = true
  end
end

local tenants = {}
local function loadOf(tenant)
  if not tenants[tenant] then
    local held = redis.call('HMGET', loadKey, 'rows ' .. queue .. ' ' .. tenant, 'bytes ' .. tenant)
    tenants[tenant] = {
      rows = tonumber(held[1]) or 0,
      bytes = tonumber(held[2]) or 0,
      addedRows = 0,
      addedBytes = 0,
    }
  end
  return tenants[tenant]
end

-- Bytes of a job's result.
local function owedFor(at)
  local wantedRows, dimBytes, cut = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6])
  local width = cut > 0 and math.min(cut, dims) or dims
  return math.ceil(wantedRows * width * dimBytes) + HEADER_BYTES
end

-- What the job and those after it ask for together, up to a tenth of the room: told for one job at a time, everybody
-- would come back for crumbs.
local function askedFrom(from)
  local askedRows, askedBytes = 0, 0
  for at = from, #ARGV, VALUES_PER_JOB do
    askedRows = askedRows + tonumber(ARGV[at + 3])
    askedBytes = askedBytes + tonumber(ARGV[at + 4]) + owedFor(at)
    if askedRows > mostRows / 10 or askedBytes > mostBytes / 10 then
      break
    end
  end
  return askedRows, askedBytes
end

local function timeFor(amount, rate)
  if amount <= 0 then
    return 0
  end
  return rate > 0 and amount / rate or UNKNOWN_RATE_MS
end

local function standInLine(askedRows, askedBytes, wait)
  local time = redis.call('TIME')
  local cameAt = since or string.format('%d%06d', time[1], time[2])
  redis.call('ZADD', doorKey, cameAt, string.format('%s %d %d %d', caller, askedRows, askedBytes, now + wait))
end

-- By how much rows and bytes are too many: of the queue, and of the tenant.
local function excessOf(own, class, wantedRows, wantedBytes, addedRows, addedBytes)
  local share = class == 'i' and 1 or 1 - reserve
  return {
    rows = rows + addedRows + wantedRows - mostRows * share,
    bytes = bytes + addedBytes + wantedBytes - mostBytes * share,
    tenantRows = own.rows + own.addedRows + wantedRows - mostRows * tenantShare,
    tenantBytes = own.bytes + own.addedBytes + wantedBytes - mostBytes * tenantShare,
  }
end

local function reasonOf(over)
  local isFull = over.rows > 0 or over.bytes > 0
  local isGreedy = over.tenantRows > 0 or over.tenantBytes > 0
  if isGreedy and not isFull then
    return 'tenant'
  end
  return over.rows > 0 and 'rows' or over.bytes > 0 and 'bytes' or 'line'
end

-- How long the job at `at` has to wait; a bulk job stands in line meanwhile.
local function refuse(at, over, reason, class, wantedRows, wantedBytes)
  local askedRows, askedBytes = askedFrom(at)
  local moreRows, moreBytes = askedRows - wantedRows, askedBytes - wantedBytes
  local isInLine = class == 'b' and reason ~= 'tenant'
  if isInLine then
    moreRows = moreRows + aheadRows
    moreBytes = moreBytes + aheadBytes
  end
  local forRows = timeFor(math.max(over.rows, over.tenantRows) + moreRows, rowRate)
  local forBytes = timeFor(math.max(over.bytes, over.tenantBytes) + moreBytes, byteRate)
  local wait = math.min(math.max(math.ceil(math.max(forRows, forBytes)), SHORTEST_WAIT_MS), LONGEST_WAIT_MS)
  if isInLine then
    standInLine(askedRows, askedBytes, wait)
  end
  redis.call('PEXPIRE', doorKey, LINE_LIFE_MS)
  return wait
end

local admitted, addedRows, addedBytes, wait, reason = 0, 0, 0, 0, ''
for at = 9, #ARGV, VALUES_PER_JOB do
  local id, tenant, class, wantedRows, queued = unpack(ARGV, at, at + 4)
  wantedRows, queued = tonumber(wantedRows), tonumber(queued)
  local own = loadOf(tenant)
  if redis.call('HEXISTS', admittedKey, id) == 0 then
    local owed = owedFor(at)
    local over = excessOf(own, class, wantedRows, queued + owed, addedRows, addedBytes)
    local isOver = over.rows > 0 or over.bytes > 0 or over.tenantRows > 0 or over.tenantBytes > 0
    -- into an empty house anything is let, or what is larger than the house would wait for ever
    local isAlone = rows + addedRows + bytes + addedBytes == 0
    if not isForced and not isAlone and (isOver or (isPassed and class == 'b')) then
      reason = reasonOf(over)
      wait = refuse(at, over, reason, class, wantedRows, queued + owed)
      break
    end
    local held = 'q ' .. wantedRows .. ' ' .. queued .. ' ' .. owed .. ' ' .. now .. ' ' .. tenant
    redis.call('HSET', admittedKey, id, held)
    addedRows = addedRows + wantedRows
    addedBytes = addedBytes + queued + owed
    own.addedRows = own.addedRows + wantedRows
    own.addedBytes = own.addedBytes + queued + owed
  end
  admitted = admitted + 1
end

if addedRows > 0 then
  redis.call('HINCRBY', loadKey, 'rows ' .. queue, addedRows)
  redis.call('HINCRBY', loadKey, 'bytes', addedBytes)
  for tenant, own in pairs(tenants) do
    if own.addedRows > 0 then
      redis.call('HINCRBY', loadKey, 'rows ' .. queue .. ' ' .. tenant, own.addedRows)
      redis.call('HINCRBY', loadKey, 'bytes ' .. tenant, own.addedBytes)
    end
  end
end

local full = 1
if #line == 0 then
  full = math.max((rows + addedRows) / mostRows, (bytes + addedBytes) / mostBytes)
end
for _, own in pairs(tenants) do
  local tenantRows, tenantBytes = own.rows + own.addedRows, own.bytes + own.addedBytes
  full = math.max(full, tenantRows / (mostRows * tenantShare), tenantBytes / (mostBytes * tenantShare))
end
return { admitted, wait, reason, math.ceil(1000 * math.min(full, 1)) }
