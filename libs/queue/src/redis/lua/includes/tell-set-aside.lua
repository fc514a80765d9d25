-- Tells the producer of a record that was moved away from its id, on the channel that the record names: nobody can look
-- this failure up under the id, so that the message has its reason. Whoever named no channel of ours is told nothing.
local MOST_RECORD_BYTES = 2097152

local function channelIn(key, prefix)
  if redis.call('TYPE', key).ok ~= 'hash' or redis.call('HSTRLEN', key, 'data') > MOST_RECORD_BYTES then
    return nil
  end
  local isJson, job = pcall(cjson.decode, redis.call('HGET', key, 'data') or '')
  local channel = isJson and type(job) == 'table' and job.reply
  local beginning = prefix .. ':reply:'
  if type(channel) ~= 'string' or string.sub(channel, 1, #beginning) ~= beginning then
    return nil
  end
  local name = string.sub(channel, #beginning + 1)
  return #name <= 64 and string.match(name, '^[%w_-]+$') and channel
end

local function tellSetAside(key, prefix, queue, id)
  local channel = channelIn(key, prefix)
  if not channel then
    return
  end
  local reason = 'JOB_INVALID: no job may have the id "'
    .. string.sub(id, 1, 80)
    .. '", which is a name that the queue keeps for itself; the job was set aside. Add it again under another id'
  local message = { v = 1, queue = queue, failed = { id }, reasons = { [id] = reason } }
  redis.pcall('PUBLISH', channel, cjson.encode(message))
end
