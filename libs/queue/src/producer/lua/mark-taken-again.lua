#!lua flags=allow-oom
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
-- @include "../../redis/lua/includes/result-header.lua"
for at, output in ipairs(KEYS) do
  local header, marked, ttl = readHeader(output), ARGV[2 * at - 1], ARGV[2 * at]
  if header == '' then
    redis.call('SET', output, marked, 'PX', ttl)
  elseif type(header) == 'string' and fingerprintIn(header) == fingerprintIn(marked) then
    redis.call('SET', output, marked, 'KEEPTTL')
  end
end
return {}
