-- Exact amounts: whole numbers of 10^-18 of the currency, never negative, kept as decimal text.
-- Lua's numbers are binary floats, exact below 2^53. So an amount is worked with as three limbs of 13 decimal digits,
-- lowest first: sums and borrows of such limbs stay below 2 * 10^13. The highest limb is not bounded by 10^13; the
-- largest amount that the gateway knows (1.7 * 10^38) leaves room for some five thousand of them.
local LIMB = 10000000000000
local ZERO = { 0, 0, 0 }

local function parse(text)
  local n = #text
  if n <= 13 then return { tonumber(text), 0, 0 } end
  if n <= 26 then return { tonumber(text:sub(-13)), tonumber(text:sub(1, n - 13)), 0 } end
  return { tonumber(text:sub(-13)), tonumber(text:sub(-26, -14)), tonumber(text:sub(1, n - 26)) }
end

local function text(a)
  if a[3] > 0 then return string.format('%.0f%013.0f%013.0f', a[3], a[2], a[1]) end
  if a[2] > 0 then return string.format('%.0f%013.0f', a[2], a[1]) end
  return string.format('%.0f', a[1])
end

local function compare(a, b)
  for i = 3, 1, -1 do
    if a[i] < b[i] then return -1 end
    if a[i] > b[i] then return 1 end
  end
  return 0
end

local function least(a, b)
  if compare(a, b) < 0 then return a end
  return b
end

local function plus(a, b)
  local low, mid, high = a[1] + b[1], a[2] + b[2], a[3] + b[3]
  if low >= LIMB then low, mid = low - LIMB, mid + 1 end
  if mid >= LIMB then mid, high = mid - LIMB, high + 1 end
  return { low, mid, high }
end

-- Stops at zero.
local function minus(a, b)
  if compare(a, b) <= 0 then return ZERO end
  local low, mid, high = a[1] - b[1], a[2] - b[2], a[3] - b[3]
  if low < 0 then low, mid = low + LIMB, mid - 1 end
  if mid < 0 then mid, high = mid + LIMB, high - 1 end
  return { low, mid, high }
end
