#!lua flags=no-writes
-- Says whose jobs these are, of which class, how large, and since when they wait.
--
-- Runs: by `shoal queue tenants` and `queue why`, for up to 200 jobs a call
-- KEYS[1] job: record of one of them, which tells where the others lie
-- ARGV[1] jobs: what keys of jobs begin with
-- ARGV[2] interactive: most rows of a job that is interactive unless it says otherwise
-- ARGV[3..] jobs: their ids
-- Answers: for each job false where it has no record, else a list of its tenant, class as "i" or "b", rows, tokens (0
--   where nobody knows), and the time since which it waits, epoch ms
-- Writes: nothing
-- Deletes: nothing
--
-- Large inline jobs are not decoded: a quote inside a JSON string is always escaped, so `"tenant"` before a colon is a
-- field; their rows are not counted.
local MOST_DECODED_BYTES = 4096
local MOST_TENANT_BYTES = 128
local jobPrefix, interactiveRows = ARGV[1], tonumber(ARGV[2])

local function delayIn(options)
  if not string.find(options, '"delay"', 1, true) then
    return 0
  end
  local isJson, parsed = pcall(cjson.decode, options)
  return isJson and type(parsed) == 'table' and tonumber(parsed.delay) or 0
end

local function factsOf(data)
  if #data > MOST_DECODED_BYTES then
    local tenant = string.match(data, '"tenant"%s*:%s*"([^"\\]*)"')
    return { tenant = tenant, class = string.match(data, '"class"%s*:%s*"([^"\\]*)"'), rows = 0, isLarge = true }
  end
  local isJson, job = pcall(cjson.decode, data)
  if not isJson or type(job) ~= 'table' then
    return { rows = 1 }
  end
  if type(job.input) == 'table' then
    local rows, tokens = tonumber(job.input.rows), tonumber(job.input.tokens)
    return { tenant = job.tenant, class = job.class, rows = rows, tokens = tokens }
  end
  return { tenant = job.tenant, class = job.class, rows = type(job.texts) == 'table' and #job.texts or 1 }
end

local function weigh(id)
  local found = redis.pcall('HMGET', jobPrefix .. id, 'data', 'timestamp', 'opts', 'shoalSince')
  if found.err or not found[1] then
    return false
  end
  local job = factsOf(found[1])
  local rows = job.rows or 1
  local isInteractive = job.class == 'interactive'
    or (job.class ~= 'bulk' and not job.isLarge and rows <= interactiveRows)
  local since = tonumber(found[4]) or (tonumber(found[2]) or 0) + delayIn(found[3] or '')
  local tenant = type(job.tenant) == 'string' and string.sub(job.tenant, 1, MOST_TENANT_BYTES) or 'default'
  return { tenant, isInteractive and 'i' or 'b', rows, job.tokens or 0, string.format('%.0f', since) }
end

local answers = {}
for at = 3, #ARGV do
  answers[at - 2] = weigh(ARGV[at])
end
return answers
