// Written by tools/build-lua.ts from the .lua files of this folder: npm run lua.

import type { Script } from '../../redis/script.ts';

export const WRITE_AUDIT: Script = {
  name: 'audit/write-audit',
  sha: '038b3709d047c406b3b0639bf87623299e10a068',
  keyCount: 1,
  lua: [
    '#!lua flags=allow-oom\n-- Notes what somebody did by hand.\n--\n-- Runs: after each command t',
    'hat changes something, and each action of the dashboard\n-- KEYS[1] audit: stream of entrie',
    's, the oldest go\n-- ARGV[1] most: about so many entries stay\n-- ARGV[2] entry: JSON\n-- Ans',
    "wers: the entry's id, which begins with the server's time in ms\n-- Writes: audit\n-- Delete",
    's: from audit, the oldest entries\n--\n-- A full server takes it too: that is when people do',
    " things by hand.\nreturn redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'entry', ",
    'ARGV[2])\n',
  ].join(''),
};
