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
  -- If a number here is so large that it is inexact, it is far above any missing amount.
  local function amount(gives, each, time)
    local into_period = time % each
    local units = into_period * gives
    local over = units % each
    return (time - into_period) / each * gives + (units - over) / each, over
  end
  -- to_come
  local left = receipt > at and receipt - at or 0
  local back, part = amount(former and former[1] or tokens, former and former[2] or period, left)
  if receipt >= 2^53 - 1 then
    back, former = 2^53
  end
  local most, most_part = back, part
  if former then
    local took, over = amount(former[1], former[2], math.max(receipt - former[3], 0))
    local gained, gained_part = amount(tokens, period, math.max(at - former[3], 0))
    most = took + (over > 0 and 1 or 0) - gained - (gained_part > 0 and 1 or 0)
    most_part = gained_part > 0 and period - gained_part or 0
    if most < 0 then
      most, most_part = 0, 0
    end
    part = 0
    if back > most then
      back, part = most, most_part
    end
  end
  local is_held = max_wait < -1 and (most > burst or most == burst and most_part > 0)
  if (is_held or algorithm == 'leaky-bucket') and
    (missing > most or missing == most and besides > most_part) then
    back, part = 0, 0
  elseif back >= -cost then
    back, part = -cost, 0
  end
  missing, besides, cost, spare = missing - back, besides - part, 0, -1
  above = -besides % period
  missing = missing + (besides + above) / period
end
