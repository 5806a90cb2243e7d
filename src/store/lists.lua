-- The buckets that are lists, as sorted sets: what `shell.lua` needs of them, put into it at its line for
-- it. Only a call that asks about one comes here.
--
-- Each way of counting has two functions over a key and its terms. `ask` returns what `decide` says
-- (or that the key is another's), and, where the request passes, a function's arguments with which
-- `write` is to be called if all of the request's limits let it pass: a list that begins with the
-- receipt. `settle` writes at once.

-- A sliding log has an entry for each permit: its score is when the request goes, its member the clock by
-- which it was made (7 bytes), and a running number among those of that clock (4).
--
-- Of more than MANY permits that are added together only the last has its entry, and that one a weight,
-- which says for how many more it stands. A weight's score is -1 less its entry's, and its member that
-- one's clock and number, each taken from the largest there is, and those permits (4 bytes). So weights
-- stand below all entries, the newest first, and what has left the interval is one range around zero.
-- Below them TOTAL, where there are any, has for its score -2^53 less twice what they have together.
--
-- Redis is told numbers as text: to make text of them itself takes it longer than what is asked.
local ENTRY, SIZE, STALE = '>I7I4', 11, 1000000
local WEIGHT, MANY, TOTAL = '>I7I4I4', 32, 'total'
local format, log = string.format, {}
-- Returns what few requests need (below).
local seldom

-- The newest entry's score, clock and number. Nothing of an empty list, false of one that is not ours.
function log.newest(key)
  local entry = call('ZREVRANGE', key, '0', '0', 'WITHSCORES')
  if not entry[1] then
    return nil
  elseif #entry[1] ~= SIZE then
    return false
  end
  return tonumber(entry[2]), struct_unpack(ENTRY, entry[1])
end

-- The number of the clock's next entry, behind the newest of all, which is given. The highest there is
-- has that one, or the newest that went at once.
function log.number(key, clock, newest, made, last)
  local number = made == clock and last + 1 or 0
  if newest > clock then
    local at = format('%d', clock)
    local found = call('ZREVRANGEBYSCORE', key, at, at, 'LIMIT', '0', '1')
    if found[1] then
      made, last = struct_unpack(ENTRY, found[1])
      if made == clock and last >= number then
        number = last + 1
      end
    end
  end
  return number
end

-- How many more permits there are than entries, later than `since`, and of those that old.
function log.weight(key, since)
  if call('ZCOUNT', key, '-inf', '(0') == 0 then
    return 0, 0
  end
  local old, total = 0, (-2^53 - tonumber(call('ZSCORE', key, TOTAL))) / 2
  for _, member in ipairs(call('ZRANGEBYSCORE', key, format('%d', -1 - since), '(0')) do
    local _, _, more = struct_unpack(WEIGHT, member)
    old = old + more
  end
  return total - old, old
end

-- Adds permits with numbers from this one on to a list of this weight, and returns its weight then.
function log.add(key, permits, at, clock, number, weight)
  local score = format('%d', at)
  if permits > MANY then
    local more = permits - 1
    number, weight = number + more, weight + more
    call('ZADD', key, score, struct_pack(ENTRY, clock, number), format('%d', -1 - at),
      struct_pack(WEIGHT, 2^53 - clock, 2^32 - 1 - number, more),
      format('%d', -2^53 - 2 * weight), TOTAL)
    return weight
  end
  local entries = {}
  for n = 0, permits - 1 do
    entries[2 * n + 1], entries[2 * n + 2] = score, struct_pack(ENTRY, clock, number + n)
  end
  call('ZADD', key, unpack(entries))
  return weight
end

-- Forgets what is in no interval that ends at this time or later. Returns the list's weight then.
function log.forget(key, figures, time)
  local since = math.max(time - figures[2], -1)
  local weight, old = log.weight(key, since)
  call('ZREMRANGEBYSCORE', key, format('%d', -1 - since), format('%d', since))
  if old > 0 then
    seldom().set_weight(key, weight)
  end
  return weight
end

-- A key lives until no interval holds its entries, to the next of Redis's milliseconds.
function log.expire(key, fresh_at)
  call('PEXPIREAT', key, format('%d', math.min(fresh_at, 2^53 - 1) / 1000 + 1))
end

function log.ask(key, ask, now)
  local figures, cost = ask[4], ask[2]
  local newest, arrived, number = log.newest(key)
  local used, seen = 0
  if newest == false then
    return WRONG_TYPE, 0
  elseif newest then
    local since = math.max((arrived > now and arrived or now) - figures[2], -1)
    local entries = call('ZCOUNT', key, format('(%d', since), '+inf')
    local weight = log.weight(key, since)
    used = entries + weight
    -- So many of these have to leave before it fits.
    local room_at, excess = 0, used + cost - figures[1]
    if excess > 0 and excess <= used then
      local place = entries - excess
      if weight > 0 then
        place = seldom().place(key, since, entries, excess)
      end
      place = format('%d', place)
      room_at = tonumber(call('ZREVRANGE', key, place, place, 'WITHSCORES')[2]) + figures[2]
    end
    seen = { arrived, newest, math.min(room_at, 2^53 - 1), used }
  end
  local wait, remaining, moved, turn, fresh_at, clock =
    decide(ask[1], figures, cost, ask[5], seen, now)
  if moved then
    -- The list goes back with the clock whatever becomes of the request.
    seldom().move(key, arrived - now)
    newest, arrived = newest - arrived + now, now
    log.forget(key, figures, now)
    seldom().trim(key, figures)
    log.expire(key, newest + figures[2])
  end
  if not turn then
    return wait, remaining
  end
  number = newest and log.number(key, clock, newest, arrived, number) or 0
  return wait, remaining, { turn, clock, number, fresh_at, used }
end

function log.write(key, ask, entry)
  local figures, permits, clock = ask[4], ask[2], entry[2]
  local weight = log.forget(key, figures, clock)
  log.add(key, permits, entry[1], clock, entry[3], weight)
  -- MOST_BEYOND
  if entry[5] + permits > figures[1] + 100 then
    seldom().trim(key, figures)
  end
  log.expire(key, entry[4])
end

function log.settle(key, ask, now)
  local figures, used, taken = ask[4], ask[2], ask[6]
  local newest, arrived, number = log.newest(key)
  if newest == false then
    return WRONG_TYPE
  end
  local base = now
  if newest and arrived > now then
    if arrived - now > STALE then
      seldom().move(key, arrived - now)
      newest, arrived = newest - arrived + now, now
    else
      base = arrived
    end
  end
  local weight = log.forget(key, figures, base)
  local most = figures[1] + math.max(figures[1], 100) -- MOST_BEYOND
  local permits = weight > 0 and weight + call('ZCOUNT', key, '0', '+inf') or call('ZCARD', key)
  if used > 0 then
    number = newest and log.number(key, base, newest, arrived, number) or 0
    log.add(key, math.min(used, most), base, base, number, weight)
  -- As long as it may be, it may have forgotten some that still count.
  elseif permits >= most then
    used = 0
  elseif weight == 0 and -used <= MANY then
    taken = format('%d', taken)
    local found = call('ZREVRANGEBYSCORE', key, taken, taken, 'LIMIT', '0', format('%d', -used))
    if found[1] then
      call('ZREM', key, unpack(found))
    end
  else
    seldom().remove(key, -used, taken, taken, 'newest')
  end
  if permits + used > most then
    seldom().trim(key, figures)
  end
  newest = log.newest(key)
  if newest then
    log.expire(key, newest + figures[2])
  end
  return 0
end

-- These are made by the first request that needs one: to make them costs Redis more than what most
-- requests are about.
function seldom()
  if log.move then
    return log
  end

  function log.set_weight(key, weight)
    if weight > 0 then
      call('ZADD', key, format('%d', -2^53 - 2 * weight), TOTAL)
    else
      call('ZREM', key, TOTAL)
    end
  end

  -- Of a weight its entry, that one's clock and number, and how many more permits it stands for.
  function log.weighed(member)
    local clock, number, more = struct_unpack(WEIGHT, member)
    clock, number = 2^53 - clock, 2^32 - 1 - number
    return struct_pack(ENTRY, clock, number), clock, number, more
  end

  -- The place, from the newest on, of a permit's entry. It is told by its place from the oldest on, from 1
  -- on, among those later than `since`, which have so many entries.
  function log.place(key, since, entries, permit)
    -- As many weights as may be before it, the oldest first, and what those up to each have together.
    local found = call('ZREVRANGEBYSCORE', key, format('(%d', -1 - since), format('%d', -2^53),
      'LIMIT', '0', format('%d', math.ceil(permit / MANY)))
    local sums = { [0] = 0 }
    for n, member in ipairs(found) do
      local _, _, more = struct_unpack(WEIGHT, member)
      sums[n] = sums[n - 1] + more
    end
    -- The last one whose entry has fewer permits before it, and that entry's place.
    local low, high, place = 0, #found
    while low < high do
      local middle = math.ceil((low + high) / 2)
      local rank = call('ZREVRANK', key, (log.weighed(found[middle])))
      if entries - 1 - rank + sums[middle - 1] < permit then
        low, place = middle, rank
      else
        high = middle - 1
      end
    end
    if low > 0 and permit <= entries - place + sums[low] then
      return place
    end
    return entries + sums[low] - permit
  end

  -- Takes away so many of the permits between these times, the oldest or the newest first.
  function log.remove(key, permits, from, to, side)
    local newer = call('ZCOUNT', key, format('(%d', to), '+inf')
    local entries = call('ZCOUNT', key, format('%d', from), format('%d', to))
    local weight, below, above = log.weight(key, -1), format('%d', -1 - to), format('%d', -1 - from)
    local weighs = weight > 0
    while permits > 0 and entries > 0 do
      -- Before the first that has a weight are single ones.
      local found, single = {}, entries
      local member, clock, number, more
      if weight > 0 and side == 'newest' then
        found = call('ZRANGEBYSCORE', key, below, above, 'WITHSCORES', 'LIMIT', '0', '1')
      elseif weight > 0 then
        found = call('ZREVRANGEBYSCORE', key, above, below, 'WITHSCORES', 'LIMIT', '0', '1')
      end
      if found[1] then
        member, clock, number, more = log.weighed(found[1])
        single = call('ZREVRANK', key, member) - newer
        single = side == 'newest' and single or entries - 1 - single
      end
      single = math.min(single, permits)
      if single > 0 then
        local first = newer + (side == 'newest' and single or entries)
        local last = first + 1 - single
        call('ZREMRANGEBYRANK', key, format('%d', -first), format('%d', -last))
        entries, permits = entries - single, permits - single
      end
      if found[1] and permits > 0 then
        call('ZREM', key, member, found[1])
        entries, weight, permits = entries - 1, weight - more, permits - 1 - more
        if permits < 0 then
          weight = log.add(key, -permits, -1 - tonumber(found[2]), clock, number - more, weight)
        end
      end
    end
    if weighs then
      log.set_weight(key, weight)
    end
  end

  -- Forgets the oldest of what is too much.
  function log.trim(key, figures)
    local excess = call('ZCOUNT', key, '0', '+inf') + log.weight(key, -1)
      - figures[1] - math.max(figures[1], 100) -- MOST_BEYOND
    if excess > 0 then
      log.remove(key, excess, 0, 2^53 - 1, 'oldest')
    end
  end

  -- Moves all entries so far back, as if no time had passed since the newest. Read and written in one
  -- piece: it happens when a clock is set.
  function log.move(key, by)
    local all = call('ZRANGE', key, '0', '-1', 'WITHSCORES')
    call('DEL', key)
    local moved, weight = {}, 0
    for n = 1, #all, 2 do
      local member, score = all[n], tonumber(all[n + 1])
      if score >= 0 then
        local clock, number = struct_unpack(ENTRY, member)
        if clock >= by then
          moved[#moved + 1] = format('%d', score - by)
          moved[#moved + 1] = struct_pack(ENTRY, clock - by, number)
        end
      elseif score >= -2^53 then
        local clock, number, more = struct_unpack(WEIGHT, member)
        if clock <= 2^53 - by then
          moved[#moved + 1] = format('%d', score + by)
          moved[#moved + 1] = struct_pack(WEIGHT, clock + by, number, more)
          weight = weight + more
        end
      end
      if #moved == 4000 or n + 1 == #all and #moved > 0 then
        call('ZADD', key, unpack(moved))
        moved = {}
      end
    end
    if weight > 0 then
      log.set_weight(key, weight)
    end
  end
  return log
end

lists['sliding-log'] = log

-- A slot of a concurrency limit: its score is when its lease ends, its member who holds it. The
-- holder's two numbers follow the figures of a request that takes a slot, goes on holding it (settled
-- above zero) or gives it back (below zero).
local slots = {}

function slots.ask(key, ask, now)
  call('ZREMRANGEBYSCORE', key, '-inf', now)
  local wait, remaining, _, ends = decide(ask[1], ask[4], ask[2], ask[5], call('ZCARD', key), now)
  return wait, remaining, ends and { ends }
end

function slots.write(key, ask, entry)
  local figures = ask[4]
  if figures[4] then
    call('ZADD', key, entry[1], struct_pack('>I7I7', figures[3], figures[4]))
    -- A key lives as long as its longest lease.
    local last = tonumber(call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2])
    call('PEXPIREAT', key, format('%d', last / 1000 + 1))
  end
end

function slots.settle(key, ask, now)
  local figures = ask[4]
  if ask[2] > 0 then
    slots.write(key, ask, { now + figures[2] })
  elseif figures[4] then
    call('ZREM', key, struct_pack('>I7I7', figures[3], figures[4]))
  end
  return 0
end

lists.concurrency = slots
