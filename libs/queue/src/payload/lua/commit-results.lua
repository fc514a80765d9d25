-- Writes results of jobs whose lease still holds, and never over one that is there.
--
-- Runs: by an executor for up to 32 results a call
-- KEYS[1..] of each job: its lock, its result, and the key under which a large result was staged
-- ARGV[1..] of each job: our token, the result's time to live in ms, its fingerprint, and the result itself, or nothing
--   where it was staged
-- Answers: for each job "committed", "already" when the same result is there, "conflict" when another is, "lease-lost",
--   or "not-staged"
-- Writes: the result
-- Deletes: a staged result that was not committed
--
-- A header marked as taken counts like any other. A full server refuses the first write, and none after it: what is
-- refused has left all as it was.
-- @include "../../redis/lua/includes/result-header.lua"
local function commit(lock, output, staged, token, ttl, fingerprint, result)
  if redis.pcall('GET', lock) ~= token then
    return 'lease-lost'
  end
  local kind = redis.call('TYPE', output).ok
  if kind == 'string' then
    local header = readHeader(output)
    local isSame = string.sub(header, 1, 4) == 'SHL1' and fingerprintIn(header) == fingerprint
    return isSame and 'already' or 'conflict'
  end
  if kind ~= 'none' then
    return 'conflict'
  end
  if result ~= '' then
    redis.call('SET', output, result, 'PX', ttl)
    return 'committed'
  end
  if redis.call('PEXPIRE', staged, ttl) == 0 then
    return 'not-staged'
  end
  redis.call('RENAME', staged, output)
  return 'committed'
end

local answers = {}
for at = 1, #KEYS / 3 do
  local lock, output, staged = KEYS[3 * at - 2], KEYS[3 * at - 1], KEYS[3 * at]
  local token, ttl, fingerprint, result = ARGV[4 * at - 3], ARGV[4 * at - 2], ARGV[4 * at - 1], ARGV[4 * at]
  answers[at] = commit(lock, output, staged, token, ttl, fingerprint, result)
  if result == '' and answers[at] ~= 'committed' then
    redis.call('UNLINK', staged)
  end
end
return answers
