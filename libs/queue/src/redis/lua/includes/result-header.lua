-- The header of a result (SHL1): "SHL1" in bytes 0 to 3, flags as a little-endian u16 in bytes 6 and 7, whose lowest
-- bit is TAKEN, and the fingerprint in bytes 20 to 27. Lua counts from 1. Its size is contract's RESULT_HEADER_BYTES.
local HEADER_BYTES = 32

-- What the server has of a header: '' where there is no result, an error where the key is no string.
local function readHeader(output)
  return redis.pcall('GETRANGE', output, 0, HEADER_BYTES - 1)
end

local function isHeader(header)
  return type(header) == 'string' and #header >= HEADER_BYTES and string.sub(header, 1, 4) == 'SHL1'
end

local function isTaken(header)
  return string.byte(header, 7) % 2 == 1
end

local function markTaken(header)
  return string.sub(header, 1, 6) .. string.char(string.byte(header, 7) + 1) .. string.sub(header, 8)
end

local function fingerprintIn(header)
  return string.sub(header, 21, 28)
end
