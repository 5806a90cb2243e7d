-- A Redisson limiter, read and written as Redisson does (3.17 and later), but by Redis's clock. The caller
-- is `redisson/mod.rs`.
--
-- The keys: a hash with the figures; `value`, the number of permits left; `permits`, a sorted set with an
-- entry for each acquisition. An entry's score is the millisecond of the acquisition. Its member is the
-- length of an id (a byte), the id, and the number of permits (four bytes, the lowest first). At every
-- time, the value plus the permits of the entries inside the interval make up the rate.
--
-- A request that waits has its entry at once, and the score is the future time at which the request goes.
-- All clients see these permits as in use until the interval after that time is over. Therefore the value
-- is below zero while a request waits, or after the figures were lowered below the permits in use. Redisson
-- reads a negative value correctly.
--
-- Older versions of Redisson keep something else under the same keys. To write beside them would let pass up to
-- twice the rate, so nothing is written then.
--
-- KEYS: the hash; `value` and `permits` of all clients together; `value` and `permits` of this client alone.
-- ARGV[1]: the verb:
--   take    takes the permits, now or at a later time, if the request may wait until then
--   look    answers like `take`, but takes nothing
--   settle  takes further permits in any case; below zero gives permits back
--   return  gives back the entry with this id
--   check   only says whether this script can use what the keys hold
-- ARGV[2]: how many permits.
-- ARGV[3]: the id of a new entry, or of the entry to give back.
-- ARGV[4], [5], [6], [7]: rate, interval, type and keep-alive time for a limiter that has none; empty where the file
-- has none.
-- ARGV[8]: how many microseconds the request may wait.
--
-- The answer: { 0 } to `return`, and to `check` of what can be used; { 1 } where the limiter has no figures; { 2 }
-- where a key holds a value of another type; { 3 } where an older Redisson uses the keys. Else nine numbers:
--   1  0
--   2  microseconds until the request may go; 0: now; -1: never
--   3  1 where the request waits; 2 where it does not, because the keys might expire before its permits are
--      free again; else 0
--   4  permits left
--   5  rate
--   6  interval in milliseconds
--   7  type
--   8  the keep-alive time in milliseconds; 0: none
--   9  by how many milliseconds an entry is ahead of Redis's clock

local UNSET, WRONG_TYPE, OLDER = { 1 }, { 2 }, { 3 }
local EXACT = 9007199254740992
-- For Java, Long.MAX_VALUE means that there is no limit. This is the highest rate that an answer can say.
local MOST_RATE = 999999999999999
-- Up to this number of entries, every call adds them up and compares the sum with the value.
local SMALL = 50
local PAGE = 100
-- Members of older versions: of 3.13.3 to 3.16.3 a random float and the permits, of 3.16.4 to 3.16.8 a length of
-- eight bytes, the id and the permits. No newer version writes members of these lengths.
local OLDER_LENGTHS = { [8] = true, [20] = true }
-- The expiries of two keys that are set to expire together differ by at most this number of milliseconds.
local TOGETHER = 1000
-- Entries of waiting requests are looked for among this number of the newest entries.
local NEWEST = 10
-- The id of a waiting request's entry begins with this text. An entry that a wrong clock has dated into the
-- future begins otherwise. The other 12 bytes suffice as an id.
local WAITS = 'wait'

