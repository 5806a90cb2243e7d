-- The one part of the script that talks to Redis. It reads the clock and the buckets, lets the algorithms
-- (joined in front of this file) decide, and writes the new states. Only Redis's clock counts; no time
-- comes from a caller.
--
-- One call holds any number of requests. They are decided in their order. Each sees what the requests
-- before it took, and takes from all of its buckets or from none. An ask is what a request wants of one bucket.
--
-- The protocol with the caller (mod.rs). Every number is whole and lies between -2^53 and 2^53.
--
--   KEYS        the buckets' names, each once
--   ARGV[1]     the requests, as numbers in MessagePack. For each request:
--                 the number of its asks; below zero where it wants receipts
--                 then for each ask two indices from 1: its bucket in KEYS, its terms after ARGV[1]
--   ARGV[2]...  terms in MessagePack, each different one once:
--                 1  name of the algorithm
--                 2  cost: tokens to take; below zero: tokens to give back
--                 3  way of asking (below)
--                 4  list of the algorithm's figures
--                 5  microseconds that the request may be held
--                 6  with `settle` the receipt of the taking that is settled
--                 7  what is known of the figures under which the receipt was written, if they are others: of a bucket
--                    tokens, period, and the time of the taking; of a window the time from which it does not count
--
-- The way of asking:
--   enforce     takes where every enforcing ask of the request lets it pass
--   shadow      the same, but a refusal by this ask does not count
--   candidate   as shadow; takes wherever it lets the request pass itself
--   peek        as enforce, but this ask takes nothing
--   look        as enforce, but no ask of the request takes, except candidates
--   settle      takes the cost in any case, or gives it back
--
-- The answer is one text of numbers of 8 bytes. First come one or two numbers for each ask, by this table.
-- Then come the receipts, one for each ask of a request that wants them, and then Redis's time. A receipt
-- means something only where its ask took.
--   first       second         says
--   0 and more  (none)         allowed; the first number is the tokens that remain. For `settle`: 0
--   -1          tokens         rejected, and no wait will help; so many tokens remain
--   -2          0              the key holds a value of another type; its request took nothing
--   -2 - wait   tokens         rejected; it would be allowed after `wait` microseconds
--   -2 - wait   -1 - tokens    held for `wait` microseconds
--
-- The protocol with the algorithms:
-- decide(algorithm, figures, cost, max_wait, bytes, now, receipt, former).
--   cost        above zero: to take; zero: only bring the state up to now; below zero: to give back
--   max_wait    microseconds that the request may be held. Below zero the cost is taken in any case: -1
--               where this limit never holds requests, less where it may hold some
--   bytes       the bucket's state; false or nil for a new bucket
--   now         microseconds since 1970, by Redis's clock
--   receipt     of the taking that is given back; only where the cost is below zero
--   former      what is known of the figures under which the receipt was written; nil where they are the same
-- It returns up to six values:
--   1  wait       microseconds until the cost would be allowed; -1: never allowed
--   2  remaining  tokens; where the cost is allowed, after it was taken
--   3  moved      true: the state had to follow a clock that stepped back. nil: the key lives long enough by
--                 these figures. Else the key may have the expiry of other figures: the time at which it
--                 expires, in microseconds, or 0 or false where the bytes do not tell this time
--   4  taken      where the request passes: the state's bytes with the cost taken; false: a new bucket
--   5  expiry     until when the bytes must be kept; nil where the key already lives long enough
--   6  receipt    what is noted of the taking, for a later settlement
-- Some buckets are lists, which are sorted sets in Redis. Each is read and written when a request asks about it: see
-- `lists.lua`, which stands in front of this text and also reads the terms.
--
-- Redis runs the whole text for each call. So the code has loops instead of functions, few tables, and few reads from
-- them. A function for each step would make a call slower by a fifth.

-- 1. READ
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local plan = { cmsgpack.unpack(ARGV[1]) }

