#!lua flags=allow-oom
-- Gives waiting jobs their places in line, by start-time fair queueing over tenants; fair-order.ts has the rule.
--
-- Runs: by a worker before each burst of claims
-- KEYS[1] wait: list of ids without a place, whoever added them
-- KEYS[2] prioritized: sorted set of ids by their place; scores from 0 on are BullMQ's own and have no place yet
-- KEYS[3] order: sorted set with the end of each flow's last job, and under the empty name the virtual time
-- ARGV[1] jobs: what keys of jobs begin with
-- ARGV[2] inputs: what keys of inputs begin with
-- ARGV[3] most: jobs that get their place in this call
-- ARGV[4] lead: tokens by which a bulk tenant that was idle may go ahead
-- ARGV[5] user lead: tokens that a user of a tenant may have before what the tenant's other users have waiting
-- ARGV[6] interactive: most rows of a job that is interactive unless it says otherwise
-- Answers: how many in `wait` still have no place, how many jobs have one, how many of those that are next are
--   interactive, and how many ids were set aside
-- Writes: prioritized, order; the field shoalPlace of each job's record; what is set aside
-- Deletes: from wait what has its place now; the order, when the line was empty
--
-- A job that was in line before (handed back, stalled, delayed, released by its child) keeps its place in its record
-- and is not charged again. Larger inline jobs are not decoded (256 KiB of JSON would take a millisecond): a quote
-- inside a JSON string is always escaped, so `"tenant"` before a colon is a field. Users (acme/alice) share the turns
-- of their tenant. Ids under which the queue keeps
-- something of its own, and those with something else than a record, are set aside.
-- @include "../../redis/lua/includes/set-aside.lua"
local UNITS_PER_TOKEN = 16
-- An interactive token is as long as one part in so many of a bulk token.
local INTERACTIVE_PARTS = 256
-- Where an empty line begins: close to -2^53, with room for leads. Places end before 0, where BullMQ's scores begin.
local FIRST_PLACE = -9007199187632128
local LAST_PLACE = -1
local MOST_URGENT = 16
local MOST_DECODED_BYTES = 4096
local MOST_ROWS = 1024
local MOST_TOKENS = 16777216
local TOKENS_PER_ROW = 64
local BYTES_PER_TOKEN = 4
local MOST_TENANT_BYTES = 128

local waitKey, lineKey, orderKey = KEYS[1], KEYS[2], KEYS[3]
local jobPrefix, inputPrefix, most, interactiveRows = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[6])
local bulkLead = UNITS_PER_TOKEN * ARGV[4]
-- Twice that, so that interactive jobs go before a fresh bulk tenant too; at 1/256 they last for 134 million tokens.
local interactiveLead = 2 * bulkLead
local userLead = UNITS_PER_TOKEN * ARGV[5]

local asideCount = 0
-- Whether something was taken out of the list.
local function setReservedAside(ids)
  local before = asideCount
  for _, id in ipairs(ids) do
    if reservedKind(id) then
      redis.call('LREM', waitKey, 0, id)
      setAside(jobPrefix, id)
      asideCount = asideCount + 1
    end
  end
  return asideCount > before
end

local listed
repeat
  listed = redis.call('LRANGE', waitKey, -most, -1)
