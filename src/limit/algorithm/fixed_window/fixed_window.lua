-- The twin of mod.rs, as a branch of the function `decide` (see algorithm/mod.rs). `figures` are the
-- count, the kind of windows (0 rolling, 1 on the clock, 2 on the calendar), and the windows' length. On
-- the calendar the starts of the five known windows stand in place of the length.
--
-- The formats of the bytes, by length; each figure has its highest byte first:
--   12  1 (1 byte), start (7 bytes), used (4)
--   21  4 (1 byte), the same, then beyond (5), each (4)
-- Bytes in no known format are a new window. 2 and 3 had the tokens of all windows in one number.

local count, align, length = figures[1], figures[2], figures[3]

-- For the calendar: `place_of` gives the number of a time's window, `start_of` the start of a numbered
-- window. The first known window has the number 0.
local place_of, start_of
if align == 2 then
  local before, behind = figures[4] - figures[3], figures[7] - figures[6]
  function place_of(time)
    if time < figures[3] then
      local under = figures[3] - time
      local over = under % before
      return (over - under) / before - (over > 0 and 1 or 0)
    end
    local place = 4
    while figures[3 + place] > time do
      place = place - 1
    end
    local beyond = math.max(time - figures[7], 0)
    return place + (beyond - beyond % behind) / behind
  end
  function start_of(place)
    if place < 0 then
      return math.max(figures[3] + place * before, 0)
    elseif place > 4 then
      return figures[7] + (place - 4) * behind
    end
    return figures[3 + place]
  end
end

-- Decode.
local start, used
local beyond, each = 0, 0
if bytes then
  local size, format = #bytes, string.byte(bytes)
  if size == 12 and format == 1 then
    start, used = struct_unpack('>xI7I4', bytes)
  elseif size == 21 and format == 4 then
    start, used, beyond, each = struct_unpack('>xI7I4I5I4', bytes)
  end
end

-- under
if beyond > 0 then
  if each > count then
    local into = beyond % each
    beyond = (beyond - into) / each * count + math.min(into, count)
  end
  local here = math.min(math.max(count - used, 0), beyond)
  used, beyond = used + here, beyond - here
end

-- open
local moved, opens, place = false, now
if align == 1 then
  opens = now - now % length
elseif align == 2 then
  place = place_of(now)
  opens = start_of(place)
end
if not start or start >= 2^53 or used == 0 then
  start, used, beyond = opens, 0, 0
else
  if align == 1 then
    start = start - start % length
  elseif align == 2 then
    start = start_of(place_of(start))
  end
  if start - now > 1000000 then -- STALE
    local after = align == 2 and start_of(place + 1) or opens + length
    if start > after then
      start, moved = opens, true
    end
  elseif start <= now then
    local passed
    if align == 2 then
      passed = place - place_of(start)
    else
      passed = now - start
      passed = (passed - passed % length) / length
    end
    if passed > 0 then
      beyond = math.max(beyond - (passed - 1) * count, 0)
      used = math.min(beyond, count)
      beyond = beyond - used
      if used == 0 or align == 2 then
        start = opens
      else
        start = start + passed * length
      end
    end
  end
end

-- decide
local untouched, wait = count - used, 0
if cost > 0 and max_wait >= 0 and untouched < cost then
  if untouched < 0 then
    untouched = 0
  end
  if cost > count then
    return -1, untouched, moved
  end
  -- place
  local into, behind = beyond % count, beyond
  local ahead = (beyond - into) / count + 1
  if into + cost > count then
    behind = ahead * count
    ahead = ahead + 1
  end
  local begins = align == 2 and start_of(place_of(start) + ahead) or start + ahead * length
  wait = math.max(math.min(begins, 2^53 - 1) - now, 1)
  used, beyond = math.max(used, count), behind
  if wait > max_wait then
    return wait, untouched, moved
  end
  untouched = cost
end

-- settle
if cost < 0 then
  -- returnable
  if receipt < start then
    cost, wait = 0, 1
  elseif max_wait < -1 and beyond > 0 then
    local before_last, passed = beyond - 1
    before_last = (before_last - before_last % count) / count
    if align == 2 then
      passed = place_of(receipt) - place_of(start)
    else
      passed = receipt - start
      passed = (passed - passed % length) / length
    end
    if passed == before_last + 1 then
      cost = math.max(cost, before_last * count - beyond)
    else
      cost, wait = 0, 1
    end
  end
  -- minus
  local last = math.min(beyond, -cost)
  used, beyond = used + cost + last, beyond - last
else
  -- plus
  local here = math.min(math.max(count - used, 0), cost)
  used, beyond = used + here, math.min(beyond + cost - here, 2^40 - 1) -- MOST_BEYOND
end
if used <= 0 then
  return 0, count, moved
end

-- fresh_at
local windows = 1 + (beyond + -beyond % count) / count
local fresh_at = align == 2 and start_of(place_of(start) + windows) or start + windows * length
if align > 0 then
  fresh_at = fresh_at + 1000000 -- STALE
end
if fresh_at >= 2^53 then
  fresh_at = 2^53 - 1
end

-- Encode.
local taken
each = beyond > 0 and count or 0
if beyond > 0 then
  taken = struct_pack('>I1I7I4I5I4', 4, start, used, beyond, each)
else
  taken = struct_pack('>I1I7I4', 1, start, used)
end
return wait, untouched - cost, moved, taken, fresh_at, start > now + wait and start or now + wait
