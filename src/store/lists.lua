-- The buckets that are lists, as sorted sets: what `shell.lua` needs of them, put into it at its line for
-- it. Only a call that asks about one comes here.
--
-- Each way of counting has two functions over a key and its terms. `ask` returns what `decide` says
-- (or that the key is another's), and, where the request passes, a function's arguments with which
-- `write` is to be called if all of the request's limits let it pass: a list that begins with the
-- receipt. `settle` writes at once.

-- An entry of a sliding log: its score is when the request goes, its member the clock by which it was
-- made (7 bytes), and a running number among those of that clock (4).
local ENTRY, SIZE, STALE, CHUNK = '>I7I4', 11, 1000000, 2000
local format, log = string.format, {}

-- The newest entry's score and clock. Nothing of an empty list, false of one that is not ours.
function log.newest(key)
  local entry = call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
  if not entry[1] then
    return nil
  elseif #entry[1] ~= SIZE then
    return false
  end
  return tonumber(entry[2]), (struct_unpack(ENTRY, entry[1]))
end

function log.add(key, at, arrived, permits)
  -- The highest number of this clock is that of the newest entry of all, or of the newest that went at
  -- once.
  local number = 0
  for _, found in ipairs({
    call('ZREVRANGE', key, 0, 0),
    call('ZREVRANGEBYSCORE', key, arrived, arrived, 'LIMIT', 0, 1),
  }) do
    if found[1] then
      local clock, last = struct_unpack(ENTRY, found[1])
      if clock == arrived and last >= number then
        number = last + 1
      end
    end
  end
  local entries = {}
  for n = 1, permits do
    entries[#entries + 1] = at
    entries[#entries + 1] = struct_pack(ENTRY, arrived, number)
    number = number + 1
    if n % CHUNK == 0 or n == permits then
      call('ZADD', key, unpack(entries))
      entries = {}
    end
  end
end

-- Moves all entries so far back, as if no time had passed since the newest. Read and written in one
-- piece: it happens when a clock is set.
function log.move(key, by)
  local all = call('ZRANGE', key, 0, -1, 'WITHSCORES')
  call('DEL', key)
  local entries = {}
  for n = 1, #all, 2 do
    local clock, number = struct_unpack(ENTRY, all[n])
    if clock >= by then
      entries[#entries + 1] = tonumber(all[n + 1]) - by
      entries[#entries + 1] = struct_pack(ENTRY, clock - by, number)
    end
    if #entries == 2 * CHUNK or n + 1 == #all and #entries > 0 then
      call('ZADD', key, unpack(entries))
      entries = {}
    end
  end
end

-- Forgets what is in no interval that ends at this time or later, and what is too much.
function log.forget(key, figures, time)
  call('ZREMRANGEBYSCORE', key, '-inf', format('%.0f', time - figures[2]))
  local beyond = figures[1] > 100 and figures[1] or 100 -- MOST_BEYOND
  call('ZREMRANGEBYRANK', key, 0, -figures[1] - beyond - 1)
end

-- A key lives until no interval holds its entries, to the next of Redis's milliseconds.
function log.expire(key, fresh_at)
  call('PEXPIREAT', key, format('%d', fresh_at / 1000 + 1))
end

function log.ask(key, ask, now)
  local figures, cost = ask[4], ask[2]
  local newest, arrived = log.newest(key)
  local seen
  if newest == false then
    return WRONG_TYPE, 0
  elseif newest then
    local base = arrived > now and arrived or now
    local room_at, others = 0, figures[1] - cost
    if others < 0 then
      others = 0
    end
    local pivot = call('ZREVRANGE', key, others, others, 'WITHSCORES')
    if pivot[1] then
      room_at = math.min(tonumber(pivot[2]) + figures[2], 2^53 - 1)
    end
    local used = call('ZCOUNT', key, '(' .. format('%.0f', base - figures[2]), '+inf')
    seen = { arrived, newest, room_at, used }
  end
  local wait, remaining, moved, turn, fresh_at, clock =
    decide(ask[1], figures, cost, ask[5], seen, now)
  if moved then
    -- The list goes back with the clock whatever becomes of the request.
    log.move(key, arrived - now)
    log.forget(key, figures, now)
    log.expire(key, math.min(newest - arrived + now + figures[2], 2^53 - 1))
  end
  return wait, remaining, turn and { turn, clock, fresh_at }
end

function log.write(key, ask, entry)
  log.add(key, entry[1], entry[2], ask[2])
  log.forget(key, ask[4], entry[2])
  log.expire(key, entry[3])
end

-- Takes away so many of the entries of this moment, the last ones first.
function log.remove(key, at, permits)
  at = format('%.0f', at)
  while permits > 0 do
    local entries =
      call('ZREVRANGEBYSCORE', key, at, at, 'LIMIT', 0, format('%.0f', math.min(permits, CHUNK)))
    if not entries[1] then
      break
    end
    call('ZREM', key, unpack(entries))
    permits = permits - #entries
  end
end

function log.settle(key, ask, now)
  local figures, used = ask[4], ask[2]
  local most = figures[1] + math.max(figures[1], 100) -- MOST_BEYOND
  local newest, arrived = log.newest(key)
  if newest == false then
    return WRONG_TYPE
  end
  local base = now
  if newest and arrived > now then
    if arrived - now > STALE then
      log.move(key, arrived - now)
    else
      base = arrived
    end
  end
  log.forget(key, figures, base)
  if used > 0 then
    log.add(key, base, base, math.min(used, most))
  -- As long as it may be, it may have forgotten some that still count.
  elseif used < 0 and call('ZCARD', key) < most then
    log.remove(key, ask[6], -used)
  end
  log.forget(key, figures, base)
  newest = log.newest(key)
  if newest then
    log.expire(key, math.min(newest + figures[2], 2^53 - 1))
  end
  return 0
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
