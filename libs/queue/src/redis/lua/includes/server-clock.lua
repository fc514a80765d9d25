-- The server's clock in whole milliseconds since 1970: what several machines write is compared by one clock.
local function serverClockMs()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
