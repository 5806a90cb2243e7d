-- The twin of mod.rs, as a branch of the function `decide` (see algorithm/mod.rs). `figures` are the
-- count, the interval, and the grain in which time is counted.
--
-- The formats of the bytes, by length; each figure has its highest byte first:
--   20  1 (1 byte), start (7 bytes), previous (4), current (4), next (4)
--   23  2 (1 byte), start (7 bytes), previous (5), current (5), next (5)
-- Bytes in no known format are a new window.

local count, interval, grain = figures[1], figures[2], figures[3]
local units = (interval - interval % grain) / grain
if interval % grain > 0 then
  units = units + 1
end
local most_earlier = 128 * count -- MOST_EARLIER

-- Decode.
local start, previous, current, next
if bytes then
  local size, format = #bytes, string.byte(bytes)
  if size == 20 and format == 1 then
    start, previous, current, next = struct_unpack('>xI7I4I4I4', bytes)
  elseif size == 23 and format == 2 then
    start, previous, current, next = struct_unpack('>xI7I5I5I5', bytes)
  end
end

-- open
local moved, opens = false, now - now % interval
if not start or start >= 2^53 or previous + current + next == 0 then
  start, previous, current, next = opens, 0, 0, 0
else
  -- rebased
  if start % interval > 0 then
    start, previous, current = start - start % interval, 0, math.min(previous + current, 2^40 - 1)
  elseif previous > most_earlier then
    previous = most_earlier
  end
  if start - now > math.max(1000000, interval) then -- STALE
    start, previous, current, moved = opens, 0, math.min(previous + current, 2^40 - 1), true
  elseif start < opens then
    local passed = (opens - start) / interval
    if passed == 1 then
      previous, current, next = current, next, 0
    elseif passed == 2 then
      previous, current, next = next, 0, 0
    else
      previous, current, next = 0, 0, 0
    end
    start = opens
    if previous > most_earlier then
      previous = most_earlier
    end
  end
end

-- untouched
local untouched, wait = 0, 0
if next == 0 then
  local elapsed = start < now and now - start or 0
  local weighted = previous * (units - (elapsed - elapsed % grain) / grain)
  local over = weighted % units
  untouched = count - current - (weighted - over) / units
  if over > 0 then
    untouched = untouched - 1
  end
  if untouched < 0 then
    untouched = 0
  end
end
