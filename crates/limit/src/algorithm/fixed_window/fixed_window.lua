-- The twin of mod.rs, as a branch of the function `decide` (see algorithm/mod.rs). `figures` are the
-- count, the kind of windows (0 rolling, 1 on the clock, 2 on the calendar), and the windows' length. On
-- the calendar the starts of the five known windows come instead of the length.
--
-- The formats of the bytes, by length; each figure has its highest byte first:
--   12  1 (1 byte), start (7 bytes), used (4)
--   21  4 (1 byte), the same, then beyond (5), each (4)
-- Bytes in no known format are a new window. The formats 2 and 3 are of former versions: they had the tokens of all
-- windows in one number.

local count, align, length = figures[1], figures[2], figures[3]

-- For the calendar: `number_of` gives the number of a time's window, `start_of` the start of a numbered
-- window. The first known window has the number 0.
local number_of, start_of
if align == 2 then
  local before_first, after_last = figures[4] - figures[3], figures[7] - figures[6]
  function number_of(time)
    if time < figures[3] then
      local under = figures[3] - time
      local over = under % before_first
      return (over - under) / before_first - (over > 0 and 1 or 0)
    end
    local number = 4
    while figures[3 + number] > time do
      number = number - 1
    end
    local beyond = math.max(time - figures[7], 0)
    return number + (beyond - beyond % after_last) / after_last
  end
  function start_of(number)
    if number < 0 then
      return math.max(figures[3] + number * before_first, 0)
    elseif number > 4 then
      return figures[7] + (number - 4) * after_last
    end
    return figures[3 + number]
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
local moved, opens, number = false, now
if align == 1 then
  opens = now - now % length
elseif align == 2 then
  number = number_of(now)
  opens = start_of(number)
end
if not start or start >= 2^53 or used == 0 then
  start, used, beyond = opens, 0, 0
else
  if align == 1 then
    start = start - start % length
  elseif align == 2 then
    start = start_of(number_of(start))
  end
  if start - now > 1000000 then -- STALE
    local after = align == 2 and start_of(number + 1) or opens + length
    if start > after then
      start, moved = opens, true
    end
  elseif start <= now then
    local passed
    if align == 2 then
      passed = number - number_of(start)
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
