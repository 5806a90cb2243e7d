-- The one part of the script that talks to Redis: it reads the clock and the buckets, lets the
-- algorithms (joined in front of this file) decide, and writes what they keep. Redis's clock alone
-- counts; no time comes from a caller.
--
-- One call holds any number of requests. They are decided in their order, each seeing what the ones
-- before it took, and each takes from all of its buckets or from none.
--
-- KEYS: the buckets, each once.
-- ARGV[1]: for each request its verb (1 byte) and how many asks it has (2 bytes, the highest first),
--          then for each ask its bucket and its terms (2 bytes each), by their places.
--   1  take       decide, and take where every enforcing ask allows
--   2  look       decide, and take nothing
--   3  give back  what each ask had taken
-- ARGV[2] and so on: terms, in MessagePack: the algorithm's figures, the cost, whether a refusal
--          counts, the algorithm's name.
-- Answer: 16 bytes for each ask, two numbers of 8 bytes: microseconds until it would be allowed (0
--   is at once, -1 is never, -2 is that the key holds something that is no string), and the tokens
--   that remain. A request with a key of another type takes nothing.
--
-- Everything between the calls of Redis is written for an interpreter that runs it once: loops
-- rather than functions, and few tables.

local TAKE, GIVE_BACK = 1, 3
local WRONG_TYPE = -2

local call, keys, args = redis.call, KEYS, ARGV
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local plan = { string.byte(args[1], 1, -1) }
local terms = {}
for place = 2, #args do
  terms[place - 1] = { cmsgpack.unpack(args[place]) }
end

-- Each bucket's bytes; false for a new one, nil for a key of another type. MGET tells no difference
-- between the last two.
local states = call('MGET', unpack(keys))
for bucket = 1, #keys do
  if not states[bucket] and call('EXISTS', keys[bucket]) == 1 then
    states[bucket] = nil
  end
end

-- For each bucket that is to be written, when it is as good as new. Here and in the answer there is
-- room for a few asks from the start: a table that grows costs more than what is put into it.
local written = { false, false, false, false }
local answer, said = { 0, 0, 0, 0, 0, 0, 0, 0 }, 0
-- For each ask that took, what the bucket's state and entry in `written` were before.
local undo = {}
local place, ends = 1, #plan
while place < ends do
  local verb, count = plan[place], plan[place + 1] * 256 + plan[place + 2]
  local first, took = place + 3, 0
  local pass = verb == TAKE
  place = first
  for n = 1, count do
    local bucket = plan[place] * 256 + plan[place + 1]
    local ask = terms[plan[place + 2] * 256 + plan[place + 3]]
    local state, last = states[bucket], #ask
    local wait, remaining = 0, 0
    if state == nil then
      wait, pass = WRONG_TYPE, false
    elseif verb == GIVE_BACK then
      if state then
        local _, _, _, left, fresh_at = decide(ask[last], ask, -ask[last - 2], state, now)
        states[bucket], written[bucket] = left or false, fresh_at or now
      end
    else
      local moved, taken, fresh_at
      wait, remaining, moved, taken, fresh_at = decide(ask[last], ask, ask[last - 2], state, now)
      if moved then
        -- The bucket goes back with the clock whatever becomes of the request.
        local _, _, _, kept, kept_fresh_at = decide(ask[last], ask, 0, state, now)
        states[bucket], written[bucket] = kept, kept_fresh_at
      end
      if wait ~= 0 then
        pass = pass and not ask[last - 1]
      elseif pass then
        if count > 1 then
          undo[2 * n - 1], undo[2 * n], took = states[bucket], written[bucket], n
        end
        states[bucket], written[bucket] = taken, fresh_at
      else
        remaining = remaining + ask[last - 2]
      end
    end
    answer[said + 1], answer[said + 2] = wait, remaining
    place, said = place + 4, said + 2
  end

  if not pass then
    for n = took, 1, -1 do
      local at, told = first + 4 * (n - 1), said - 2 * (count - n)
      if answer[told - 1] == 0 then
        local bucket = plan[at] * 256 + plan[at + 1]
        local ask = terms[plan[at + 2] * 256 + plan[at + 3]]
        states[bucket], written[bucket] = undo[2 * n - 1], undo[2 * n]
        answer[told] = answer[told] + ask[#ask - 2]
      end
    end
  end
end

-- A key lives until its bucket is as good as new, to the next of Redis's milliseconds.
local format = string.format
for bucket = 1, #keys do
  local fresh_at = written[bucket]
  if fresh_at then
    local state = states[bucket]
    if state then
      call('SET', keys[bucket], state, 'PXAT', format('%d', fresh_at / 1000 + 1))
    else
      call('DEL', keys[bucket])
    end
  end
end

if said == 2 then
  return struct.pack('>i8i8', answer[1], answer[2])
end
return struct.pack('>' .. string.rep('i8', said), unpack(answer))