-- Each bucket's bytes: false for a new bucket, nil for a key of another type. `kinds` then has this type. MGET answers
-- the same for both. But if there are keys of another type, more keys exist than MGET has strings for.
local states, kinds = call('MGET', unpack(keys))
local known = 0
for bucket = 1, #keys do
  if states[bucket] then
    known = known + 1
  end
end
-- Of each bucket whose key may have the expiry of other figures: the last ask since the bucket was written.
local aged = {}
-- The bytes as they were read.
local stored = known > 0 and { unpack(states) }
if known < #keys and call('EXISTS', unpack(keys)) > known then
  kinds = {}
  for bucket = 1, #keys do
    local kind = not states[bucket] and call('TYPE', keys[bucket]).ok
    if kind and kind ~= 'none' then
      states[bucket], kinds[bucket] = nil, kind
    end
  end
end

-- 2. ASK, request by request.
--
-- For each bucket to be written, the time until which its key must live; true if the key's present expiry is late
-- enough. This table and `answer` begin with room for a few asks, because it costs much to let a table grow.
local written = { false, false, false, false }
local answer, said = { 0, 0, 0, 0 }, 0
-- The texts of expiries that several keys may have.
local expiries, format = {}, string.format
-- What new buckets have answered, by their terms: all new buckets give the same answer to the same terms.
local fresh = {}
-- The receipts of the requests that want them.
local receipts
-- The bucket's state, and its entries in `written` and `aged`, before each ask of a request takes. The last ask needs
-- none of them.
local before = {}
local index, ends = 1, #plan
while index < ends do
  local count, first, said_before, entries, noted = plan[index], index, said
  if count < 0 then
    receipts = receipts or {}
    count, noted = -count, receipts
  end
  local pass = true
  -- Whether a key is of another type. Then not even a candidate takes.
  local void
  for n = 1, count do
    local bucket, ask = plan[index + 1], terms[plan[index + 2]]
    local way, wait, remaining, taken, expiry, receipt = ask[3], 0, 0
    index = index + 2
    -- Ask one bucket. `taken` becomes the bucket's bytes after the request has taken, or the entry for a list. A
    -- settlement is written at once.
    local state, list, moved = states[bucket], lists and lists[ask[1]]
    if list then
      if state or state == nil and kinds[bucket] ~= 'zset' then
        wait = WRONG_TYPE
      elseif way == 'settle' then
        wait, remaining = list.settle(keys[bucket], ask, now)
      else
        wait, remaining, taken = list.ask(keys[bucket], ask, now)
        receipt = taken and taken[1]
      end
    elseif state == nil then
      wait = WRONG_TYPE
    elseif way == 'settle' then
      -- A new bucket is full: nothing can be given back.
      if state or ask[2] > 0 then
        wait, remaining, moved, taken, expiry =
          decide(ask[1], ask[4], ask[2], -1 - ask[5], state, now, ask[6], ask[7])
        states[bucket], written[bucket] = taken or false, expiry or written[bucket] or true
        wait, remaining, taken = 0, 0, nil
        if aged[bucket] then
          aged[bucket] = nil
        end
      end
    elseif state then
      wait, remaining, moved, taken, expiry, receipt =
        decide(ask[1], ask[4], ask[2], ask[5], state, now)
      if moved == true then
        -- The bucket goes back with the clock even if the request is refused.
        local _, _, _, kept, kept_expiry = decide(ask[1], ask[4], 0, 0, state, now)
        states[bucket], written[bucket], aged[bucket] = kept, kept_expiry, nil
      elseif moved ~= nil then
        aged[bucket] = ask
      end
    else
      local answered = fresh[ask]
      if answered and not noted then
        wait, remaining, taken, expiry = answered[1], answered[2], answered[3], answered[4]
      else
        wait, remaining, moved, taken, expiry, receipt =
          decide(ask[1], ask[4], ask[2], ask[5], nil, now)
        fresh[ask] = { wait, remaining, taken, expiry }
        if taken then
          expiries[expiry] = format('%d', expiry / 1000 + 1)
        end
      end
    end
    if noted then
      noted[#noted + 1] = receipt or 0
    end
    if n < count then
      before[3 * n - 2], before[3 * n - 1], before[3 * n] = states[bucket], written[bucket], aged[bucket]
    end
    if way == 'look' then
      pass = false
    elseif way == 'peek' and taken then
      if list then
        list.keep(keys[bucket], taken)
      end
      remaining, taken = remaining + ask[2], nil
    end
    if taken and not pass and (void or way ~= 'candidate') then
      if list then
        list.keep(keys[bucket], taken)
      end
    elseif taken and list then
      entries = entries or {}
      entries[n] = taken
    elseif taken then
      states[bucket], written[bucket] = taken, expiry or written[bucket] or true
      if aged[bucket] then
        aged[bucket] = nil
      end
    end
    if wait == 0 then
      said = said + 1
      answer[said] = remaining
    elseif taken then
      answer[said + 1], answer[said + 2], said = -2 - wait, -1 - remaining, said + 2
    else
      if wait == WRONG_TYPE then
        pass, void = false, true
      elseif way ~= 'shadow' and way ~= 'candidate' then
        pass = false
      end
      answer[said + 1], answer[said + 2], said = wait < 0 and wait or -2 - wait, remaining, said + 2
    end
  end
  index = index + 1

  -- 3. KEEP OR GIVE BACK. All asks of the request are decided. If it passes, its entries are added to the lists; in the
  -- other buckets they are counted already. If not, each bucket but that of a candidate is set back to what it was before
  -- the request, and the answer is corrected: what remains then includes the cost.
  if entries then
    for n, entry in pairs(entries) do
      local key, ask = keys[plan[first + 2 * n - 1]], terms[plan[first + 2 * n]]
      if pass or ask[3] == 'candidate' and not void then
        lists[ask[1]].write(key, ask, entry)
      else
        lists[ask[1]].keep(key, entry)
      end
    end
  end
  if not pass then
    for n = count - 1, 1, -1 do
      local bucket, way = plan[first + 2 * n - 1], terms[plan[first + 2 * n]][3]
      if void or way ~= 'candidate' then
        states[bucket], written[bucket], aged[bucket] = before[3 * n - 2], before[3 * n - 1], before[3 * n]
      end
    end
    said = said_before
    for n = 1, count do
      local ask = terms[plan[first + 2 * n]]
      said = said + 1
      if answer[said] < 0 then
        said = said + 1
      elseif ask[3] ~= 'peek' and (void or ask[3] ~= 'candidate') then
        answer[said] = answer[said] + ask[2]
      end
    end
  end
end

-- 4. WRITE each bucket that has changed. Expiries are in whole milliseconds, rounded up.
for bucket = 1, #keys do
  local expiry, ask = written[bucket], aged[bucket]
  if ask then
    -- The last ask took nothing. By its figures the key may have to live longer than it does.
    local _, _, lives, _, ends = decide(ask[1], ask[4], 0, 0, states[bucket], now)
    if ends and ends > (lives or 0) then
      if expiry then
        expiry = ends
      else
        call('PEXPIREAT', keys[bucket], format('%d', ends / 1000 + 1))
      end
    end
  end
  if expiry then
    local state = states[bucket]
    if not state then
      call('DEL', keys[bucket])
    elseif expiry == true then
      call('SETRANGE', keys[bucket], '0', state)
    else
      local old = stored and stored[bucket]
      local text = expiries[expiry] or format('%d', expiry / 1000 + 1)
      if old and #old == #state then
        -- Two commands that answer with numbers cost three quarters of one that answers OK.
        call('SETRANGE', keys[bucket], '0', state)
        call('PEXPIREAT', keys[bucket], text)
      else
        -- With GET the command answers with the old value, and not with OK.
        call('SET', keys[bucket], state, 'PXAT', text, 'GET')
      end
    end
  end
end

if receipts then
  for n = 1, #receipts do
    answer[said + n] = receipts[n]
  end
  said = said + #receipts + 1
  answer[said] = now
end
if said == 1 then
  return struct_pack('>i8', answer[1])
end
return struct_pack('>' .. string.rep('i8', said), unpack(answer, 1, said))
