-- The twin of mod.rs, for leaky buckets too, in Lua's doubles. Doubles are exact for every whole number
-- below 2^53, and the state stays in that range. This file only calculates; `call/shell.lua` has the keys,
-- the clock and the expiries.
--
-- This is a branch of the function `decide`; the head of `call/shell.lua` describes its arguments.
-- `figures` are tokens, period, burst, and the rate's mark. The receipt is the time at which the bucket is
-- full again. The code has few functions and tables, because Redis runs the whole script for each call, and
-- would make them anew each time. Each step has the name of its Rust function. One thing differs. Rust counts
-- whole missing tokens and a missing `rest`. Here a token that is missing in part counts as a missing token, and
-- `above` is its other part, which was gained.
--
-- The state of an earlier time is written: of the last time at which the tokens were whole, or less than the
-- gain of one microsecond above. Both states mean the same bucket, and the earlier one has only a small rest.
-- For most rates it has no rest. The formats of the bytes, by length; each figure has its highest byte first:
--   11  at + 2^52 (7 bytes), missing (4)
--   12  at (7 bytes), mark + spare (2), missing (3)
--   12  at + 2^52 (7 bytes), missing (1), rest (1), period (3)
--   27  32 (1 byte), at (7 bytes), missing (5), rest (7), period (7)
-- The first byte tells the format: up to 15 is the format with a mark, 16 to 31 is a short format, 32 is the
-- long format. Redis keeps strings of up to 12 bytes in its smallest block.
--
-- To set an expiry costs as much as the rest of the writing. So a key gets a later expiry than it needs: one
-- that is late enough if `spare` more tokens are missing. As long as `spare` covers the cost of a request, the
-- expiry is not set again. The mark tells whether `spare` was counted under the same rate.

local tokens, period, burst, mark = figures[1], figures[2], figures[3], figures[4]

-- Decode. Bytes in no known format are a new bucket.
local missing, rest, at, spare = 0, 0, now, -1
-- When the key expires. 0 where the bytes do not tell it.
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
-- gain. The results of `%` and of the divisions are exact below 2^53. After a long time the product of periods
-- and tokens is inexact. Then it is far above any missing amount.
local into_period = elapsed % period
local units = into_period * tokens - rest
local above = units % period
missing = missing - (elapsed - into_period) / period * tokens - (units - above) / period
if missing <= 0 then
  missing, above, spare = 0, 0, -1
end
