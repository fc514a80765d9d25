// Written by tools/build-lua.ts from the .lua files of this folder: npm run lua.

import type { Script } from '../../redis/script.ts';

export const LIST_WORKERS: Script = {
  name: 'lanes/list-workers',
  sha: '02224e5af38004a0f8da45a78699e1023890b8e3',
  keyCount: 1,
  lua: [
    '#!lua flags=no-writes\n-- Lists the workers of a lane that are alive.\n--\n-- Runs: by whoeve',
    'r asks how many workers serve a queue (`shoal queue counts`, a client that waits)\n-- KEYS[',
    '1] workers: sorted set of worker ids by until when they are alive\n-- ARGV: none\n-- Answers',
    ": the ids of those alive\n-- Writes: nothing\n-- Deletes: nothing\n-- The server's clock in w",
    'hole milliseconds since 1970: what several machines write is compared by one clock.\nlocal ',
    "function serverClockMs()\n  local time = redis.call('TIME')\n  return time[1] * 1000 + math.",
    'floor(time[2] / 1000)\nend\n\n-- Who seems to be alive for longer wrote that before the clock',
    ' was set back.\nlocal LONGEST_LIFE_MS = 60000\nlocal now = serverClockMs()\nreturn redis.call',
    "('ZRANGEBYSCORE', KEYS[1], '(' .. now, now + LONGEST_LIFE_MS)\n",
  ].join(''),
};

export const SHOW_WORKER: Script = {
  name: 'lanes/show-worker',
  sha: '3af937b92dbaf30b37a5f61188f7e3dc51dbdb88',
  keyCount: 3,
  lua: [
    '#!lua flags=allow-oom\n-- Shows that a worker is alive, and takes away those whose time is ',
    'up.\n--\n-- Runs: by each worker every two seconds, for each of its lanes\n-- KEYS[1] workers',
    ': sorted set of worker ids by until when they are alive\n-- KEYS[2] facts: hash of what eac',
    'h worker says of itself\n-- KEYS[3] drained: set of workers that claim nothing\n-- ARGV[1] w',
    'orker: its id\n-- ARGV[2] life: how long it is alive from now, ms\n-- ARGV[3] facts: JSON, o',
    'r nothing\n-- ARGV[4] drained: how long a drained worker stays drained unseen, ms\n-- Answer',
    's: nothing\n-- Writes: workers, facts\n-- Deletes: from workers, facts and drained those who',
    'se time is up\n--\n-- There is no other sweep. Drained ones keep their entry, which nobody s',
    "ees any more, until they are drained no longer:\n-- after an outage everybody's time is up.",
    "\n-- The server's clock in whole milliseconds since 1970: what several machines write is co",
    "mpared by one clock.\nlocal function serverClockMs()\n  local time = redis.call('TIME')\n  re",
    'turn time[1] * 1000 + math.floor(time[2] / 1000)\nend\n-- Ten times that of this version.\nlo',
    'cal LONGEST_LIFE_MS = 60000\nlocal workersKey, factsKey, drainedKey = KEYS[1], KEYS[2], KEY',
    'S[3]\nlocal worker, lifeMs, facts, drainedMs = ARGV[1], ARGV[2], ARGV[3], ARGV[4]\nlocal now',
    ' = serverClockMs()\n\n-- Who seems to be alive for longer than anybody may be wrote that bef',
    "ore the clock was set back.\nfor _, ghost in ipairs(redis.call('ZRANGEBYSCORE', workersKey,",
    " '(' .. now + LONGEST_LIFE_MS, '+inf')) do\n  redis.call('ZADD', workersKey, now, ghost)\nen",
    "d\nfor _, old in ipairs(redis.call('ZRANGEBYSCORE', workersKey, '-inf', now - drainedMs)) d",
    "o\n  redis.call('SREM', drainedKey, old)\nend\nfor _, gone in ipairs(redis.call('ZRANGEBYSCOR",
    "E', workersKey, '-inf', now)) do\n  redis.call('HDEL', factsKey, gone)\n  if redis.call('SIS",
    "MEMBER', drainedKey, gone) == 0 then\n    redis.call('ZREM', workersKey, gone)\n  end\nend\nre",
    "dis.call('ZADD', workersKey, now + lifeMs, worker)\nif facts ~= '' then\n  redis.call('HSET'",
    ', factsKey, worker, facts)\nend\n',
  ].join(''),
};
