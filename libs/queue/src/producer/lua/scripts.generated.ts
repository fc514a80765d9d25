// Written by tools/build-lua.ts from the .lua files of this folder: npm run lua.

import type { Script } from '../../redis/script.ts';

export const CANCEL_CLAIMED_JOB: Script = {
  name: 'producer/cancel-claimed-job',
  sha: 'a4001e18127539c24e717c49dbee69d4935314b0',
  keyCount: 3,
  lua: [
    '#!lua flags=allow-oom\n-- Marks a claimed job as cancelled and tells all workers of its lan',
    'e.\n--\n-- Runs: by whoever cancels a job that a worker has\n-- KEYS[1] job: its record\n-- KE',
    'YS[2] cancelled: is there while jobs of the lane may be marked\n-- KEYS[3] waiting-children',
    ': sorted set of ids that wait for a child\n-- ARGV[1] channel: on which workers of the lane',
    ' hear of cancelled jobs\n-- ARGV[2] message: JSON\n-- ARGV[3] life: of KEYS[2], ms\n-- ARGV[4',
    '] id: of the job\n-- ARGV[5] mark: the field that marks a cancelled job\n-- Answers: "marked',
    '", "moved" when it waits for its child in the CPU lane, or "finished"\n-- Writes: the mark ',
    'in the record, KEYS[2]; publishes the message\n-- Deletes: nothing\nlocal jobKey, cancelledK',
    'ey, parentsKey = KEYS[1], KEYS[2], KEYS[3]\nlocal channel, message, lifeMs, id, mark = ARGV',
    "[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]\nif redis.call('EXISTS', jobKey) == 0 or redis.call",
    "('HEXISTS', jobKey, 'finishedOn') == 1 then\n  return 'finished'\nend\nif redis.call('ZSCORE'",
    ", parentsKey, id) then\n  return 'moved'\nend\nredis.call('HSET', jobKey, mark, 1)\nredis.call",
    "('SET', cancelledKey, 1, 'PX', lifeMs)\nredis.call('PUBLISH', channel, message)\nreturn 'mar",
    "ked'\n",
  ].join(''),
};

export const DISCARD_INPUT: Script = {
  name: 'producer/discard-input',
  sha: 'f9bae96971525e9f494dd3320061f02f37627fae',
  keyCount: 2,
  lua: [
    '#!lua flags=allow-oom\n-- Deletes the input of a job that is gone: it belongs to nobody.\n--',
    '\n-- Runs: by a producer that took a waiting job off the queue\n-- KEYS[1] job: its record\n-',
    '- KEYS[2] input: of the job\n-- ARGV: none\n-- Answers: nothing\n-- Writes: nothing\n-- Delete',
    "s: the input, where there is no record\nif redis.call('EXISTS', KEYS[1]) == 0 then\n  redis.",
    "call('DEL', KEYS[2])\nend\n",
  ].join(''),
};

export const FIND_CANCELLED_JOBS: Script = {
  name: 'producer/find-cancelled-jobs',
  sha: '0b3d5d38058570da5b3e6dd13a887164625e4ee5',
  keyCount: 1,
  lua: [
    '#!lua flags=no-writes\n-- Says which of some jobs are marked as cancelled.\n--\n-- Runs: by a',
    ' worker after every claim, after every reconnect and now and then, while jobs of its lane ',
    'may be marked\n-- KEYS[1] cancelled: is there while jobs of the lane may be marked\n-- ARGV[',
    '1] jobs: what keys of jobs begin with\n-- ARGV[2] mark: the field that marks a cancelled jo',
    'b\n-- ARGV[3..] of each job: its id\n-- Answers: the ids that are marked\n-- Writes: nothing\n',
    "-- Deletes: nothing\nlocal marked = {}\nif redis.call('EXISTS', KEYS[1]) == 0 then\n  return ",
    "marked\nend\nfor at = 3, #ARGV do\n  if redis.call('HEXISTS', ARGV[1] .. ARGV[at], ARGV[2]) =",
    '= 1 then\n    marked[#marked + 1] = ARGV[at]\n  end\nend\nreturn marked\n',
  ].join(''),
};

