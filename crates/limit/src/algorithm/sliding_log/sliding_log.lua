-- The twin of `decide` in mod.rs. `figures` are count and interval. `bytes` is a table that the caller has
-- read from the list: { arrived, newest, room_at, used }, as in `State` in mod.rs. The fourth value
-- returned is the time at which the request's entries are to be added, one for each token of its cost. The
-- sixth value is the clock by which they are made.

local count, interval = figures[1], figures[2]

-- follow
local arrived, newest, room_at, used, moved = now, now, 0, 0, false
if bytes then
  arrived, newest, room_at, used = bytes[1], bytes[2], bytes[3], bytes[4]
  local ahead = arrived - now
  if ahead > 1000000 then -- STALE
    arrived, newest, room_at, moved = now, newest - ahead, room_at - ahead, true
  elseif ahead < 0 then
    arrived = now
    if newest < now then
      newest = now
    end
  end
end

-- decide
local untouched = count - used
if newest > arrived or untouched < 0 then
  untouched = 0
end
if cost > count or cost > 1000 then -- MOST_ENTRIES
  return -1, untouched, moved
end
local moment, wait = newest, 0
if room_at > moment then
  moment = room_at
end
local lead = moment - arrived
if lead > 0 then
  wait = moment - now
  if wait > max_wait or lead >= 2^32 then -- MOST_LEAD
    return wait, untouched, moved
  end
  untouched = math.max(untouched, cost)
end

-- fresh_at
local fresh_at = moment + interval
if fresh_at >= 2^53 then
  fresh_at = 2^53 - 1
end
return wait, untouched > cost and untouched - cost or 0, moved, moment, fresh_at, arrived
