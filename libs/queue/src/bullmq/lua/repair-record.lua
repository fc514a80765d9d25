#!lua flags=allow-oom
-- Makes the record of a job readable: each damaged field gets a stand-in, and what it held is kept beside it.
--
-- Runs: by a worker that claimed a job whose record cannot be read, and by a repair
-- KEYS[1] job: its record
-- ARGV[1] most: bytes of a damaged field that are kept
-- ARGV[2] reason: why the job must fail, or nothing
-- ARGV[3] kept: what fields that keep damaged ones begin with
-- ARGV[4..] of each field: its name, what was found, its stand-in, and 1 if something was found
-- Answers: 1, or 0 when there is no such record
-- Writes: the record
-- Deletes: a damaged field without a stand-in
--
-- A field that has changed since it was looked at is left alone. BullMQ reads `defa` whenever the job is claimed, so
-- that the job fails by whoever claims it next, should this worker die now.
local jobKey, most, reason, kept = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]
if redis.call('TYPE', jobKey).ok ~= 'hash' then
  return 0
end
if reason ~= '' then
  redis.call('HSET', jobKey, 'defa', reason)
end
for at = 4, #ARGV, 4 do
  local field, was, standIn, wasThere = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3] == '1'
  local is = redis.call('HGET', jobKey, field)
  if wasThere and is == was then
    redis.call('HSET', jobKey, kept .. field, string.sub(was, 1, most), field, standIn)
    if standIn == '' then
      redis.call('HDEL', jobKey, field)
    end
  elseif not wasThere and not is then
    redis.call('HSET', jobKey, field, standIn)
  end
end
return 1
