// Written by tools/build-lua.ts from the .lua files of this folder: npm run lua.

import type { Script } from '../../redis/script.ts';

export const FIND_PLACES: Script = {
  name: 'testing/find-places',
  sha: '0c005f5ed17b3b55e41702448e89acd574e74158',
  keyCount: 2,
  lua: [
    '-- Says where jobs of two lanes are, all at one moment of the server.\n--\n-- Runs: by tests',
    ' and benches alone\n-- KEYS[1] main: what keys of the main lane begin with, without its las',
    't colon\n-- KEYS[2] cpu: the same of the CPU lane\n-- ARGV[1..] of each job: its id\n-- Answe',
    'rs: for each job "main lane|CPU lane|pending children", a lane as its lists joined by "+"\n',
    "-- Writes: nothing\n-- Deletes: nothing\nlocal LISTS = { 'wait', 'active' }\nlocal SETS = { '",
    "prioritized', 'delayed', 'waiting-children', 'completed', 'failed' }\n\nlocal function lists",
    "Of(lane, id)\n  local found = {}\n  for _, list in ipairs(LISTS) do\n    if redis.call('LPOS'",
    ", lane .. ':' .. list, id) then\n      table.insert(found, list)\n    end\n  end\n  for _, set",
    " in ipairs(SETS) do\n    if redis.call('ZSCORE', lane .. ':' .. set, id) then\n      table.i",
    "nsert(found, set)\n    end\n  end\n  return table.concat(found, '+')\nend\n\nlocal places = {}\nf",
    "or at, id in ipairs(ARGV) do\n  local children = redis.call('SCARD', KEYS[1] .. ':' .. id .",
    ". ':dependencies')\n  places[at] = listsOf(KEYS[1], id) .. '|' .. listsOf(KEYS[2], id) .. '",
    "|' .. children\nend\nreturn places\n",
  ].join(''),
};
