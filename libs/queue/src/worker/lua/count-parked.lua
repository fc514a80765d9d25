#!lua flags=no-writes
-- Counts jobs that are parked until a worker comes that knows their version.
--
-- Runs: by whoever asks how full a queue is (`shoal queue counts`, `shoal fleet status`, metrics)
-- KEYS[1] parked: sorted set of ids of parked jobs by the version of their format
-- KEYS[2] delayed: sorted set of ids that wait for their time
-- ARGV[1] most: versions that are told apart
-- Answers: pairs of a version and how many jobs have it; after the last of them "other", where there are more
-- Writes: nothing
-- Deletes: nothing
--
-- Ids that are delayed no longer, because their job was cancelled, leave the set when a worker next looks. Where no job
-- is delayed, none is parked.
local parkedKey, delayedKey, most = KEYS[1], KEYS[2], tonumber(ARGV[1])
local answer, from = {}, '-inf'

if redis.call('ZCARD', delayedKey) == 0 then
  return answer
end

while #answer < 2 * most do
  local first = redis.call('ZRANGEBYSCORE', parkedKey, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local version = first[2]
  if not version then
    return answer
  end
  answer[#answer + 1] = version
  answer[#answer + 1] = redis.call('ZCOUNT', parkedKey, version, version)
  from = '(' .. version
end
local others = redis.call('ZCOUNT', parkedKey, from, '+inf')
if others > 0 then
  answer[#answer + 1] = 'other'
  answer[#answer + 1] = others
end
return answer
