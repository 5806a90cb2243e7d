-- The twin of token_bucket.rs and leaky_bucket.rs, in Lua's doubles: every whole number below 2^53 is exact in them,
-- and no step leaves that range. Only arithmetic stands here; keys, Redis's clock and expiries are
-- the shell's business.
--
-- This is a branch of the function `decide` (see mod.rs). `figures` are tokens, period, burst.
-- `cost` is what to take: below zero it is given back, at zero the state is only brought up to now, and
-- with a patience below zero it is taken in any case. The receipt is when the bucket is full again.
-- It is one piece for the sake of Redis, which runs all of a script anew for each call: to make a
-- function or a table there costs as much as a good part of this arithmetic. Each step bears the
-- name of the Rust function that it is.
--
-- A state is kept as of the last time at which it was less than a microsecond's gain above whole
-- tokens: the same state, with a remainder that is small, and with most rates none. Its bytes, by
-- their number, each figure with its highest byte first:
--   11  at + 2^52 (7 bytes), missing (4)
--   12  at + 2^52 (7 bytes), missing (1), rest (1), period (3)
--   27  32 (1 byte), at (7 bytes), missing (5), rest (7), period (7)
-- So the first byte tells the format: 16 to 31 is a short one, 32 the long one. Up to 12 bytes fit
-- into the smallest block in which Redis keeps a string.

local tokens, period, burst = figures[1], figures[2], figures[3]

-- Decoded. What is none of these forms is a new bucket.
local missing, rest, at, counted_under = 0, 0, now, period
if bytes then
  local size, time = #bytes, -1
  if size == 11 then
    time, missing = struct_unpack('>I7I4', bytes)
    time = time - 2^52
  elseif size == 12 then
    time, missing, rest, counted_under = struct_unpack('>I7I1I1I3', bytes)
    time = time - 2^52
  elseif size == 27 and string.byte(bytes) == 32 then
    time, missing, rest, counted_under = struct_unpack('>xI7I5I7I7', bytes)
  end
  -- A time from 2^53 on may have lost its last digits, a short one from 2^52 on is another format.
  if time >= 0 and time < (size == 27 and 2^53 or 2^52) and rest < counted_under then
    at = time
  else
    missing, rest, counted_under = 0, 0, period
  end
end

-- under
if counted_under ~= period and rest > 0 then
  missing, rest = missing + 1, 0
end

-- refill
local ahead, moved = 0, false
if at > now then
  ahead = at - now
  if ahead > 1000000 then -- STALE
    ahead, moved, at = 0, true, now
  end
elseif at < now then
  -- gain. What `%` leaves is exact below 2^53, and so is the division of the rest. After a long time
  -- the product of periods and tokens is not: it is then far above what can be missing.
  local elapsed = now - at
  local into_period = elapsed % period
  local units = into_period * tokens
  local rest_gained = units % period
  missing = missing - (elapsed - into_period) / period * tokens - (units - rest_gained) / period
  rest = rest - rest_gained
  if rest < 0 then
    missing, rest = missing - 1, rest + period
  end
  if missing < 0 then
    missing, rest = 0, 0
  end
  at = now
end

-- decide
local untouched = burst - missing
if rest > 0 then
  untouched = untouched - 1
end
local wait = 0
if cost > 0 and patience >= 0 and (untouched < cost or algorithm == 'leaky-bucket' and missing + rest > 0) then
  local function time_to_gain(whole)
    local left = whole % tokens
    local units = left * period + rest
    local over = units % tokens
    local time = (whole - left) / tokens * period + (units - over) / tokens + ahead
    if over > 0 then
      time = time + 1
    end
    return time < 2^53 and time or 2^53 - 1
  end
  if untouched < 0 then
    untouched = 0
  end
  if cost > burst then
    return -1, untouched, moved
  end
  local room = untouched < cost and time_to_gain(missing + cost - burst) or 0
  if algorithm == 'leaky-bucket' then
    wait = time_to_gain(missing)
    if room > 0 or wait > patience then
      return math.max(room, wait - patience), untouched, moved
    end
  else
    wait = room
    if wait > patience then
      return wait, untouched, moved
    end
    untouched = cost
  end
end

-- settle
if cost < 0 then
  -- to_come. What is no exact number any more is far more than can be missing.
  local left = receipt > at and receipt - at or 0
  local into_period = left % period
  local units = into_period * tokens
  local part = units % period
  local back = (left - into_period) / period * tokens + (units - part) / period
  if receipt >= 2^53 - 1 then
    back = 2^53
  end
  if algorithm == 'leaky-bucket' and (missing > back or missing == back and rest > part) then
    back, part = 0, 0
  elseif back >= -cost then
    back, part = -cost, 0
  end
  missing, rest, cost = missing - back, rest - part, 0
  if rest < 0 then
    missing, rest = missing - 1, rest + period
  end
end
local whole = missing + cost
if whole + rest == 0 or whole < 0 then
  return 0, burst, moved
elseif whole >= 2^40 then -- MOST_MISSING
  whole = 2^40 - 1
end

-- time_to_gain. The product or the sum may pass 2^53 and be rounded: both are cut to one below.
local left = whole % tokens
local units = left * period + rest
local over = units % tokens
local time = (whole - left) / tokens * period + (units - over) / tokens
if over > 0 then
  time = time + 1
end

-- fresh_at
local fresh_at = at + time
if fresh_at >= 2^53 then
  fresh_at = 2^53 - 1
end

-- Encoded.
if rest > 0 and tokens < period then
  local short = period - rest
  local beyond = short % tokens
  local back = (short - beyond) / tokens
  if beyond > 0 then
    back, beyond = back + 1, tokens - beyond
  end
  if back <= at then
    whole, rest, at = whole + 1, beyond, at - back
  end
end
local taken
if at < 2^52 and rest == 0 and whole < 2^32 then
  taken = struct_pack('>I7I4', at + 2^52, whole)
elseif at < 2^52 and rest < 2^8 and whole < 2^8 and period < 2^24 then
  taken = struct_pack('>I7I1I1I3', at + 2^52, whole, rest, period)
else
  taken = struct_pack('>I1I7I5I7I7', 32, at, whole, rest, period)
end
return wait, untouched - cost, moved, taken, fresh_at, fresh_at
