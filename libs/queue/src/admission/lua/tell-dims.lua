#!lua flags=allow-oom
-- Says how many dimensions the results of a queue have, so that reservations are right.
--
-- Runs: by each worker at its start
-- KEYS[1] load: hash of what all queues have reserved
-- ARGV[1] field: "dims <queue>"
-- ARGV[2] dims: how many
-- Answers: nothing
-- Writes: load
-- Deletes: nothing
--
-- A worker starts where the memory is full as well: it is needed there.
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
