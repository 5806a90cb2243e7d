-- The algorithms of the script (joined in front of this file) under a clock that the test holds.
-- Nothing is kept in Redis: buckets live as bytes in this call.
--
-- ARGV[1]: JSON, a list of steps { now, asks }, each ask { bucket, algorithm, enforces, cost,
--          figures }; or { now, back } with such an ask, whose cost is given back.
-- Answer: for each step and ask of it { said, wait, remaining, bytes }.

local buckets = {}
local answer = {}

local function read(ask)
  ask.algorithm = algorithms[ask.algorithm]
  local bytes = buckets[ask.bucket]
  return bytes and ask.algorithm.decode(bytes)
end

local function keep(ask, state)
  buckets[ask.bucket] = state and ask.algorithm.encode(state)
end

local function say(said, wait, remaining, ask)
  answer[#answer + 1] = string.format('%d %.0f %.0f', said, wait, remaining)
  answer[#answer + 1] = buckets[ask.bucket] or ''
end

for _, step in ipairs(cjson.decode(ARGV[1])) do
  if step.back then
    local state = read(step.back)
    if state then
      local ask = step.back
      keep(ask, ask.algorithm.give_back(ask.figures, state, ask.cost, step.now))
    end
    say(0, 0, 0, step.back)
  else
    local pass = true
    for _, ask in ipairs(step.asks) do
      ask.step = nil
      local state = read(ask) or nil
      ask.step = ask.algorithm.decide(ask.figures, state, ask.cost, step.now)
      if ask.enforces and not ask.step.allowed then
        pass = false
      end
    end
    for _, ask in ipairs(step.asks) do
      local state = pass and ask.step.taken or ask.step.kept
      if state then
        keep(ask, state)
      end
      local said = ask.step.allowed and 0 or ask.step.retry_after and 1 or 2
      local remaining = pass and ask.step.remaining or ask.step.untouched
      say(said, ask.step.retry_after or 0, remaining, ask)
    end
  end
end

return answer
