-- What a call asks about, and the buckets that are lists, as sorted sets. This stands in front of `shell.lua`, whose head
-- describes the call.

local WRONG_TYPE = -2

local call, keys = redis.call, KEYS
-- `lists` has the algorithms whose buckets are lists. nil where the call asks about no such bucket.
local terms, lists = {}
for index = 2, #ARGV do
  local ask = { cmsgpack.unpack(ARGV[index]) }
  if ask[1] == 'sliding-log' or ask[1] == 'concurrency' then
    lists = {}
  end
  terms[index - 1] = ask
end
if lists then

-- Each of these algorithms has four functions over a key and its terms. `ask` returns what `decide` says, or that the
-- key holds a value of another type. Where the request passes, `ask` also returns a list that begins with the receipt.
-- If all limits of the request let it pass, `write` is called with that list, else `keep`. `settle` writes at once, and
-- returns the number that the answer has for a settlement.

-- A sliding log has an entry for each permit. Its score is the time at which the request goes. Its member is
-- its clock, the time at which the entry was made (7 bytes), and a running number among the entries with this
-- clock (4 bytes).
--
-- Numbers are given to Redis as text. If Redis has to turn them into text, this takes longer than the command.
local ENTRY, SIZE, STALE, MOST_ENTRIES, MOST_BEYOND = '>I7I4', 11, 1000000, 1000, 100
local format, log = string.format, {}

-- The newest entry's score, clock and number; nil for an empty list, false for a list of another program.
function log.newest(key)
  local entry = call('ZREVRANGE', key, '0', '0', 'WITHSCORES')
  if not entry[1] then
    return nil
  elseif #entry[1] ~= SIZE then
    return false
  end
  return tonumber(entry[2]), struct_unpack(ENTRY, entry[1])
end

-- The number of the next entry with this clock. Two entries may have the highest number so far: the newest entry of all
-- (its clock and number are `made` and `last`), and the newest entry whose request went at once.
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

-- Adds at most MOST_ENTRIES permits, numbered from `number` on.
function log.add(key, permits, at, clock, number)
  local score, entries = format('%d', at), {}
  for n = 0, permits - 1 do
    entries[2 * n + 1], entries[2 * n + 2] = score, struct_pack(ENTRY, clock, number + n)
  end
  call('ZADD', key, unpack(entries))
end

-- Forgets the entries that are in no interval that ends at `time` or later. If the list still has too many
-- entries, forgets the oldest of them too.
function log.forget(key, figures, time)
  call('ZREMRANGEBYSCORE', key, '0', format('%d', math.max(time - figures[2], -1)))
  local excess = call('ZCARD', key) - figures[1] - math.max(figures[1], MOST_BEYOND)
  if excess > 0 then
    call('ZREMRANGEBYRANK', key, '0', format('%d', excess - 1))
  end
end

