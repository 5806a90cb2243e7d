-- The twin of mod.rs, for leaky buckets too, in Lua's doubles. Doubles are exact for every whole number
-- below 2^53, and the state stays in that range. This file only calculates; `store/shell.lua` has the keys,
-- the clock and the expiries.
--
-- This is a branch of the function `decide`; the head of `store/shell.lua` describes its arguments.
-- `figures` are tokens, period, burst, and the rate's mark. The receipt is the time at which the bucket is
-- full again. The code is one piece, because Redis runs the whole script anew for each call: making a
-- function or a table costs as much as much of this arithmetic. Each step has the name of its Rust
-- function. One thing differs. Rust counts whole missing tokens and a missing `rest`. Here the part counts
-- as one more missing token, and `above` is the part of that token which was gained.
--
-- A state is written for the last time at which it was less than one microsecond's gain above whole
-- tokens. This is the same state with a small rest, and for most rates with no rest. The formats of the
-- bytes, by length; each figure has its highest byte first:
--   11  at + 2^52 (7 bytes), missing (4)
--   12  at (7 bytes), mark + spare (2), missing (3)
--   12  at + 2^52 (7 bytes), missing (1), rest (1), period (3)
--   27  32 (1 byte), at (7 bytes), missing (5), rest (7), period (7)
-- The first byte tells the format: up to 15 is the format with a mark, 16 to 31 is a short format, 32 is the
-- long format. Redis keeps strings of up to 12 bytes in its smallest block.
--
-- Setting an expiry costs as much as the rest of the writing. A key therefore lives longer than it must, by
-- the time for `spare` more missing tokens. While `spare` covers the cost, the expiry stays. The mark tells
-- whether `spare` was counted under the same rate.

local tokens, period, burst, mark = figures[1], figures[2], figures[3], figures[4]

-- Decode. Bytes in no known format are a new bucket.
local missing, rest, at, spare = 0, 0, now, -1
-- Until when the key lives, as the bytes tell it; 0 where they do not.
local lives = 0
if bytes then
  local size, time, tag = #bytes, -1
  if size == 12 then
    time, tag, missing = struct_unpack('>I7I2I3', bytes)
  end
  if tag and time < 2^52 then
    at, spare = time, tag - mark
    if spare < 0 or spare > 63 then -- written under another rate, which its mark names
      local left = tag % 64
      local other = (tag - left) / 64
      local fives, twos = other % 16, (other - other % 64) / 64
      local threes = (other % 64 - fives) / 16
      lives, spare = at + (missing + left) * 2^twos * 3^threes * 5^fives, -1
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
    -- A time from 2^53 on may be inexact. A time from 2^52 on is another format, except in the long one.
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

-- refill. A `spare` below zero means that the spare is unknown.
local elapsed, ahead, moved = now - at, 0
if spare < 0 then
  moved = lives
end
if elapsed >= 0 then
  at = now
else
  ahead, elapsed = -elapsed, 0
  if ahead > 1000000 then -- STALE
    moved, at, ahead, spare = true, now, 0, -1
  end
end
-- gain. The results of `%` and of the divisions are exact below 2^53. After a long time the product of
-- periods and tokens is inexact, but then it is far above any missing amount.
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
if cost > 0 and max_wait >= 0 and
  (untouched < cost or algorithm == 'leaky-bucket' and missing > 0) then
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
  local fits = untouched >= cost
  if untouched < 0 then
    untouched = 0
  end
  if cost > burst then
    return -1, untouched, moved
  end
  local room = fits and 0 or time_to_gain(missing + cost - burst)
  if algorithm == 'leaky-bucket' then
    wait = time_to_gain(missing)
    if room > 0 or wait > max_wait then
      return math.max(room, wait - max_wait), untouched, moved
    end
  else
    wait = room
    if wait > max_wait then
      return wait, untouched, moved
    end
  end
  untouched = math.max(untouched, cost)
end

-- settle
if cost < 0 then
  local besides = 0
  if above > 0 then
    missing, besides = missing - 1, period - above
  end
  -- to_come. An inexact number here is far above any missing amount.
  local left = receipt > at and receipt - at or 0
  local into_period = left % period
  local units = into_period * tokens
  local part = units % period
  local back = (left - into_period) / period * tokens + (units - part) / period
  if receipt >= 2^53 - 1 then
    back = 2^53
  end
  local is_held = max_wait < -1 and (back > burst or back == burst and part > 0)
  if (is_held or algorithm == 'leaky-bucket') and
    (missing > back or missing == back and besides > part) then
    back, part, wait = 0, 0, 1
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
  -- time_to_gain. The product or the sum may pass 2^53 and be inexact. The result is then cut to 2^53 - 1.
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

-- Encode. A new bucket gets no spare tokens, since most new buckets are not used again. The key of a used
-- bucket lives at most twice as long as it must. It lives longer by at most an eighth of the refill time.
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
