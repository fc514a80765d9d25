#!lua flags=allow-oom
-- Hands out results: each body is renamed to a key that only its reader knows, and a header marked as taken stays.
--
-- Runs: by a reader for up to 32 results a call, with a GET of each body behind it
-- KEYS[1..] of each result: its key, and the key that its body is renamed to
-- ARGV[1..] of each result: how long its body is kept there, ms
-- Answers: for each result "body", "taken" when it was handed out before, "absent", or "foreign" when it is no result
-- Writes: each result, its header instead of all of it; the key of its body
-- Deletes: nothing; bodies end with their time to live
--
-- What is no result is left alone. A call that is repeated, because its reply was lost, finds the body where it put it.
-- @include "../../redis/lua/includes/result-header.lua"
local function take(output, body, bodyTtl)
  local header = readHeader(output)
  if header == '' then
    return 'absent'
  end
  if not isHeader(header) then
    return 'foreign'
  end
  if isTaken(header) then
    return redis.call('EXISTS', body) == 1 and 'body' or 'taken'
  end
  local leftMs = redis.call('PTTL', output)
  redis.call('RENAME', output, body)
  redis.call('PEXPIRE', body, bodyTtl)
  if leftMs < 0 then
    redis.call('SET', output, markTaken(header))
  else
    redis.call('SET', output, markTaken(header), 'PX', math.max(leftMs, 1))
  end
  return 'body'
end

local answers = {}
for at = 1, #ARGV do
  answers[at] = take(KEYS[2 * at - 1], KEYS[2 * at], ARGV[at])
end
return answers
