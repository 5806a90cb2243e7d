-- A piece of `shell.lua`, inside its loop over the asks of a request. Asks one bucket. `taken` becomes the bucket's
-- bytes after the request has taken, or the entry for a list. A settlement is written at once.
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
  end
elseif state then
  wait, remaining, moved, taken, expiry, receipt =
    decide(ask[1], ask[4], ask[2], ask[5], state, now)
  if moved == true then
    -- The bucket goes back with the clock even if the request is refused.
    local _, _, _, kept, kept_expiry = decide(ask[1], ask[4], 0, 0, state, now)
    states[bucket], written[bucket] = kept, kept_expiry
  elseif moved ~= nil then
    aged[bucket] = ask
  end
else
  -- All new buckets give the same answer to the same terms. So the answer is kept beside the terms.
  wait, remaining, taken, expiry = ask[7], ask[8], ask[9], ask[10]
  if not wait or noted then
    wait, remaining, moved, taken, expiry, receipt =
      decide(ask[1], ask[4], ask[2], ask[5], nil, now)
    ask[7], ask[8], ask[9], ask[10] = wait, remaining, taken, expiry
    if taken then
      expiries[expiry] = format('%d', expiry / 1000 + 1)
    end
  end
end
