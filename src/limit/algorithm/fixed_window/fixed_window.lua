-- The twin of mod.rs, as a branch of the function `decide` (see algorithm/mod.rs). `figures` are the
-- count, the kind of windows (0 rolling, 1 on the clock, 2 on the calendar), and the windows' length. On
-- the calendar the starts of the five known windows stand in place of the length.
--
-- The formats of the bytes, by length; each figure has its highest byte first:
--   12  1 (1 byte), start (7 bytes), used (4)
--   13  2 (1 byte), start (7 bytes), used (5)
--   16  3 (1 byte), the same, then the lead in seconds (3)
-- Bytes in no known format are a new window.

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
local lead = 0
if bytes then
  local size, format = #bytes, string.byte(bytes)
  if size == 12 and format == 1 then
    start, used = struct_unpack('>xI7I4', bytes)
  elseif size == 13 and format == 2 then
    start, used = struct_unpack('>xI7I5', bytes)
  elseif size == 16 and format == 3 then
    start, used, lead = struct_unpack('>xI7I5I3', bytes)
  end
end

-- open, for the present and then for the earliest moment at which the request goes. From then on that moment is
-- `now`.
local moved, clock, later = false, now, earliest
while true do
  local opens, place = now
  if align == 1 then
    opens = now - now % length
  elseif align == 2 then
    place = place_of(now)
    opens = start_of(place)
  end
  if not start or start >= 2^53 or used == 0 and (lead == 0 or start <= now) then
    start, used, lead = opens, 0, 0
  else
    if align == 1 then
      start = start - start % length
    elseif align == 2 then
      start = start_of(place_of(start))
    end
    if start - now > 1000000 + lead * 1000000 then -- STALE
      start, moved = math.min(now + lead * 1000000, 2^53 - 1), true
      if align == 1 then
        start = start - start % length
      elseif align == 2 then
        start = start_of(place_of(start))
      end
    elseif start <= now then
      lead = 0
      local passed
      if align == 2 then
        passed = place - place_of(start)
      else
        passed = now - start
        passed = (passed - passed % length) / length
      end
      if passed > 0 then
        used = used - passed * count
        if used <= 0 then
          start, used = opens, 0
        elseif align == 2 then
          start = opens
        else
          start = start + passed * length
        end
      end
    end
  end
  if not later then
    break
  end
  now, later = now + later, nil
end

-- decide
local untouched, wait = count - used, 0
if cost > 0 and max_wait >= 0 and (untouched < cost or lead > 0) then
  local fits = untouched >= cost
  if untouched < 0 or lead > 0 then
    untouched = 0
  end
  if cost > count then
    return -1, untouched, moved
  end
  local behind = used
  if fits then
    wait = math.max(start - now, 0)
  else
    -- place
    local into = used % count
    local ahead = (used - into) / count
    if into + cost > count then
      ahead = ahead + 1
      behind = ahead * count
    end
    local begins = align == 2 and start_of(place_of(start) + ahead) or start + ahead * length
    wait = math.max(math.min(begins, 2^53 - 1) - now, 1)
  end
  if wait > max_wait then
    return wait, untouched, moved
  end
  used, untouched = behind, math.max(untouched, cost)
end
if earliest then
  local micros = math.max(start - clock, 0)
  lead = math.min((micros + -micros % 1000000) / 1000000, 2^24 - 1)
end

-- settle
if cost < 0 then
  -- returnable
  if receipt < start then
    cost = 0
  elseif max_wait < -1 and used > count then
    local last, passed = used - 1
    last = (last - last % count) / count
    if align == 2 then
      passed = place_of(receipt) - place_of(start)
    else
      passed = receipt - start
      passed = (passed - passed % length) / length
    end
    cost = passed == last and math.max(cost, last * count - used) or 0
  end
end
used = used + cost
if used <= 0 and lead == 0 then
  return 0, count, moved
elseif used < 0 then
  used = 0
elseif used >= 2^40 then -- MOST_USED
  used = 2^40 - 1
end

-- fresh_at
local windows = (used - used % count) / count
if used % count > 0 then
  windows = windows + 1
end
local fresh_at = align == 2 and start_of(place_of(start) + windows) or start + windows * length
if align > 0 then
  fresh_at = fresh_at + 1000000 -- STALE
end
if fresh_at >= 2^53 then
  fresh_at = 2^53 - 1
end

-- Encode.
local taken
if lead > 0 then
  taken = struct_pack('>I1I7I5I3', 3, start, used, lead)
elseif used < 2^32 then
  taken = struct_pack('>I1I7I4', 1, start, used)
else
  taken = struct_pack('>I1I7I5', 2, start, used)
end
return wait, untouched - cost, moved, taken, fresh_at, start > now + wait and start or now + wait
