-- The overrides that operators set while proxies run. KEYS[1] is the hash that has them all.
--
-- A field is LIMIT:KEY, or LIMIT* for all keys of the limit. Its value is the end in microseconds, a space, and JSON
-- that the script passes on. An end of 0 means no end. The field `generation` is no override: it has no colon and no
-- star. Its value changes with each change that all processes must hear of. This value never repeats, because it is a
-- time. The field `told` is no override either: after bans it has the generation of the last change that was no ban.
-- Nor is `seen` one. It is Redis's time at the last run. An earlier time now means that the clock has stepped back, or
-- that a replica with another clock took over. Then all ends go back with the clock. Otherwise an override would last
-- for longer than was asked, by as much as the clock stepped.
--
-- ARGV[1] says what to do:
--   look                              nothing more
--   set FIELD LASTS JSON MOST         sets an override for LASTS microseconds (0: without an end), where
--                                     there are fewer than MOST
--   ban FIELD LASTS JSON MOST ...     the same, where FIELD has no override; for as many as are named
--   end FIELD                         ends an override
--   tell                              changes the generation alone
-- ARGV[2] is KEEP: how long overrides without an end stay when no process reads them. FIELD and the others follow.
--
-- The answer: Redis's time, 1 where it was done, 0 where there was nothing to do or no room (one after the other for
-- several bans), the generation, the generation of the last change that was no ban, then the fields and values.
local hash, verb, keep = KEYS[1], ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local function whole(number)
  return string.format('%.0f', number)
end

local all = redis.call('HGETALL', hash)
local found, generation, told, seen = {}, 0, nil, now
for index = 1, #all, 2 do
  local field, value = all[index], all[index + 1]
  if field == 'generation' then
    generation = tonumber(value) or 0
  elseif field == 'told' then
    told = tonumber(value)
  elseif field == 'seen' then
    seen = tonumber(value) or now
  else
    found[field] = value
  end
end
local back = math.max(seen - now, 0)

-- Overrides that have ended are removed. The others are counted.
local left, count, latest, ends_never = {}, 0, now, false
for field, value in pairs(found) do
  local ends, words = string.match(value, '^(%d+)( .*)$')
  ends = tonumber(ends or '0')
  if ends > 0 and back > 0 then
    ends = ends - back
    value = whole(ends) .. words
  end
  if ends ~= 0 and ends <= now then
    redis.call('HDEL', hash, field)
  elseif not (verb == 'end' and field == ARGV[3]) then
    left[field], count = value, count + 1
  end
end

local done = '1'
if verb == 'set' or verb == 'ban' then
  done = ''
  for index = 3, #ARGV - 3, 4 do
    local field, lasts = ARGV[index], tonumber(ARGV[index + 1])
    local is_there = left[field] ~= nil
    if is_there and verb == 'ban' or not is_there and count >= tonumber(ARGV[index + 3]) then
      done = done .. '0'
    else
      local ends = lasts > 0 and now + lasts or 0
      left[field] = whole(ends) .. ' ' .. ARGV[index + 2]
      redis.call('HSET', hash, field, left[field])
      count = is_there and count or count + 1
      done = done .. '1'
    end
  end
elseif verb == 'end' then
  done = whole(redis.call('HDEL', hash, ARGV[3]))
end
if verb ~= 'look' and string.find(done, '1', 1, true) then
  if verb == 'ban' then
    told = told or generation
    redis.call('HSET', hash, 'told', whole(told))
  else
    told = nil
    redis.call('HDEL', hash, 'told')
  end
  -- A clock that was set back must not bring an old generation back.
  generation = math.max(now, generation + 1)
  redis.call('HSET', hash, 'generation', whole(generation))
end

local answer = { whole(now), done, whole(generation), whole(told or generation) }
for field, value in pairs(left) do
  local ends = tonumber(string.match(value, '^(%d+) ') or '0')
  ends_never = ends_never or ends == 0
  latest = math.max(latest, ends)
  answer[#answer + 1], answer[#answer + 2] = field, value
end
if ends_never then
  latest = math.max(latest, now + keep)
end
-- The hash lives for at least a minute. A process hears of a change within a second, unless it is stopped.
latest = math.max(latest, now + 60000000)
redis.call('PEXPIREAT', hash, whole(math.ceil(latest / 1000)))
-- These writes come after the expiry. If Redis's memory is full, it refuses a script whose first write is one of these.
-- It must still say which overrides there are.
if back > 0 then
  for field, value in pairs(left) do
    redis.call('HSET', hash, field, value)
  end
end
if generation > 0 or count > 0 then
  redis.call('HSET', hash, 'seen', whole(now))
end
return answer
