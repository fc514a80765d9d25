// Written by tools/build-lua.ts from the .lua files of this folder: npm run lua.

import type { Script } from '../script.ts';

export const RENEW_LOCK: Script = {
  name: 'redis/renew-lock',
  sha: 'f02f3c535dd942b4281f8f0609acf71a7cede0a7',
  keyCount: 1,
  lua: [
    "#!lua flags=allow-oom\n-- Renews a lock that is ours. A lock that is somebody else's, or go",
    "ne, is left as it is.\n--\n-- Runs: by a worker for each claim while the server's memory is ",
    'full, and by the janitor between two steps\n-- KEYS[1] lock: holds the token of its owner\n-',
    '- ARGV[1] token: ours\n-- ARGV[2] life: of the lock from now, ms\n-- Answers: 1, or 0 when t',
    "he lock is not ours any more\n-- Writes: the lock's time to live\n-- Deletes: nothing\n--\n-- ",
    "PEXPIRE asks for no memory, so that a full server allows it, where it refuses BullMQ's SET",
    ".\nif redis.call('GET', KEYS[1]) ~= ARGV[1] then\n  return 0\nend\nreturn redis.call('PEXPIRE'",
    ', KEYS[1], ARGV[2])\n',
  ].join(''),
};
