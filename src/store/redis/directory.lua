-- Tenants and keys that were made on the admin side of any replica, and who has heard of them.
--
-- KEYS  1 entries   hash: name of an entry -> "at value"; at: when it was made, ms of this server's clock
--       2 order     sorted set: name by the version in which it came
--       3 state     hash: epoch, version
--       4 replicas  sorted set: replica by the end of its word, ms of this server's clock
--       5 heard     hash: replica -> the version that it has in force
-- ARGV  1 verb, 2.. its own
-- All keys carry one hash tag, so they lie in one slot.
-- A name begins with "t" (a tenant; the first one stays) or "k" (a key; the latest word on it counts, "-": revoked).

local ENTRIES, ORDER, STATE, REPLICAS, HEARD = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local verb = ARGV[1]

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local epoch = redis.call('HGET', STATE, 'epoch')
local version = tonumber(redis.call('HGET', STATE, 'version') or '0')

local function whole(number) return string.format('%.0f', number) end

local function entry(name)
  local line = redis.call('HGET', ENTRIES, name)
  if not line then return nil end
  local at, value = line:match('^(%d+) (.*)$')
  return tonumber(at), value
end

local function put(name, at, value)
  version = version + 1
  redis.call('HSET', ENTRIES, name, whole(at) .. ' ' .. value)
  redis.call('ZADD', ORDER, whole(version), name)
  redis.call('HSET', STATE, 'version', whole(version))
end

if verb == 'offer' then
  -- 2 epoch if there is none, 3 n, n x (name, at, value): what a replica knows
  if not epoch then
    epoch = ARGV[2]
    redis.call('HSET', STATE, 'epoch', epoch)
  end
  for i = 0, tonumber(ARGV[3]) - 1 do
    local name, at, value = ARGV[4 + 3 * i], tonumber(ARGV[5 + 3 * i]), ARGV[6 + 3 * i]
    local known, before = entry(name)
    local later = name:sub(1, 1) == 'k' and known and before ~= value
      and (at > known or (at == known and value == '-'))
    if not known or later then put(name, at, value) end
  end
  return { 'ok' }
end

if not epoch then return { 'empty' } end

if verb == 'change' then
  -- 2 "first": only if there is none; "always", 3 name, 4 value
  local known = entry(ARGV[3])
  if known and ARGV[2] == 'first' then return { 'exists' } end
  local at = math.max(now, (known or 0) + 1)
  put(ARGV[3], at, ARGV[4])
  return { 'ok', whole(version), whole(at) }
end

if verb == 'poll' then
  -- 2 replica, 3 epoch it knows, 4 version it has in force, 5 how long its word holds (ms), 6 most entries
  local same = ARGV[3] == epoch and tonumber(ARGV[4]) <= version
  local from = same and tonumber(ARGV[4]) or 0
  redis.call('ZADD', REPLICAS, whole(now + tonumber(ARGV[5])), ARGV[2])
  redis.call('HSET', HEARD, ARGV[2], whole(from))
  if not same then return { 'anew', epoch } end
  local most = tonumber(ARGV[6])
  local found = redis.call('ZRANGEBYSCORE', ORDER, '(' .. whole(from), '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  local reached = version
  if #found == 2 * most then reached = tonumber(found[#found]) end
  local answer = { 'ok', whole(reached), reached == version and '1' or '0' }
  for i = 1, #found, 2 do
    local at, value = entry(found[i])
    answer[#answer + 1] = found[i]
    answer[#answer + 1] = whole(at)
    answer[#answer + 1] = value
  end
  return answer
end

if verb == 'heard' then
  -- 2 version. Which replicas have it in force, and which are there and have not yet.
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', REPLICAS, '-inf', whole(now))) do
    redis.call('ZREM', REPLICAS, gone)
    redis.call('HDEL', HEARD, gone)
  end
  local yes, no = {}, {}
  for _, replica in ipairs(redis.call('ZRANGE', REPLICAS, 0, -1)) do
    local list = tonumber(redis.call('HGET', HEARD, replica) or '0') >= tonumber(ARGV[2]) and yes or no
    list[#list + 1] = replica
  end
  return { 'ok', table.concat(yes, ' '), table.concat(no, ' ') }
end

-- "leave", 2 replica: it serves nobody any more
redis.call('ZREM', REPLICAS, ARGV[2])
redis.call('HDEL', HEARD, ARGV[2])
return { 'ok' }
