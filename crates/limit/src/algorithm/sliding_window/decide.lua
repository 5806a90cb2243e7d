-- This text follows `sliding_window.lua`: it has the steps from `decide` on.

-- decide
local ahead = 0
if cost > 0 and max_wait >= 0 and untouched < cost then
  if cost > count then
    return -1, untouched, moved
  end
  -- moment
  local earlier, counted, after, into = previous, current, next
  if next > 0 then
    ahead, earlier, counted, after = 1, current, next, 0
  end
  while true do
    local room = count - counted - cost
    if room >= 0 then
      if earlier > most_earlier then
        earlier = most_earlier
      end
      into = 0
      if earlier > room then
        local inside = room * units
        into = (units - (inside - inside % earlier) / earlier) * grain
      end
      if into < interval then
        break
      end
    end
    ahead, earlier, counted, after = ahead + 1, counted, after, 0
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
elseif receipt >= 2^53 - 1 then -- NEWEST
  previous = math.max(previous + math.min(current + cost, 0), 0)
  current = math.max(current + cost, 0)
else
  -- -1 is no window: that of the request is over.
  local window = former and former[1] <= now and -1 or receipt - receipt % interval
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
