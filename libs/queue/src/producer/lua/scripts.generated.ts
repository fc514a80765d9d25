// Written by tools/build-lua.ts from the .lua files of this folder: npm run lua.

import type { Script } from '../../redis/script.ts';

export const CANCEL_CLAIMED_JOB: Script = {
  name: 'producer/cancel-claimed-job',
  sha: 'a4001e18127539c24e717c49dbee69d4935314b0',
  keyCount: 3,
  lua: `#!lua flags=allow-oom
-- Marks a claimed job as cancelled and tells all workers of its lane.
--
-- Runs: by whoever cancels a job that a worker has
-- KEYS[1] job: its record
-- KEYS[2] cancelled: is there while jobs of the lane may be marked
-- KEYS[3] waiting-children: sorted set of ids that wait for a child
-- ARGV[1] channel: on which workers of the lane hear of cancelled jobs
-- ARGV[2] message: JSON
-- ARGV[3] life: of KEYS[2], ms
-- ARGV[4] id: of the job
-- ARGV[5] mark: the field that marks a cancelled job
-- Answers: "marked", "moved" when it waits for its child in the CPU lane, or "finished"
-- Writes: the mark in the record, KEYS[2]; publishes the message
-- Deletes: nothing
local jobKey, cancelledKey, parentsKey = KEYS[1], KEYS[2], KEYS[3]
local channel, message, lifeMs, id, mark = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if redis.call('EXISTS', jobKey) == 0 or redis.call('HEXISTS', jobKey, 'finishedOn') == 1 then
  return 'finished'
end
if redis.call('ZSCORE', parentsKey, id) then
  return 'moved'
end
redis.call('HSET', jobKey, mark, 1)
redis.call('SET', cancelledKey, 1, 'PX', lifeMs)
redis.call('PUBLISH', channel, message)
return 'marked'
`,
};

export const DISCARD_INPUT: Script = {
  name: 'producer/discard-input',
  sha: 'f9bae96971525e9f494dd3320061f02f37627fae',
  keyCount: 2,
  lua: `#!lua flags=allow-oom
-- Deletes the input of a job that is gone: it belongs to nobody.
--
-- Runs: by a producer that took a waiting job off the queue
-- KEYS[1] job: its record
-- KEYS[2] input: of the job
-- ARGV: none
-- Answers: nothing
-- Writes: nothing
-- Deletes: the input, where there is no record
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('DEL', KEYS[2])
end
`,
};

export const FIND_CANCELLED_JOBS: Script = {
  name: 'producer/find-cancelled-jobs',
  sha: 'ab2e0c2871b0e02e71d24ab2165a92b475d524ff',
  keyCount: 1,
  lua: `#!lua flags=allow-oom
-- Says which of some jobs are marked as cancelled.
--
-- Runs: by a worker after every claim, after every reconnect and now and then, while jobs of its lane may be marked
-- KEYS[1] cancelled: is there while jobs of the lane may be marked
-- ARGV[1] jobs: what keys of jobs begin with
-- ARGV[2] mark: the field that marks a cancelled job
-- ARGV[3..] of each job: its id
-- Answers: the ids that are marked
-- Writes: nothing
-- Deletes: nothing
local marked = {}
if redis.call('EXISTS', KEYS[1]) == 0 then
  return marked
end
for at = 3, #ARGV do
  if redis.call('HEXISTS', ARGV[1] .. ARGV[at], ARGV[2]) == 1 then
    marked[#marked + 1] = ARGV[at]
  end
end
return marked
`,
};

export const MARK_TAKEN_AGAIN: Script = {
  name: 'producer/mark-taken-again',
  sha: 'f6f186638a906908b17513ac5e9d65cc6c103678',
  keyCount: 0,
  lua: `#!lua flags=allow-oom
-- Marks results as taken whose headers the reader remembers, also where the server has forgotten them.
--
-- Runs: by a reader for up to 32 results a call: for those whose bodies it has, and after the server came back for
--   those of the last seconds
-- KEYS[1..] of each result: its key
-- ARGV[1..] of each result: its header, marked, and its time to live where nothing is left of it, ms
-- Answers: an empty list
-- Writes: each result, its header instead of all of it
-- Deletes: nothing
--
-- Another result under the same key belongs to a later request and stays.
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
for at, output in ipairs(KEYS) do
  local header, marked, ttl = readHeader(output), ARGV[2 * at - 1], ARGV[2 * at]
  if header == '' then
    redis.call('SET', output, marked, 'PX', ttl)
  elseif type(header) == 'string' and fingerprintIn(header) == fingerprintIn(marked) then
    redis.call('SET', output, marked, 'KEEPTTL')
  end
end
return {}
`,
};

export const MARK_TAKEN: Script = {
  name: 'producer/mark-taken',
  sha: '9f2de15d013934d9b79e17402d1c8a479cfb869f',
  keyCount: 0,
  lua: `#!lua flags=allow-oom
-- Marks results as taken: their headers stay, their bodies go.
--
-- Runs: by a reader for up to 32 results a call, whose bodies it had from before
-- KEYS[1..] of each result: its key
-- ARGV: none
-- Answers: for each result its header, marked, or false where there is no result
-- Writes: each result, its header instead of all of it; its time to live stays
-- Deletes: nothing
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
local function mark(output)
  local header = readHeader(output)
  if not isHeader(header) then
    return false
  end
  if isTaken(header) then
    return header
  end
  local marked = markTaken(header)
  redis.call('SET', output, marked, 'KEEPTTL')
  return marked
end

local headers = {}
for at, output in ipairs(KEYS) do
  headers[at] = mark(output)
end
return headers
`,
};

export const READ_ENDINGS: Script = {
  name: 'producer/read-endings',
  sha: 'e3106bd68034fb8a31f6529c8f331bf271c9a00a',
  keyCount: 0,
  lua: `#!lua flags=allow-oom
-- Says of jobs whether they ended, and how.
--
-- Runs: by a producer for up to 32 jobs a call that it has not heard of
-- KEYS[1..] of each job: its record
-- ARGV: none
-- Answers: for each job false while it is open, else a list of its state ("completed", "failed" or "unknown") and why
--   it failed
-- Writes: nothing
-- Deletes: nothing
--
-- BullMQ's getState reads all of a queue's lists to tell a waiting job from an active one. A record that is none is for
-- the janitor to fail.
local function endingOf(job)
  local fields = redis.pcall('HMGET', job, 'name', 'finishedOn', 'returnvalue', 'failedReason')
  if fields.err then
    return false
  end
  local name, finishedOn, value, reason = fields[1], fields[2], fields[3], fields[4]
  if not finishedOn then
    return not name and { 'unknown' }
  end
  return value and { 'completed' } or { 'failed', reason or '' }
end

local answers = {}
for at, job in ipairs(KEYS) do
  answers[at] = endingOf(job)
end
return answers
`,
};
