// Written by tools/build-lua.ts from the .lua files of this folder: npm run lua.

import type { Script } from '../../redis/script.ts';

export const LIST_WORKERS: Script = {
  name: 'lanes/list-workers',
  sha: '3e6d47bd31714898d4aa0e9186e8d388865d5727',
  keyCount: 1,
  lua: `#!lua flags=allow-oom
-- Lists the workers of a lane that are alive.
--
-- Runs: by whoever asks how many workers serve a queue (\`shoal queue counts\`, a client that waits)
-- KEYS[1] workers: sorted set of worker ids by until when they are alive
-- ARGV: none
-- Answers: the ids of those alive
-- Writes: nothing
-- Deletes: nothing
-- The server's clock in whole milliseconds since 1970: what several machines write is compared by one clock.
local function serverClockMs()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
return redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. serverClockMs(), '+inf')
`,
};

export const SHOW_WORKER: Script = {
  name: 'lanes/show-worker',
  sha: 'e90054e3812f1183015e4fc380dcc5b06de4a40d',
  keyCount: 3,
  lua: `#!lua flags=allow-oom
-- Shows that a worker is alive, and takes away those whose time is up.
--
-- Runs: by each worker every two seconds, for each of its lanes
-- KEYS[1] workers: sorted set of worker ids by until when they are alive
-- KEYS[2] facts: hash of what each worker says of itself
-- KEYS[3] drained: set of workers that claim nothing
-- ARGV[1] worker: its id
-- ARGV[2] life: how long it is alive from now, ms
-- ARGV[3] facts: JSON, or nothing
-- ARGV[4] drained: how long a drained worker stays drained unseen, ms
-- Answers: nothing
-- Writes: workers, facts
-- Deletes: from workers, facts and drained those whose time is up
--
-- There is no other sweep. Drained ones keep their entry, which nobody sees any more, until they are drained no longer:
-- after an outage everybody's time is up.
-- The server's clock in whole milliseconds since 1970: what several machines write is compared by one clock.
local function serverClockMs()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
local workersKey, factsKey, drainedKey = KEYS[1], KEYS[2], KEYS[3]
local worker, lifeMs, facts, drainedMs = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local now = serverClockMs()

for _, old in ipairs(redis.call('ZRANGEBYSCORE', workersKey, '-inf', now - drainedMs)) do
  redis.call('SREM', drainedKey, old)
end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', workersKey, '-inf', now)) do
  redis.call('HDEL', factsKey, gone)
  if redis.call('SISMEMBER', drainedKey, gone) == 0 then
    redis.call('ZREM', workersKey, gone)
  end
end
redis.call('ZADD', workersKey, now + lifeMs, worker)
if facts ~= '' then
  redis.call('HSET', factsKey, worker, facts)
end
`,
};