export const MARK_TAKEN_AGAIN: Script = {
  name: 'producer/mark-taken-again',
  sha: 'f6f186638a906908b17513ac5e9d65cc6c103678',
  keyCount: 0,
  lua: [
    '#!lua flags=allow-oom\n-- Marks results as taken whose headers the reader remembers, also w',
    'here the server has forgotten them.\n--\n-- Runs: by a reader for up to 32 results a call: f',
    'or those whose bodies it has, and after the server came back for\n--   those of the last se',
    'conds\n-- KEYS[1..] of each result: its key\n-- ARGV[1..] of each result: its header, marked',
    ', and its time to live where nothing is left of it, ms\n-- Answers: an empty list\n-- Writes',
    ': each result, its header instead of all of it\n-- Deletes: nothing\n--\n-- Another result un',
    'der the same key belongs to a later request and stays.\n-- The header of a result (SHL1): "',
    'SHL1" in bytes 0 to 3, flags as a little-endian u16 in bytes 6 and 7, whose lowest\n-- bit ',
    "is TAKEN, and the fingerprint in bytes 20 to 27. Lua counts from 1. Its size is contract's",
    " RESULT_HEADER_BYTES.\nlocal HEADER_BYTES = 32\n\n-- What the server has of a header: '' wher",
    'e there is no result, an error where the key is no string.\nlocal function readHeader(outpu',
    "t)\n  return redis.pcall('GETRANGE', output, 0, HEADER_BYTES - 1)\nend\n\nlocal function isHea",
    "der(header)\n  return type(header) == 'string' and #header >= HEADER_BYTES and string.sub(h",
    "eader, 1, 4) == 'SHL1'\nend\n\nlocal function isTaken(header)\n  return string.byte(header, 7)",
    ' % 2 == 1\nend\n\nlocal function markTaken(header)\n  return string.sub(header, 1, 6) .. strin',
    'g.char(string.byte(header, 7) + 1) .. string.sub(header, 8)\nend\n\nlocal function fingerprin',
    'tIn(header)\n  return string.sub(header, 21, 28)\nend\nfor at, output in ipairs(KEYS) do\n  lo',
    'cal header, marked, ttl = readHeader(output), ARGV[2 * at - 1], ARGV[2 * at]\n  if header =',
    "= '' then\n    redis.call('SET', output, marked, 'PX', ttl)\n  elseif type(header) == 'strin",
    "g' and fingerprintIn(header) == fingerprintIn(marked) then\n    redis.call('SET', output, m",
    "arked, 'KEEPTTL')\n  end\nend\nreturn {}\n",
  ].join(''),
};

export const MARK_TAKEN: Script = {
  name: 'producer/mark-taken',
  sha: '9f2de15d013934d9b79e17402d1c8a479cfb869f',
  keyCount: 0,
  lua: [
    '#!lua flags=allow-oom\n-- Marks results as taken: their headers stay, their bodies go.\n--\n-',
    '- Runs: by a reader for up to 32 results a call, whose bodies it had from before\n-- KEYS[1',
    '..] of each result: its key\n-- ARGV: none\n-- Answers: for each result its header, marked, ',
    'or false where there is no result\n-- Writes: each result, its header instead of all of it;',
    ' its time to live stays\n-- Deletes: nothing\n-- The header of a result (SHL1): "SHL1" in by',
    'tes 0 to 3, flags as a little-endian u16 in bytes 6 and 7, whose lowest\n-- bit is TAKEN, a',
    "nd the fingerprint in bytes 20 to 27. Lua counts from 1. Its size is contract's RESULT_HEA",
    "DER_BYTES.\nlocal HEADER_BYTES = 32\n\n-- What the server has of a header: '' where there is ",
    'no result, an error where the key is no string.\nlocal function readHeader(output)\n  return',
    " redis.pcall('GETRANGE', output, 0, HEADER_BYTES - 1)\nend\n\nlocal function isHeader(header)",
    "\n  return type(header) == 'string' and #header >= HEADER_BYTES and string.sub(header, 1, 4",
    ") == 'SHL1'\nend\n\nlocal function isTaken(header)\n  return string.byte(header, 7) % 2 == 1\ne",
    'nd\n\nlocal function markTaken(header)\n  return string.sub(header, 1, 6) .. string.char(stri',
    'ng.byte(header, 7) + 1) .. string.sub(header, 8)\nend\n\nlocal function fingerprintIn(header)',
    '\n  return string.sub(header, 21, 28)\nend\nlocal function mark(output)\n  local header = read',
    'Header(output)\n  if not isHeader(header) then\n    return false\n  end\n  if isTaken(header) ',
    "then\n    return header\n  end\n  local marked = markTaken(header)\n  redis.call('SET', output",
    ", marked, 'KEEPTTL')\n  return marked\nend\n\nlocal headers = {}\nfor at, output in ipairs(KEYS",
    ') do\n  headers[at] = mark(output)\nend\nreturn headers\n',
  ].join(''),
};

export const READ_ENDINGS: Script = {
  name: 'producer/read-endings',
  sha: '0bf07d7df7496122045313c672d9cfb0c0f91b9f',
  keyCount: 0,
  lua: [
    '#!lua flags=no-writes\n-- Says of jobs whether they ended, and how.\n--\n-- Runs: by a produc',
    'er for up to 32 jobs a call that it has not heard of\n-- KEYS[1..] of each job: its record\n',
    '-- ARGV: none\n-- Answers: for each job false while it is open, else a list of its state ("',
    'completed", "failed" or "unknown") and why\n--   it failed\n-- Writes: nothing\n-- Deletes: n',
    "othing\n--\n-- BullMQ's getState reads all of a queue's lists to tell a waiting job from an ",
    'active one. A record that is none is for\n-- the janitor to fail.\nlocal function endingOf(j',
    "ob)\n  local fields = redis.pcall('HMGET', job, 'name', 'finishedOn', 'returnvalue', 'faile",
    "dReason')\n  if fields.err then\n    return false\n  end\n  local name, finishedOn, value, rea",
    'son = fields[1], fields[2], fields[3], fields[4]\n  if not finishedOn then\n    return not n',
    "ame and { 'unknown' }\n  end\n  return value and { 'completed' } or { 'failed', reason or ''",
    ' }\nend\n\nlocal answers = {}\nfor at, job in ipairs(KEYS) do\n  answers[at] = endingOf(job)\nen',
    'd\nreturn answers\n',
  ].join(''),
};
