-- One tenant's balance, shared by replicas. The same rules as `pure::ledger`, each verb one atomic step.
--
-- KEYS  1 book      hash: epoch, period (ms), spent, held, lower (of the open holds), credits, written_off
--       2 holds     hash: hold -> "amount lower replica request"
--       3 due       sorted set: hold by the end of its lease, ms of this server's clock
--       4 lapsed    hash: holds whose lease ended, in case that their charge comes after all
--       5 keys      hash: idempotency key of a credit -> amount
--       6 parts     hash: replica -> what it charged in this period; what balances are restored from
--       7 records   stream: usage, credits, period starts and lapsed holds, for every replica's journal
--       8 seqs      hash: replica -> the last of its numbered records that counted
--       9 late      hash: holds that were charged although nothing was known of them
-- ARGV  1 verb, 2 budget or "-", 3 start of the period (ms), 4 deadline (ms of this server's clock, 0: none), 5.. its own
-- All keys carry the tenant's hash tag, so they lie in one slot. Every answer begins with
-- { status, epoch, remaining or "-", whether settlements may free more, start of the period, spent, held, credits, written
-- off, open holds }.

local BOOK, HOLDS, DUE, LAPSED, CREDITED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local PARTS, RECORDS, SEQS, LATE = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local verb, budget, period, deadline = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

-- A replica that was away for longer than this has a gap in its journal.
local KEPT_MS = 7 * 86400000
-- What is remembered for stragglers, seconds.
local STRAGGLERS_S = 172800
-- Leases looked at in one step.
local STEP = 100

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if deadline > 0 and now > deadline then return { 'late' } end

local fields = redis.call('HMGET', BOOK, 'epoch', 'period', 'spent', 'held', 'lower', 'credits', 'written_off')
local epoch = fields[1]
if not epoch and verb ~= 'open' then return { 'empty' } end
local book = {
  period = tonumber(fields[2] or '0'),
  spent = parse(fields[3] or '0'),
  held = parse(fields[4] or '0'),
  lower = parse(fields[5] or '0'),
  credits = parse(fields[6] or '0'),
  written_off = parse(fields[7] or '0'),
}

local function ms(number) return string.format('%.0f', number) end

local function save()
  redis.call('HSET', BOOK, 'epoch', epoch, 'period', ms(book.period), 'spent', text(book.spent),
    'held', text(book.held), 'lower', text(book.lower), 'credits', text(book.credits),
    'written_off', text(book.written_off))
end

local function tell(...)
  return redis.call('XADD', RECORDS, 'MINID', '~', ms(now - KEPT_MS), '*', 't', ms(now), ...)
end

local function granted() return plus(parse(budget), book.credits) end
local function available() return minus(granted(), plus(book.spent, book.held)) end
local function at_best() return minus(granted(), plus(book.spent, book.lower)) end

local function answer(status, ...)
  local remaining, hope = '-', '1'
  if budget ~= '-' then
    remaining = text(available())
    if compare(at_best(), ZERO) == 0 then hope = '0' end
  end
  return { status, epoch, remaining, hope, ms(book.period), text(book.spent), text(book.held), text(book.credits),
    text(book.written_off), ms(redis.call('HLEN', HOLDS)), ... }
end

local function roll(start)
  if start <= book.period then return end
  if budget ~= '-' then
    book.credits = minus(book.credits, minus(book.spent, parse(budget)))
  end
  book.spent, book.written_off, book.period = ZERO, ZERO, start
  redis.call('DEL', PARTS)
  tell('k', 'period', 'p', ms(start), 'b', budget)
end

-- Takes an open hold out of the sums; its amount and its own words, or nil.
local function take(id)
  local line = redis.call('HGET', HOLDS, id)
  if not line then return nil end
  local amount, lower = line:match('^(%d+) (%d+) ')
  book.held = minus(book.held, parse(amount))
  book.lower = minus(book.lower, parse(lower))
  redis.call('HDEL', HOLDS, id)
  redis.call('ZREM', DUE, id)
  return parse(amount), line
end

local function sweep()
  local over = redis.call('ZRANGEBYSCORE', DUE, '-inf', ms(now), 'LIMIT', 0, STEP)
  for _, id in ipairs(over) do
    local amount, line = take(id)
    if amount then
      redis.call('HSET', LAPSED, id, line)
      redis.call('EXPIRE', LAPSED, STRAGGLERS_S)
      local replica, request = line:match('^%d+ %d+ (%S+) (.*)$')
      tell('k', 'release', 'h', id, 'a', text(amount), 'o', replica, 'q', request)
    else
      redis.call('ZREM', DUE, id)
    end
  end
  return #over
end

local function charge(replica, amount)
  book.spent = plus(book.spent, amount)
  local before = parse(redis.call('HGET', PARTS, replica) or '0')
  redis.call('HSET', PARTS, replica, text(plus(before, amount)))
end

roll(period)

if verb == 'open' then
  -- 5 epoch if it is new, 6 the caller's period, 7 credits, 8 written off, 9 n, n x (replica, part), m, m x (key, credit)
  local created, given, at = '0', tonumber(ARGV[6]), 10
  if not epoch then
    created, epoch = '1', ARGV[5]
    book.period = math.max(book.period, given)
    book.credits, book.written_off = parse(ARGV[7]), parse(ARGV[8])
  end
  roll(given)
  local raised = ZERO
  for _ = 1, tonumber(ARGV[9]) do
    local replica, part = ARGV[at], parse(ARGV[at + 1])
    at = at + 2
    local missing = minus(part, parse(redis.call('HGET', PARTS, replica) or '0'))
    if given == book.period and compare(missing, ZERO) > 0 then
      charge(replica, missing)
      raised = plus(raised, missing)
    end
  end
  local count = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, count do
    if redis.call('HSETNX', CREDITED, ARGV[at], ARGV[at + 1]) == 1 and created == '0' then
      book.credits = plus(book.credits, parse(ARGV[at + 1]))
    end
    at = at + 2
  end
  save()
  return answer('ok', created, text(raised))
end

if verb == 'place' then
  -- 5 hold, 6 most, 7 likely, 8 least, 9 lease (ms), 10 replica, 11 request
  local id, most, likely, lower = ARGV[5], parse(ARGV[6]), parse(ARGV[7]), parse(ARGV[8])
  local known = redis.call('HGET', HOLDS, id)
  if known then return answer('held', known:match('^%d+')) end
  while compare(available(), most) < 0 and sweep() == STEP do end
  local amount, free = nil, available()
  if compare(free, most) >= 0 then
    amount = most
  elseif compare(book.held, ZERO) > 0 then
    save()
    local needed = least(most, lower)
    if compare(needed, ZERO) == 0 then needed = { 1, 0, 0 } end
    if compare(at_best(), needed) < 0 then return answer('refused') end
    return answer('wait')
  elseif compare(free, ZERO) > 0 and compare(free, lower) >= 0 and compare(free, likely) >= 0 then
    -- The last call: nothing else is under way, and it will probably fit.
    amount = free
  else
    save()
    return answer('refused')
  end
  lower = least(lower, amount)
  book.held, book.lower = plus(book.held, amount), plus(book.lower, lower)
  redis.call('HSET', HOLDS, id, text(amount) .. ' ' .. text(lower) .. ' ' .. ARGV[10] .. ' ' .. ARGV[11])
  redis.call('ZADD', DUE, ms(now + tonumber(ARGV[9])), id)
  save()
  return answer('held', text(amount))
end

if verb == 'settle' then
  -- 5 hold, 6 charge or "-", 7 replica, 8 its number or 0, 9 "1": also if nothing is known of the hold, 10 record or "",
  -- 11.. further holds of the same request, which end with it
  local id, within, late = ARGV[5], ZERO, '0'
  local amount = take(id)
  for at = 11, #ARGV do
    local more = take(ARGV[at])
    if more then amount = plus(amount or ZERO, more) end
  end
  if not amount then
    if redis.call('HDEL', LAPSED, id) == 0 then
      if ARGV[9] ~= '1' then return answer('unknown') end
      if redis.call('HSETNX', LATE, id, '1') == 0 then return answer('known') end
      redis.call('EXPIRE', LATE, STRAGGLERS_S)
    end
    amount, late = ZERO, '1'
  end
  if ARGV[6] == '-' then
    save()
    return answer('settled', '0', '0', late, '')
  end
  local cost = parse(ARGV[6])
  within = least(cost, amount)
  local overrun = minus(cost, amount)
  local covered = overrun
  charge(ARGV[7], within)
  if budget ~= '-' then covered = least(overrun, available()) end
  charge(ARGV[7], covered)
  local shortfall = minus(overrun, covered)
  book.written_off = plus(book.written_off, shortfall)
  local charged, entry = text(plus(within, covered)), ''
  if ARGV[10] ~= '' then
    entry = tell('k', 'usage', 'o', ARGV[7], 'n', ARGV[8], 'h', id, 'c', charged, 's', text(shortfall),
      'p', ms(book.period), 'r', ARGV[10])
  end
  save()
  return answer('settled', charged, text(shortfall), late, entry)
end

if verb == 'meter' then
  -- 5 replica, 6 n, n x (number, charge, record). In order of their numbers: one that is not above the last counted already.
  local last, at = tonumber(redis.call('HGET', SEQS, ARGV[5]) or '0'), 7
  for _ = 1, tonumber(ARGV[6]) do
    local number = tonumber(ARGV[at])
    if number > last then
      charge(ARGV[5], parse(ARGV[at + 1]))
      tell('k', 'usage', 'o', ARGV[5], 'n', ARGV[at], 'h', '', 'c', ARGV[at + 1], 's', '0', 'p', ms(book.period),
        'r', ARGV[at + 2])
      last = number
    end
    at = at + 3
  end
  redis.call('HSET', SEQS, ARGV[5], ms(last))
  save()
  return answer('ok')
end

if verb == 'credit' then
  -- 5 idempotency key, 6 amount
  local before = redis.call('HGET', CREDITED, ARGV[5])
  if before == ARGV[6] then return answer('repeated') end
  if before then return answer('conflict') end
  redis.call('HSET', CREDITED, ARGV[5], ARGV[6])
  book.credits = plus(book.credits, parse(ARGV[6]))
  tell('k', 'credit', 'i', ARGV[5], 'a', ARGV[6])
  save()
  return answer('applied')
end

if verb == 'renew' then
  -- 5 lease (ms), 6.. holds
  for at = 6, #ARGV do
    redis.call('ZADD', DUE, 'XX', ms(now + tonumber(ARGV[5])), ARGV[at])
  end
  return answer('ok')
end

-- "look": ends leases that are over, and tells the rest.
while sweep() == STEP do end
save()
return answer('ok')
