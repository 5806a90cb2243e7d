-- The algorithms of the script (joined in front of this file) under a clock that the test holds.
-- Nothing is kept in Redis: buckets live as bytes in this call.
--
-- ARGV[1]: JSON, a list of steps { now, asks }, each ask { bucket, algorithm, enforces, cost,
--          figures }; or { now, back } with such an ask, whose cost is given back.
-- Answer: for each step and ask of it { said, wait, remaining, bytes }.

local buckets = {}
local answer = {}

local function ask_for(ask, cost, now)
  return decide(ask.algorithm, ask.figures, cost, buckets[ask.bucket], now)
end

local function say(wait, remaining, ask)
  local said = wait == 0 and 0 or wait > 0 and 1 or 2
  answer[#answer + 1] = string.format('%d %.0f %.0f', said, math.max(wait, 0), remaining)
  answer[#answer + 1] = buckets[ask.bucket] or ''
end

for _, step in ipairs(cjson.decode(ARGV[1])) do
  if step.back then
    local ask = step.back
    if buckets[ask.bucket] then
      local _, _, _, left = ask_for(ask, -ask.cost, step.now)
      buckets[ask.bucket] = left
    end
    say(0, 0, ask)
  else
    local pass = true
    local steps = {}
    for n, ask in ipairs(step.asks) do
      local wait, remaining, moved, taken = ask_for(ask, ask.cost, step.now)
      steps[n] = { wait = wait, remaining = remaining, moved = moved, taken = taken }
      if ask.enforces and wait ~= 0 then
        pass = false
      end
    end
    for n, ask in ipairs(step.asks) do
      local wait, remaining = steps[n].wait, steps[n].remaining
      if wait == 0 and pass then
        buckets[ask.bucket] = steps[n].taken
      elseif steps[n].moved then
        local _, _, _, kept = ask_for(ask, 0, step.now)
        buckets[ask.bucket] = kept
      end
      if wait == 0 and not pass then
        remaining = remaining + ask.cost
      end
      say(wait, remaining, ask)
    end
  end
end

return answer
