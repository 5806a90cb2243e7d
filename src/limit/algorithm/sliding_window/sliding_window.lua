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
local most_behind = 128 * count -- MOST_BEHIND

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
  elseif previous > most_behind then
    previous = most_behind
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
    if previous > most_behind then
      previous = most_behind
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

-- decide
local ahead = 0
if cost > 0 and max_wait >= 0 and untouched < cost then
  if cost > count then
    return -1, untouched, moved
  end
  -- moment
  local behind, counted, after, into = previous, current, next
  if next > 0 then
    ahead, behind, counted, after = 1, current, next, 0
  end
  while true do
    local room = count - counted - cost
    if room >= 0 then
      if behind > most_behind then
        behind = most_behind
      end
      into = 0
      if behind > room then
        local inside = room * units
        into = (units - (inside - inside % behind) / behind) * grain
      end
      if into < interval then
        break
      end
    end
    ahead, behind, counted, after = ahead + 1, counted, after, 0
  end
  wait = math.max(math.min(start + ahead * interval + into, 2^53 - 1) - now, 1)
  if ahead > 1 or wait > max_wait then
    return wait, untouched, moved
  end
  untouched = cost
end

-- settle, reserve
if ahead == 1 then
  next = next + cost
elseif cost >= 0 then
  current = math.min(current + cost, 2^40 - 1) -- MOST_COUNTED
else
  local window = receipt - receipt % interval
  if window == start then
    current = math.max(current + cost, 0)
  elseif window == start + interval then
    next = math.max(next + cost, 0)
  elseif window + interval == start then
    previous = math.max(previous + cost, 0)
  end
end
if previous + current + next == 0 then
  return 0, count, moved
end

-- fresh_at
local windows = next > 0 and 3 or current > 0 and 2 or 1
local fresh_at = start + windows * interval
if fresh_at >= 2^53 then
  fresh_at = 2^53 - 1
end

-- Encode.
local taken
if previous < 2^32 and current < 2^32 and next < 2^32 then
  taken = struct_pack('>I1I7I4I4I4', 1, start, previous, current, next)
else
  taken = struct_pack('>I1I7I5I5I5', 2, start, previous, current, next)
end
return wait, untouched - cost, moved, taken, fresh_at, start > now + wait and start or now + wait
