-- The twin of mod.rs and ../leaky_bucket.rs, in Lua's doubles: every whole number below 2^53 is exact in them,
-- and no step leaves that range. Only arithmetic stands here; keys, Redis's clock and expiries are
-- the shell's business.
--
-- This is a branch of the function `decide` (see mod.rs). `figures` are tokens, period, burst, and the
-- rate's mark. `cost` is what to take: below zero it is given back, at zero the state is only brought up
-- to now, and with a patience below zero it is taken in any case. The receipt is when the bucket is full
-- again. It is one piece for the sake of Redis, which runs all of a script anew for each call: to make a
-- function or a table there costs as much as a good part of this arithmetic. Each step bears the name of
-- the Rust function that it is. But where that counts what is missing besides whole tokens (`rest`), here
-- one whole token more is missing, and `above` is what was gained of it.
--
-- A state is kept as of the last time at which it was less than a microsecond's gain above whole
-- tokens: the same state, with a remainder that is small, and with most rates none. Its bytes, by
-- their number, each figure with its highest byte first:
--   11  at + 2^52 (7 bytes), missing (4)
--   12  at (7 bytes), mark + spare (2), missing (3)
--   12  at + 2^52 (7 bytes), missing (1), rest (1), period (3)
--   27  32 (1 byte), at (7 bytes), missing (5), rest (7), period (7)
-- So the first byte tells the format: up to 15 is the one with a mark, 16 to 31 a short one, 32 the long
-- one. Up to 12 bytes fit into the smallest block in which Redis keeps a string.
--
-- To set an expiry costs as much as the rest of the writing. So a key lives for some tokens longer than it
-- must: so many (`spare`) could be missing besides, and it would still live until none is. While that is
-- enough for what is taken, and the rate is the one by which it was counted, which the mark tells, the
-- expiry stays.

local tokens, period, burst, mark = figures[1], figures[2], figures[3], figures[4]

-- Decoded. What is none of these forms is a new bucket.
local missing, rest, at, spare = 0, 0, now, -1
if bytes then
  local size, time, tag = #bytes, -1
  if size == 12 then
    time, tag, missing = struct_unpack('>I7I2I3', bytes)
  end
  if tag and time < 2^52 then
    at, spare = time, tag - mark
    if spare > 63 then -- of another rate
      spare = -1
    end
  else
    local counted_under = period
    if tag then
      time = time - 2^52
      rest, counted_under = tag % 2^8, missing
      missing = (tag - rest) / 2^8
    elseif size == 11 then
      time, missing = struct_unpack('>I7I4', bytes)
      time = time - 2^52
    elseif size == 27 and string.byte(bytes) == 32 then
      time, missing, rest, counted_under = struct_unpack('>xI7I5I7I7', bytes)
    end
    -- A time from 2^53 on may have lost its last digits, a short one from 2^52 on is another format.
    if time >= 0 and time < (size == 27 and 2^53 or 2^52) and rest < counted_under then
      at = time
      -- under
      if counted_under ~= period and rest > 0 then
        missing, rest = missing + 1, 0
      end
    else
      missing, rest = 0, 0
    end
  end
end

-- refill. A spare below zero is none that is known.
local elapsed, ahead, moved = now - at, 0, false
if elapsed >= 0 then
  at = now
else
  ahead, elapsed = -elapsed, 0
  if ahead > 1000000 then -- STALE
    ahead, moved, at, spare = 0, true, now, -1
  end
end
-- gain. What `%` leaves is exact below 2^53, and so is the division of the rest. After a long time
-- the product of periods and tokens is not: it is then far above what can be missing.
local into_period = elapsed % period
local units = into_period * tokens - rest
local above = units % period
missing = missing - (elapsed - into_period) / period * tokens - (units - above) / period
if missing <= 0 then
  missing, above, spare = 0, 0, -1
end

-- decide
local untouched = burst - missing
local wait = 0
if cost > 0 and patience >= 0 and (untouched < cost or algorithm == 'leaky-bucket' and missing > 0) then
  local function time_to_gain(whole)
    local besides = 0
    if above > 0 then
      whole, besides = whole - 1, period - above
    end
    local left = whole % tokens
    local units = left * period + besides
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
  local besides = 0
  if above > 0 then
    missing, besides = missing - 1, period - above
  end
  -- to_come. What is no exact number any more is far more than can be missing.
  local left = receipt > at and receipt - at or 0
  local into_period = left % period
  local units = into_period * tokens
  local part = units % period
  local back = (left - into_period) / period * tokens + (units - part) / period
  if receipt >= 2^53 - 1 then
    back = 2^53
  end
  if algorithm == 'leaky-bucket' and (missing > back or missing == back and besides > part) then
    back, part = 0, 0
  elseif back >= -cost then
    back, part = -cost, 0
  end
  missing, besides, cost, spare = missing - back, besides - part, 0, -1
  above = -besides % period
  missing = missing + (besides + above) / period
end
local whole = missing + cost
if whole <= 0 then
  return 0, burst, moved
elseif whole >= 2^40 then -- MOST_MISSING
  whole = above > 0 and 2^40 or 2^40 - 1
end

-- As it is kept.
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
if tokens == 1 and rest == 0 then -- as most often
  fresh_at = at + whole * period
else
  -- time_to_gain. The product or the sum may pass 2^53 and be rounded: both are cut to one below.
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

-- Encoded. A new bucket has nothing to spare: most of them are not used again. A used one's key lives at
-- most twice as long as it must, and longer by an eighth of the time in which an empty bucket is full.
local taken
local expiry = fresh_at
if mark < 2^16 and fresh_at < 2^52 and whole < 2^24 and rest == 0 then
  if spare >= cost then
    spare, expiry = spare - cost
  else
    spare = bytes and math.min(63, whole, (burst - burst % 8) / 8) or 0
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
