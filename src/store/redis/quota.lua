-- A limit per minute that replicas share: units are set aside for a replica before it spends them.
--
-- KEYS  1 tokens    hash: "<slot>:<tier>" -> units set aside in that slot (tier 1 interactive, 2 batch)
--       2 requests  the same
--       3 replicas  sorted set: replica by the time of its last exchange
--       4 open      a key that lives as long as some replica's breaker stays open
-- ARGV  1 replica, 2 ms for which its breaker stays open (0: it is not open), then for tokens and for requests:
--       limit (0: not asked), guaranteed x 2, handed back x 2, wanted x 2, least x 2
-- Answers: for tokens and requests: units x 2, still free x 2; then ms that a breaker stays open, and replicas.

local SLOT_MS = 500
-- The minute; a slot, because units count from its start; the time in which they are spent; and how unevenly calls arrive.
local KEPT = math.ceil((60000 + SLOT_MS + 700 + 750) / SLOT_MS)
local SEEN_MS = 10000

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local slot = math.floor(now / SLOT_MS)
local answer = {}

local function exchange(key, at)
  local limit = tonumber(ARGV[at])
  if limit == 0 then
    for _ = 1, 4 do answer[#answer + 1] = 0 end
    return
  end
  local function pair(first) return { tonumber(ARGV[at + first]), tonumber(ARGV[at + first + 1]) } end
  local guaranteed, back, want, needed = pair(1), pair(3), pair(5), pair(7)
  local used, slots = { 0, 0 }, {}
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    local s, tier = all[i]:match('^(%d+):(%d)$')
    s, tier = tonumber(s), tonumber(tier)
    if s <= slot - KEPT then
      redis.call('HDEL', key, all[i])
    else
      local units = tonumber(all[i + 1])
      used[tier] = used[tier] + units
      slots[all[i]] = units
    end
  end
  -- The youngest first: what is handed back was set aside not long ago.
  for tier = 1, 2 do
    for s = slot, slot - KEPT, -1 do
      if back[tier] == 0 then break end
      local field = string.format('%.0f:%d', s, tier)
      local less = math.min(slots[field] or 0, back[tier])
      if less > 0 then
        redis.call('HINCRBY', key, field, string.format('%.0f', -less))
        used[tier], back[tier] = used[tier] - less, back[tier] - less
      end
    end
  end
  local units, free = { 0, 0 }, { 0, 0 }
  for tier = 1, 2 do
    local other = 3 - tier
    local owed = math.max(0, guaranteed[other] - used[other])
    local left = math.max(0, limit - used[1] - used[2] - owed)
    local given = math.min(want[tier], left)
    if given < needed[tier] then given = 0 end
    if given > 0 then
      redis.call('HINCRBY', key, string.format('%.0f:%d', slot, tier), string.format('%.0f', given))
      used[tier] = used[tier] + given
    end
    units[tier], free[tier] = given, left - given
  end
  redis.call('PEXPIRE', key, 120000)
  answer[#answer + 1] = units[1]
  answer[#answer + 1] = units[2]
  answer[#answer + 1] = free[1]
  answer[#answer + 1] = free[2]
end

exchange(KEYS[1], 3)
exchange(KEYS[2], 12)

local open = tonumber(ARGV[2])
local known = math.max(0, redis.call('PTTL', KEYS[4]))
if open > known then redis.call('SET', KEYS[4], ARGV[1], 'PX', open) end
answer[#answer + 1] = known

redis.call('ZADD', KEYS[3], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now - SEEN_MS)
redis.call('PEXPIRE', KEYS[3], 120000)
answer[#answer + 1] = redis.call('ZCARD', KEYS[3])
return answer
