-- The algorithms of the script (joined in front of this file) under a clock that the test holds.
-- Nothing is kept in Redis: buckets live as bytes in this call.
--
-- ARGV[1]: JSON, a list of steps { now, asks }, each ask { bucket, algorithm, way, cost, figures,
--          patience }; or { now, settle, receipt } with such an ask, whose cost is what was used more
--          or, below zero, less.
-- Answer: for each step and ask of it a text of said, wait, remaining, receipt and `fresh_at`, and the
--         bucket's bytes.

local buckets = {}
local answer = {}

local function ask_for(ask, cost, patience, now, receipt)
  return decide(ask.algorithm, ask.figures, cost, patience, buckets[ask.bucket], now, receipt)
end

local function say(wait, remaining, held, ask, step)
  local said = wait == 0 and 0 or wait < 0 and 2 or held and 3 or 1
  answer[#answer + 1] = string.format(
    '%d %.0f %.0f %.0f %.0f',
    said,
    math.max(wait, 0),
    remaining,
    -- At the end of time a wait may lead beyond what can be said.
    step and math.min(step.receipt, 2^53 - 1) or 0,
    step and step.fresh_at or 0
  )
  answer[#answer + 1] = buckets[ask.bucket] or ''
end

for _, step in ipairs(cjson.decode(ARGV[1])) do
  if step.settle then
    local ask = step.settle
    if buckets[ask.bucket] or ask.cost > 0 then
      local _, _, _, left = ask_for(ask, ask.cost, -1 - ask.patience, step.now, step.receipt)
      buckets[ask.bucket] = left
    end
    say(0, 0, false, ask)
  else
    local refusals, refused = 0, 0
    local steps = {}
    for n, ask in ipairs(step.asks) do
      local wait, remaining, moved, taken, fresh_at, receipt =
        ask_for(ask, ask.cost, ask.patience, step.now)
      steps[n] = { wait = wait, remaining = remaining, moved = moved, taken = taken }
      steps[n].fresh_at, steps[n].receipt = fresh_at, receipt
      if ask.way == 'enforce' and not taken then
        refusals, refused = refusals + 1, n
      end
    end
    for n, ask in ipairs(step.asks) do
      local wait, remaining, taken = steps[n].wait, steps[n].remaining, steps[n].taken
      local pass = refusals == 0
        or refusals == 1 and refused == n - 1 and ask.way == 'candidate'
      if taken and pass then
        buckets[ask.bucket] = steps[n].taken
      elseif steps[n].moved then
        local _, _, _, kept = ask_for(ask, 0, 0, step.now)
        buckets[ask.bucket] = kept
      end
      if wait == 0 and not pass then
        remaining = remaining + ask.cost
      end
      say(wait, remaining, taken, ask, taken and steps[n])
    end
  end
end

return answer
