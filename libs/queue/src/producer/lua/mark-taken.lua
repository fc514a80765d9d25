#!lua flags=allow-oom
-- Marks results as taken: their headers stay, their bodies go.
--
-- Runs: by a reader for up to 32 results a call, whose bodies it had from before
-- KEYS[1..] of each result: its key
-- ARGV: none
-- Answers: for each result its header, marked, or false where there is no result
-- Writes: each result, its header instead of all of it; its time to live stays
-- Deletes: nothing
-- @include "../../redis/lua/includes/result-header.lua"
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
