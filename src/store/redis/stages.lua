-- The stage of one move that replicas share: the larger revision is the later one.
--
-- KEYS  1 stages  hash: move -> "<revision> <what was set>"
-- ARGV  1 move, 2 the largest revision that the caller knows, 3 what was set, 4 "set": it is new, and becomes the latest;
--       "offer": it is what the caller knows, for a server that may have lost it
-- Answers the revision that holds.

local held = redis.call('HGET', KEYS[1], ARGV[1])
local known = held and tonumber(held:match('^(%d+) ')) or 0
local revision = tonumber(ARGV[2])
if ARGV[4] == 'set' then
  revision = math.max(known, revision) + 1
elseif revision <= known then
  return string.format('%.0f', known)
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f %s', revision, ARGV[3]))
return string.format('%.0f', revision)
