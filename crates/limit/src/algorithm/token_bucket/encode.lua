-- This text follows `decide.lua`, and ends the branch: the form in which the state is kept, `fresh_at`, and the bytes.

local whole = missing + cost
if whole <= 0 then
  return 0, burst, moved
elseif whole >= 2^40 then -- MOST_MISSING
  whole = above > 0 and 2^40 or 2^40 - 1
end

-- The form in which the state is kept.
rest = 0
if above > 0 then
  local beyond = above % tokens
  local back = (above - beyond) / tokens
  if beyond > 0 then
    back, beyond = back + 1, tokens - beyond
  end
  if tokens < period and back <= at and whole < 2^40 then
    at, rest = at - back, beyond
  else
    whole, rest = whole - 1, period - above
  end
end

-- fresh_at
local fresh_at
if tokens == 1 and rest == 0 then -- the usual case
  fresh_at = at + whole * period
else
  -- time_to_gain. From 2^53 on the product or the sum may be inexact. The result is then 2^53 - 1 in any case.
  local left = whole % tokens
  local units = left * period + rest
  local over = units % tokens
  local time = (whole - left) / tokens * period + (units - over) / tokens
  if over > 0 then
    time = time + 1
  end
  fresh_at = at + time
end
if fresh_at >= 2^53 then
  fresh_at = 2^53 - 1
end

-- Encode. A new bucket gets no spare tokens, because most new buckets are not used again. The key of a used bucket
-- lives at most twice as long as it must, and no more than an eighth of the refill time longer.
local taken
local expiry = fresh_at
if mark < 2^16 and fresh_at < 2^52 and whole < 2^24 and rest == 0 then
  if spare >= cost then
    spare, expiry = spare - cost
  else
    spare = bytes and cost > 0 and math.min(63, whole, (burst - burst % 8) / 8) or 0
    expiry = fresh_at + spare * period
  end
  taken = struct_pack('>I7I2I3', at, mark + spare, whole)
elseif at < 2^52 and rest == 0 and whole < 2^32 then
  taken = struct_pack('>I7I4', at + 2^52, whole)
elseif at < 2^52 and rest < 2^8 and whole < 2^8 and period < 2^24 then
  taken = struct_pack('>I7I1I1I3', at + 2^52, whole, rest, period)
else
  taken = struct_pack('>I1I7I5I7I7', 32, at, whole, rest, period)
end
return wait, untouched - cost, moved, taken, expiry, fresh_at