-- Moves all entries back by `by`, as if no time had passed since the newest. All are read and written in
-- one piece, because this only happens when a clock is set back.
function log.move(key, by)
  local all = call('ZRANGE', key, '0', '-1', 'WITHSCORES')
  call('DEL', key)
  local moved = {}
  for n = 1, #all, 2 do
    local clock, number = struct_unpack(ENTRY, all[n])
    if clock >= by then
      moved[#moved + 1] = format('%d', tonumber(all[n + 1]) - by)
      moved[#moved + 1] = struct_pack(ENTRY, clock - by, number)
    end
    if #moved == 4000 or n + 1 == #all and #moved > 0 then
      call('ZADD', key, unpack(moved))
      moved = {}
    end
  end
end

-- A key lives until no interval holds its entries, rounded up to whole milliseconds.
function log.expire(key, fresh_at)
  call('PEXPIREAT', key, format('%d', math.min(fresh_at, 2^53 - 1) / 1000 + 1))
end

function log.ask(key, ask, now)
  local figures, cost = ask[4], ask[2]
  local newest, arrived, number = log.newest(key)
  local seen
  if newest == false then
    return WRONG_TYPE, 0
  elseif newest then
    local since = math.max((arrived > now and arrived or now) - figures[2], -1)
    local used = call('ZCOUNT', key, format('(%d', since), '+inf')
    -- `excess` of the counted entries must leave the interval before the cost fits.
    local room_at, excess = 0, used + cost - figures[1]
    if excess > 0 and excess <= used then
      local index = format('%d', used - excess)
      room_at = tonumber(call('ZREVRANGE', key, index, index, 'WITHSCORES')[2]) + figures[2]
    end
    seen = { arrived, newest, math.min(room_at, 2^53 - 1), used }
  end
  local wait, remaining, moved, moment, fresh_at, clock =
    decide(ask[1], figures, cost, ask[5], seen, now)
  if moved then
    -- The list goes back with the clock even if the request is refused.
    local by = seen[1] - now
    log.move(key, by)
    seen[1], seen[2], seen[3] = now, seen[2] - by, seen[3] - by
    log.forget(key, figures, now)
    log.expire(key, seen[2] + figures[2])
  end
  if not moment then
    if seen and not moved then
      -- The key may still have the expiry of a shorter interval.
      log.expire(key, seen[2] + figures[2])
    end
    return wait, remaining
  end
  number = seen and log.number(key, clock, seen[2], seen[1], number) or 0
  return wait, remaining, { moment, clock, number, fresh_at, seen and seen[2] + figures[2] }
end

function log.write(key, ask, entry)
  local figures, clock = ask[4], entry[2]
  log.add(key, ask[2], entry[1], clock, entry[3])
  log.forget(key, figures, clock)
  log.expire(key, entry[4])
end

-- Another limit refuses the request. The key may still have the expiry of a shorter interval.
function log.keep(key, entry)
  if entry[5] then
    log.expire(key, entry[5])
  end
end

function log.settle(key, ask, now)
  local figures, used, taken = ask[4], ask[2], format('%d', ask[6])
  local newest, arrived, number = log.newest(key)
  if newest == false then
    return WRONG_TYPE, 0
  end
  local base = now
  if newest and arrived > now then
    if arrived - now > STALE then
      log.move(key, arrived - now)
      newest, arrived = newest - arrived + now, now
    else
      base = arrived
    end
  end
  log.forget(key, figures, base)
  if used > 0 then
    number = newest and log.number(key, base, newest, arrived, number) or 0
    log.add(key, math.min(used, MOST_ENTRIES), base, base, number)
  -- A place before another request's place stays: no request goes before the newest entry. A list of the greatest length
  -- may have forgotten entries that still count. Nothing is given back to it.
  elseif not (newest and ask[6] > base and newest > ask[6])
    and call('ZCARD', key) < figures[1] + math.max(figures[1], MOST_BEYOND) then
    local most, from = format('%d', math.min(-used, MOST_ENTRIES)), taken
    if ask[6] >= 2^53 - 1 then -- NEWEST
      taken, from = format('%d', base), '0'
    end
    local found = call('ZREVRANGEBYSCORE', key, taken, from, 'LIMIT', '0', most)
    if found[1] then
      call('ZREM', key, unpack(found))
    end
  end
  log.forget(key, figures, base)
  newest = log.newest(key)
  if newest then
    log.expire(key, newest + figures[2])
  end
  return 0, 0
end

lists['sliding-log'] = log

-- A slot of a concurrency limit: its score is the end of its lease, its member is its holder. The holder's
-- two numbers come after the figures in the terms. A settlement above zero renews the lease, and below
-- zero gives the slot back.
--
-- A lease that ends too late was written before the clock was set back. Its holder may be dead, so its end is
-- lowered. A holder that lives renews each lease within three seconds, whatever its figures.
local slots, RENEWED, LATE = {}, 9000000, 1000000

function slots.ask(key, ask, now)
  call('ZREMRANGEBYSCORE', key, '-inf', now)
  local most = now + math.max(ask[4][2], RENEWED)
  for _, holder in ipairs(call('ZREVRANGEBYSCORE', key, '+inf', format('(%d', most + LATE))) do
    call('ZADD', key, format('%d', most), holder)
  end
  local wait, remaining, _, ends = decide(ask[1], ask[4], ask[2], ask[5], call('ZCARD', key), now)
  return wait, remaining, ends and { ends }
end

function slots.write(key, ask, entry)
  local figures = ask[4]
  if figures[4] then
    call('ZADD', key, entry[1], struct_pack('>I7I7', figures[3], figures[4]))
    -- A key lives until its last lease ends.
    local last = tonumber(call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2])
    call('PEXPIREAT', key, format('%d', last / 1000 + 1))
  end
end

-- Each lease has its own end, whatever the present figures are.
function slots.keep()
end

function slots.settle(key, ask, now)
  local figures = ask[4]
  if ask[2] > 0 then
    slots.write(key, ask, { now + figures[2] })
  elseif figures[4] then
    call('ZREM', key, struct_pack('>I7I7', figures[3], figures[4]))
  end
  return 0, 0
end

lists.concurrency = slots

end
