#!lua flags=allow-oom
-- Notes what somebody did by hand.
--
-- Runs: after each command that changes something, and each action of the dashboard
-- KEYS[1] audit: stream of entries, the oldest go
-- ARGV[1] most: about so many entries stay
-- ARGV[2] entry: JSON
-- Answers: the entry's id, which begins with the server's time in ms
-- Writes: audit
-- Deletes: from audit, the oldest entries
--
-- A full server takes it too: that is when people do things by hand.
return redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'entry', ARGV[2])
