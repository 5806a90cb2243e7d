-- The lists of the script under a clock that the test holds. They live in Redis, without an expiry:
-- that clock may stand anywhere.
--
-- ARGV[1]: JSON, a list of steps { now, key, cost, figures, patience, passes }, the last of which is
--          whether the request's other limits let it pass; with `settle` in their place the cost is
--          what was used more or, below zero, less.
-- Answer: for each step two texts: said, wait and remaining, and the list's entries, each as its time
--         and the clock by which it was made.

local WRONG_TYPE = -2

local function call(command, ...)
  if command ~= 'PEXPIREAT' then
    return redis.call(command, ...)
  end
end

local lists = {}
do
-- (lists.lua)
end

local answer = {}
for _, step in ipairs(cjson.decode(ARGV[1])) do
  local log, key = lists['sliding-log'], step.key
  local ask = { 'sliding-log', step.cost, 'enforce', step.figures, step.patience }
  local wait, remaining, taken = 0, 0
  if step.settle then
    ask[6] = step.receipt
    log.settle(key, ask, step.now)
  else
    wait, remaining, taken = log.ask(key, ask, step.now)
    if taken and step.passes then
      log.write(key, ask, taken)
    end
  end
  local said = wait == 0 and 0 or wait < 0 and 2 or taken and 3 or 1
  local receipt = taken and taken[1] or 0
  answer[#answer + 1] =
    string.format('%d %.0f %.0f %.0f', said, math.max(wait, 0), remaining, receipt)
  local entries, listed = {}, redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for n = 1, #listed, 2 do
    local clock = struct_unpack('>I7I4', listed[n])
    entries[#entries + 1] = string.format('%.0f:%.0f', listed[n + 1], clock)
  end
  answer[#answer + 1] = table.concat(entries, ' ')
end
return answer
