// Written by tools/build-lua.ts from the .lua files of this folder: npm run lua.

import type { Script } from '../../redis/script.ts';

export const FIND_PLACES: Script = {
  name: 'testing/find-places',
  sha: '0c005f5ed17b3b55e41702448e89acd574e74158',
  keyCount: 2,
  lua: `-- Says where jobs of two lanes are, all at one moment of the server.
--
-- Runs: by tests and benches alone
-- KEYS[1] main: what keys of the main lane begin with, without its last colon
-- KEYS[2] cpu: the same of the CPU lane
-- ARGV[1..] of each job: its id
-- Answers: for each job "main lane|CPU lane|pending children", a lane as its lists joined by "+"
-- Writes: nothing
-- Deletes: nothing
local LISTS = { 'wait', 'active' }
local SETS = { 'prioritized', 'delayed', 'waiting-children', 'completed', 'failed' }

local function listsOf(lane, id)
  local found = {}
  for _, list in ipairs(LISTS) do
    if redis.call('LPOS', lane .. ':' .. list, id) then
      table.insert(found, list)
    end
  end
  for _, set in ipairs(SETS) do
    if redis.call('ZSCORE', lane .. ':' .. set, id) then
      table.insert(found, set)
    end
  end
  return table.concat(found, '+')
end

local places = {}
for at, id in ipairs(ARGV) do
  local children = redis.call('SCARD', KEYS[1] .. ':' .. id .. ':dependencies')
  places[at] = listsOf(KEYS[1], id) .. '|' .. listsOf(KEYS[2], id) .. '|' .. children
end
return places
`,
};
