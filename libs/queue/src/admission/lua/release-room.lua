#!lua flags=allow-oom
-- Gives back room that was reserved for jobs that ended or were taken off the queue.
--
-- Runs: by whoever announces an ending, by readers that acknowledge, and by producers that take jobs off the queue
-- KEYS[1] admitted: hash of the reservations of the queue
-- KEYS[2] load: hash of what all queues have reserved
-- KEYS[3] drain: hash of how much has left the queue, by which waits are told
-- ARGV[1] queue: the main queue of the model
-- ARGV[2] all: 1 to release all of it, 0 for what is queued while the result is owed
-- ARGV[3..] of each job: its id
-- Answers: how many rows are free now
-- Writes: admitted, load, drain
-- Deletes: reservations of which nothing is left
--
-- A job of the same id that was added again meanwhile loses its reservation: it is counted as less than it is, once,
-- and never for long.
-- @include "includes/release-room.lua"
local drainKey, queue, isAll = KEYS[3], ARGV[1], ARGV[2] == '1'
local rows, bytes = 0, 0
for at = 3, #ARGV do
  local goneRows, goneBytes = release(queue, ARGV[at], isAll)
  rows = rows + goneRows
  bytes = bytes + goneBytes
end
settle()
if rows > 0 then
  redis.call('HINCRBY', drainKey, 'rows', rows)
end
if bytes > 0 then
  redis.call('HINCRBY', drainKey, 'bytes', bytes)
end
return rows