until not setReservedAside(listed)
local foreign = {}
if #listed < most then
  foreign = redis.call('ZRANGEBYSCORE', lineKey, 0, '+inf', 'LIMIT', 0, most - #listed)
end

-- Places of interactive jobs are odd.
local function isUrgent(score)
  local place = tonumber(score)
  return place ~= nil and place < 0 and place % 2 == 1
end

local function tell()
  local first, urgent = redis.call('ZRANGE', lineKey, 0, MOST_URGENT - 1, 'WITHSCORES'), 0
  while isUrgent(first[2 * urgent + 2]) do
    urgent = urgent + 1
  end
  return { redis.call('LLEN', waitKey), redis.call('ZCARD', lineKey), urgent, asideCount }
end

if #listed == 0 and #foreign == 0 then
  return tell()
end

local function toText(number)
  return string.format('%.0f', number)
end

local head = redis.call('ZRANGE', lineKey, 0, 0, 'WITHSCORES')
local isEmpty = #head == 0 or tonumber(head[2]) >= 0
if isEmpty then
  redis.call('DEL', orderKey)
  redis.call('ZADD', orderKey, FIRST_PLACE, '')
else
  redis.call('ZADD', orderKey, 'GT', head[2], '')
end
local now = tonumber(redis.call('ZSCORE', orderKey, '') or FIRST_PLACE)
redis.call('ZREMRANGEBYSCORE', orderKey, '-inf', '(' .. toText(now - interactiveLead))

-- The value of a field of JSON that is not decoded, where it is a string.
local function findField(data, name)
  local from = 1
  while true do
    local at = string.find(data, name, from, true)
    if not at then
      return nil
    end
    local value = string.match(data, '^%s*:%s*"([^"\\]*)"', at + #name)
    if value then
      return value
    end
    from = at + #name
  end
end

-- What a job says of itself: who asks, of which class, and how much.
local function factsOf(data)
  local bytes = #data
  if bytes > MOST_DECODED_BYTES then
    local tenant, class = findField(data, '"tenant"'), findField(data, '"class"')
    return { tenant = tenant, class = class, rows = MOST_ROWS, tokens = bytes / BYTES_PER_TOKEN }
  end
  local isJson, job = pcall(cjson.decode, data)
  if not isJson or type(job) ~= 'table' then
    return {}
  end
  local input = job.input
  if type(input) == 'table' then
    return { tenant = job.tenant, class = job.class, rows = input.rows, tokens = input.tokens, form = input.form }
  end
  local rows = type(job.texts) == 'table' and #job.texts or 1
  return { tenant = job.tenant, class = job.class, rows = rows, tokens = bytes / BYTES_PER_TOKEN }
end

local function tokensOf(id, job, rows)
  local tokens = tonumber(job.tokens)
  if not tokens and job.form == 'texts' then
    tokens = redis.call('STRLEN', inputPrefix .. id) / BYTES_PER_TOKEN
  end
  if tokens and tokens >= 1 and tokens <= MOST_TOKENS then
    return tokens
  end
  return rows * TOKENS_PER_ROW
end

-- Whether it is interactive, its class, who asks, and how long it is.
local function weigh(id, data)
  local job = factsOf(data)
  local rows = math.min(math.max(tonumber(job.rows) or 1, 1), MOST_ROWS)
  local isInteractive = job.class == 'interactive' or (job.class ~= 'bulk' and rows <= interactiveRows)
  local tenant = type(job.tenant) == 'string' and string.sub(job.tenant, 1, MOST_TENANT_BYTES) or 'default'
  local units = tokensOf(id, job, rows) * UNITS_PER_TOKEN
  if isInteractive then
    return true, 'i:', tenant, math.max(1, math.ceil(units / INTERACTIVE_PARTS))
  end
  return false, 'b:', tenant, math.max(1, math.ceil(units))
end

local ends, line = {}, {}
local function endOf(flow, first)
  local flowEnd = ends[flow] or tonumber(redis.call('ZSCORE', orderKey, flow) or -math.huge)
  return math.max(first, flowEnd)
end

-- In which flow the next job of a tenant is, and its place. A user's job is in the flow of its tenant; where that has
-- work of others waiting and the user had little, in the one of such users, "<tenant>/", and both are charged for it.
local function nextOf(class, tenant, first, length)
  local main = string.match(tenant, '^([^/]+)/')
  if not main then
    return class .. tenant, endOf(class .. tenant, first)
  end
  local own, whole, quick = class .. tenant, class .. main, class .. main .. '/'
  local had, behind = endOf(own, first), endOf(whole, first)
  local most = class == 'i:' and userLead / INTERACTIVE_PARTS or userLead
  if behind <= had or had + length - first > most then
    return whole, behind, own
  end
  ends[own], ends[whole] = had + length, behind + length
  return quick, endOf(quick, first)
end

local function placeOf(id, data)
  local isInteractive, class, tenant, length = weigh(id, data)
  local lead = isInteractive and interactiveLead or (isEmpty and 0 or bulkLead)
  local flow, place, own = nextOf(class, tenant, now - lead, length)
  place = math.min(place, LAST_PLACE)
  place = place - place % 2 + (isInteractive and 1 or 0)
  ends[flow] = place + length
  if own then
    ends[own] = place + length
  end
  return place
end

local function enter(id, isForeign)
  local job = jobPrefix .. id
  local found = redis.pcall('HMGET', job, 'data', 'shoalPlace')
  if found.err or isForeign and reservedKind(id) then
    redis.call('ZREM', lineKey, id)
    setAside(jobPrefix, id)
    asideCount = asideCount + 1
    return
  end
  local data, place = found[1], tonumber(found[2])
  if not place then
    place = placeOf(id, data or '')
    if data then
      redis.call('HSET', job, 'shoalPlace', toText(place))
    end
  elseif place > now then
    place = now - now % 2 + place % 2
  end
  line[#line + 1] = toText(place)
  line[#line + 1] = id
end

for at = #listed, 1, -1 do
  enter(listed[at])
end
for _, id in ipairs(foreign) do
  enter(id, true)
end
if #line > 0 then
  redis.call('ZADD', lineKey, unpack(line))
end
if #listed > 0 then
  redis.call('LTRIM', waitKey, 0, -#listed - 1)
end
for flow, place in pairs(ends) do
  redis.call('ZADD', orderKey, toText(place), flow)
end
return tell()
