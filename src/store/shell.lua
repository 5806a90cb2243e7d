-- The one part of the script that talks to Redis: it reads the clock and the buckets, lets the
-- algorithms (joined in front of this file) decide, and writes all states or none. Redis's clock
-- alone counts; no time comes from a caller.
--
-- KEYS: one bucket for each ask.
-- ARGV: the verb, then for each ask its algorithm, its mode, its cost, how many figures it has,
--       and the figures.
--   take       decide, and take where every enforcing ask allows
--   look       decide, and take nothing
--   give-back  give each ask's cost back
-- Answer (take, look): for each ask what is said, microseconds until it would be allowed, and the
--   tokens that remain. Nothing is written where a key holds something other than a string.

local ALLOW, REJECT, NEVER, WRONG_TYPE = 0, 1, 2, 3

local function read_clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function read_asks()
  local asks = {}
  local place = 2
  for i = 1, #KEYS do
    local ask = {
      key = KEYS[i],
      algorithm = algorithms[ARGV[place]],
      enforces = ARGV[place + 1] == 'enforce',
      cost = tonumber(ARGV[place + 2]),
      figures = {},
    }
    local count = tonumber(ARGV[place + 3])
    for n = 1, count do
      ask.figures[n] = tonumber(ARGV[place + 3 + n])
    end
    place = place + 4 + count
    asks[i] = ask
  end
  return asks
end

-- Fills in each ask's state. The second result is an error that is not a single key's.
local function read_states(asks)
  local all_readable = true
  for _, ask in ipairs(asks) do
    local value = redis.pcall('GET', ask.key)
    if type(value) == 'table' then
      if not string.find(value.err, 'WRONGTYPE', 1, true) then
        return false, value
      end
      ask.wrong_type = true
      all_readable = false
    elseif value then
      ask.state = ask.algorithm.decode(value)
    end
  end
  return all_readable
end

-- The key lives until its bucket cannot be told from a new one, rounded up to Redis's
-- milliseconds, and in any case past this one.
local function write(ask, state, now)
  local fresh = math.ceil(ask.algorithm.fresh_at(ask.figures, state) / 1000)
  local expiry = math.max(fresh, math.floor(now / 1000) + 1)
  redis.call('SET', ask.key, ask.algorithm.encode(state), 'PXAT', string.format('%.0f', expiry))
end

local function give_back(asks, now)
  for _, ask in ipairs(asks) do
    if ask.state then
      local state = ask.algorithm.give_back(ask.figures, ask.state, ask.cost, now)
      if state then
        write(ask, state, now)
      else
        redis.call('DEL', ask.key)
      end
    end
  end
  return {}
end

local function say(ask, step, pass)
  if ask.wrong_type then
    return WRONG_TYPE, 0, 0
  end
  local remaining = pass and step.remaining or step.untouched
  if step.allowed then
    return ALLOW, 0, remaining
  elseif step.retry_after then
    return REJECT, step.retry_after, remaining
  end
  return NEVER, 0, remaining
end

local function decide(asks, now, may_take)
  local pass = may_take
  for _, ask in ipairs(asks) do
    ask.step = ask.algorithm.decide(ask.figures, ask.state, ask.cost, now)
    if ask.enforces and not ask.step.allowed then
      pass = false
    end
  end
  local answer = {}
  for _, ask in ipairs(asks) do
    local state = pass and ask.step.taken or ask.step.kept
    if state and not ask.wrong_type then
      write(ask, state, now)
    end
    local said, wait, remaining = say(ask, ask.step, pass)
    answer[#answer + 1] = said
    answer[#answer + 1] = wait
    answer[#answer + 1] = remaining
  end
  return answer
end

local verb = ARGV[1]
local now = read_clock()
local asks = read_asks()
local all_readable, failed = read_states(asks)
if failed then
  return failed
end
if verb == 'give-back' then
  return give_back(asks, now)
end
return decide(asks, now, verb == 'take' and all_readable)
