// Written by tools/build-lua.ts from the .lua files of this folder: npm run lua.

import type { Script } from '../script.ts';

export const RENEW_LOCK: Script = {
  name: 'redis/renew-lock',
  sha: 'f02f3c535dd942b4281f8f0609acf71a7cede0a7',
  keyCount: 1,
  lua: `#!lua flags=allow-oom
-- Renews a lock that is ours. A lock that is somebody else's, or gone, is left as it is.
--
-- Runs: by a worker for each claim while the server's memory is full, and by the janitor between two steps
-- KEYS[1] lock: holds the token of its owner
-- ARGV[1] token: ours
-- ARGV[2] life: of the lock from now, ms
-- Answers: 1, or 0 when the lock is not ours any more
-- Writes: the lock's time to live
-- Deletes: nothing
--
-- PEXPIRE asks for no memory, so that a full server allows it, where it refuses BullMQ's SET.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
`,
};
