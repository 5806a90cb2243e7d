-- This text follows `token_bucket.lua`: it has the steps `decide` and `settle`.

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
  -- to_come. If a number here is so large that it is inexact, it is far above any missing amount.
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
