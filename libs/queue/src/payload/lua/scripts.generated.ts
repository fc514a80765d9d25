// Written by tools/build-lua.ts from the .lua files of this folder: npm run lua.

import type { Script } from '../../redis/script.ts';

export const COMMIT_RESULTS: Script = {
  name: 'payload/commit-results',
  sha: 'ced56c69a948c7ce6b85340a9bdc692eeafebfac',
  keyCount: 0,
  lua: `-- Writes results of jobs whose lease still holds, and never over one that is there.
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
-- The header of a result (SHL1): "SHL1" in bytes 0 to 3, flags as a little-endian u16 in bytes 6 and 7, whose lowest
-- bit is TAKEN, and the fingerprint in bytes 20 to 27. Lua counts from 1. Its size is contract's RESULT_HEADER_BYTES.
local HEADER_BYTES = 32

-- What the server has of a header: '' where there is no result, an error where the key is no string.
local function readHeader(output)
  return redis.pcall('GETRANGE', output, 0, HEADER_BYTES - 1)
end

local function isHeader(header)
  return type(header) == 'string' and #header >= HEADER_BYTES and string.sub(header, 1, 4) == 'SHL1'
end

local function isTaken(header)
  return string.byte(header, 7) % 2 == 1
end

local function markTaken(header)
  return string.sub(header, 1, 6) .. string.char(string.byte(header, 7) + 1) .. string.sub(header, 8)
end

local function fingerprintIn(header)
  return string.sub(header, 21, 28)
end
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
`,
};

export const TAKE_RESULTS: Script = {
  name: 'payload/take-results',
  sha: '8e02065112ad08598c47ca80777449fca4794442',
  keyCount: 0,
  lua: `#!lua flags=allow-oom
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
-- The header of a result (SHL1): "SHL1" in bytes 0 to 3, flags as a little-endian u16 in bytes 6 and 7, whose lowest
-- bit is TAKEN, and the fingerprint in bytes 20 to 27. Lua counts from 1. Its size is contract's RESULT_HEADER_BYTES.
local HEADER_BYTES = 32

-- What the server has of a header: '' where there is no result, an error where the key is no string.
local function readHeader(output)
  return redis.pcall('GETRANGE', output, 0, HEADER_BYTES - 1)
end

local function isHeader(header)
  return type(header) == 'string' and #header >= HEADER_BYTES and string.sub(header, 1, 4) == 'SHL1'
end

local function isTaken(header)
  return string.byte(header, 7) % 2 == 1
end

local function markTaken(header)
  return string.sub(header, 1, 6) .. string.char(string.byte(header, 7) + 1) .. string.sub(header, 8)
end

local function fingerprintIn(header)
  return string.sub(header, 21, 28)
end
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
`,
};
