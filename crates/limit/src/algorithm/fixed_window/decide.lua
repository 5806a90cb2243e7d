-- This text follows `fixed_window.lua`: it has the steps from `decide` on.

-- decide
local untouched, wait = count - used, 0
if cost > 0 and max_wait >= 0 and untouched < cost then
  if untouched < 0 then
    untouched = 0
  end
  if cost > count then
    return -1, untouched, moved
  end
  -- position
  local into, before = beyond % count, beyond
  local ahead = (beyond - into) / count + 1
  if into + cost > count then
    before = ahead * count
    ahead = ahead + 1
  end
  local begins = align == 2 and start_of(number_of(start) + ahead) or start + ahead * length
  wait = math.max(math.min(begins, 2^53 - 1) - now, 1)
  used, beyond = math.max(used, count), before
  if wait > max_wait then
    return wait, untouched, moved
  end
  untouched = cost
end

-- settle
if cost < 0 then
  -- returnable
  if receipt < start or former and former[1] <= now then
    cost = 0
  elseif max_wait < -1 and beyond > 0 then
    local before_last, passed = beyond - 1
    before_last = (before_last - before_last % count) / count
    if align == 2 then
      passed = number_of(receipt) - number_of(start)
    else
      passed = receipt - start
      passed = (passed - passed % length) / length
    end
    if passed == before_last + 1 then
      cost = math.max(cost, before_last * count - beyond)
    else
      cost = 0
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
local fresh_at = align == 2 and start_of(number_of(start) + windows) or start + windows * length
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
local counts_at = start > now + wait and start or now + wait
if align == 0 and wait == 0 then
  counts_at = start
end
return wait, untouched - cost, moved, taken, fresh_at, counts_at