local call = redis.call
local verb, wanted, id, max_wait = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[8])
local waiting_id = WAITS .. string.sub(id, #WAITS + 1)

local function whole(text)
  local number = tonumber(text or nil)
  if number and number % 1 == 0 and number > -EXACT and number < EXACT then
    return number
  end
end

local function text(number)
  return string.format('%.0f', number)
end

local function entry(bytes, permits)
  return struct.pack('B', #bytes) .. bytes .. struct.pack('<I4', permits)
end

-- An entry that cannot be read counts as one permit. Otherwise it would block the limiter.
local function permits_of(member)
  local length = string.byte(member, 1)
  if length and #member == length + 5 then
    return (struct.unpack('<I4', member, length + 2))
  end
  return 1
end

local is_older = false

local function sum(members)
  local permits = 0
  for _, member in ipairs(members) do
    is_older = is_older or OLDER_LENGTHS[#member]
    permits = permits + permits_of(member)
  end
  return permits
end

local function give_back_entry()
  -- The limiter's type may have changed meanwhile, so both pairs of keys are tried.
  for pair = 2, 4, 2 do
    local one, other = entry(id, wanted), entry(waiting_id, wanted)
    local removed = redis.pcall('ZREM', KEYS[pair + 1], one, other)
    if removed == 1 and call('EXISTS', KEYS[pair]) == 1 then
      redis.pcall('INCRBY', KEYS[pair], ARGV[2])
    end
  end
end

local function is_of_one_who_waits(member, score, now_ms)
  return tonumber(score) > now_ms and string.sub(member, 2, #WAITS + 1) == WAITS
end

-- Returns two figures of the entries in the future. The first is the moment of the last waiting request: no request
-- goes before it. The second says how far a wrong clock is ahead. Of many such entries only the newest are read.
local function read_future(permits_key, now_ms)
  local moment, ahead = now_ms, 0
  local newest = call('ZRANGE', permits_key, -NEWEST, -1, 'WITHSCORES')
  for index = 1, #newest, 2 do
    local member, score = newest[index], newest[index + 1]
    if is_of_one_who_waits(member, score, now_ms) then
      moment = tonumber(score)
    else
      ahead = math.min(math.max(0, score - now_ms), EXACT - 1)
    end
  end
  return moment, ahead
end

-- Gives permits back, and returns how many. Those of the oldest entries go first, because the entries that stay then
-- count for longer. A waiting request keeps its entry.
local function give_back(permits_key, most, now_ms)
  local back = 0
  while back < most do
    local oldest = call('ZRANGE', permits_key, 0, 0, 'WITHSCORES')
    local member, score = oldest[1], oldest[2]
    if not member or is_of_one_who_waits(member, score, now_ms) then
      break
    end
    local permits = permits_of(member)
    local taken_back = math.min(most - back, permits)
    call('ZREM', permits_key, member)
    if taken_back < permits then
      local bytes = string.sub(member, 2, #member - 4)
      call('ZADD', permits_key, score, entry(bytes, permits - taken_back))
    end
    back = back + taken_back
  end
  return back
end

-- The missing permits are free when the interval of a certain entry is over. Returns this entry's score; nil where
-- there is none. `each_has_one` says that each entry has one permit.
local function score_that_frees(permits_key, missing, each_has_one)
  local from, last = 0, each_has_one and missing - 1 or nil
  while not last do
    -- An entry has at least one permit, so no more entries are needed than permits are missing.
    local page = call('ZRANGE', permits_key, from, from + math.min(missing, PAGE) - 1)
    for index, member in ipairs(page) do
      missing = missing - permits_of(member)
      if missing <= 0 then
        last = from + index - 1
        break
      end
    end
    from = from + #page
    if #page == 0 then
      last = from - 1
    end
  end
  return call('ZRANGE', permits_key, last, last, 'WITHSCORES')[2]
end

-- Renews the expiry as Redisson does. With a keep-alive time each use renews it. Otherwise value and permits expire
-- with the hash.
local function renew_expiry(keep, value_key, permits_key)
  if keep > 0 then
    for _, key in ipairs({ KEYS[1], value_key, permits_key }) do
      call('PEXPIRE', key, text(keep))
    end
    return
  end
  local ends = call('PTTL', KEYS[1])
  if ends > 0 then
    call('PEXPIRE', value_key, ends)
    call('PEXPIRE', permits_key, ends)
  end
end

-- The limiter's figures, or an error. If a figure is missing, that of the file is used. Also returns what was missing.
local function read_figures()
  local figures, lacking = redis.pcall('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime'), {}
  if not figures.err and ARGV[4] ~= '' and not (figures[1] and figures[2] and figures[3]) then
    for index, field in ipairs({ 'rate', 'interval', 'type', 'keepAliveTime' }) do
      if not figures[index] then
        figures[index] = ARGV[3 + index]
        lacking[#lacking + 1] = field
        lacking[#lacking + 1] = figures[index]
      end
    end
  end
  return figures, lacking
end

-- Returns the permits that are left, and the number of entries that stay. `left` is the value as it was written. `gone`
-- entries have left the interval: their permits are free again.
--
-- If value and entries disagree, the entries are right. But to add up a large set at each call would cost more than the
-- rest of the limiter. So the value of a large set is trusted if it fits entries of one permit each. If it is too high
-- for that, the entries are added up at once. If it is lower, they are added up from time to time.
local function count_left(permits_key, left, rate, entries, gone, ended, micros)
  if gone > 0 then
    -- If more entries have left than stay, it is less work to add up those that stay, below.
    if left and gone <= entries - gone then
      left = left + sum(call('ZRANGEBYSCORE', permits_key, '-inf', text(ended)))
    else
      left = nil
    end
    entries = entries - gone
  end
  if entries == 0 then
    return rate, 0
  elseif
    entries <= SMALL
    or not left
    or left + entries > rate
    or (left + entries < rate and micros % math.ceil(entries / SMALL) == 0)
  then
    left = rate - sum(call('ZRANGE', permits_key, gone, -1))
  end
  return left, entries
end

if verb == 'return' then
  give_back_entry()
  return { 0 }
end

local figures, lacking = read_figures()
if figures.err then
  return WRONG_TYPE
end
local rate, interval = tonumber(figures[1] or nil), whole(figures[2])
rate = whole(rate and rate > MOST_RATE and MOST_RATE or rate)
if not rate or rate < 0 or not interval or interval < 0 or not figures[3] then
  return UNSET
end
local keep = whole(figures[4]) or 0
local kind = 0
local value_key, permits_key = KEYS[2], KEYS[3]
if figures[3] == '1' then
  kind, value_key, permits_key = 1, KEYS[4], KEYS[5]
end

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local now_ms = math.floor(now / 1000)

local written, entries = redis.pcall('GET', value_key), redis.pcall('ZCARD', permits_key)
if type(written) == 'table' or type(entries) == 'table' then
  return WRONG_TYPE
end
local known = whole(written)

-- The oldest versions of Redisson have no entries: a window ends when their value expires. In newer versions the value
-- only differs from the rate if there are entries.
local newest = entries > 0 and call('ZRANGE', permits_key, -1, -1, 'WITHSCORES') or {}
if newest[1] then
  is_older = OLDER_LENGTHS[#newest[1]]
elseif known and known ~= rate and keep == 0 then
  local ends, hash_ends = call('PTTL', value_key), call('PTTL', KEYS[1])
  is_older = ends > 0 and (hash_ends < 0 or hash_ends > ends + TOGETHER)
end

-- The entries that have left the interval.
local ended = now_ms - interval
local gone = 0
if newest[2] then
  gone = tonumber(newest[2]) <= ended and entries or call('ZCOUNT', permits_key, '-inf', text(ended))
end
local left
left, entries = count_left(permits_key, known, rate, entries, gone, ended, time[2])

if is_older then
  return OLDER
end
if verb == 'check' then
  return { 0 }
end
if verb == 'take' and #lacking > 0 then
  call('HSET', KEYS[1], unpack(lacking))
end
if gone > 0 then
  call('ZREMRANGEBYSCORE', permits_key, '-inf', text(ended))
end

local moment, ahead = now_ms, 0
if newest[2] and tonumber(newest[2]) > now_ms then
  moment, ahead = read_future(permits_key, now_ms)
end

local wait, waits = 0, 0
if verb == 'settle' then
  if wanted < 0 then
    left = left + give_back(permits_key, -wanted, now_ms)
  elseif wanted > 0 then
    call('ZADD', permits_key, text(now_ms), entry(id, wanted))
    left = left - wanted
  end
elseif wanted > rate then
  wait = -1
else
  local at = moment
  if left < wanted then
    -- If there are as many entries as permits in use, each entry has one permit.
    local score = score_that_frees(permits_key, wanted - left, left + entries == rate)
    at = math.max(at, math.ceil(tonumber(score or now_ms) + interval))
  end
  if at > now_ms then
    wait = at * 1000 - now
    -- The entry's time never comes. No limiter writes such an entry.
    if wait >= EXACT then
      wait = -1
    elseif wait <= max_wait then
      -- The entry must not expire with its key before its interval is over. Otherwise later requests would
      -- get its permits too.
      local ends = keep > 0 and keep or call('PTTL', KEYS[1])
      waits = (ends < 0 or at + interval <= now_ms + ends) and 1 or 2
    end
    if waits == 1 and verb == 'take' then
      call('ZADD', permits_key, text(at), entry(waiting_id, wanted))
      left = left - wanted
    end
  elseif verb == 'take' then
    call('ZADD', permits_key, text(now_ms), entry(id, wanted))
    left = left - wanted
  end
end

local changed = left ~= known and (written or entries > 0 or left ~= rate)
if changed then
  call('SET', value_key, text(left), 'KEEPTTL')
end

if verb ~= 'look' or changed then
  renew_expiry(keep, value_key, permits_key)
end
-- While requests wait, no later request gets the permits that are left.
if moment > now_ms or waits == 1 then
  left = math.min(left, 0)
end
return { 0, wait, waits, left, rate, interval, kind, math.max(keep, 0), ahead }
