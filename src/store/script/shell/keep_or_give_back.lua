-- A piece of `shell.lua`. All asks of a request are decided. If the request passes, its entries are added to the lists;
-- in the other buckets they are counted already. If not, each bucket is set back to what it was before the request, and
-- the answer is corrected: what remains then includes the cost.
if entries then
  for n, entry in pairs(entries) do
    local key, ask = keys[plan[first + 2 * n - 1]], terms[plan[first + 2 * n]]
    if pass then
      lists[ask[1]].write(key, ask, entry)
    else
      lists[ask[1]].keep(key, entry)
    end
  end
end
if not pass then
  for n = count - 1, 1, -1 do
    local bucket = plan[first + 2 * n - 1]
    states[bucket], written[bucket] = before[2 * n - 1], before[2 * n]
  end
  -- The candidate stands right after the only ask that refused.
  local stands_in
  if tried and refused > 0 then
    stands_in = refused + 1
    local bucket, ask = plan[first + 2 * stands_in - 1], terms[plan[first + 2 * stands_in]]
    local list = lists and lists[ask[1]]
    if list then
      list.write(keys[bucket], ask, tried)
    else
      states[bucket], written[bucket] = tried, tried_expiry or written[bucket] or true
    end
  end
  said = said_before
  for n = 1, count do
    local ask = terms[plan[first + 2 * n]]
    said = said + 1
    if answer[said] < 0 then
      said = said + 1
    elseif n ~= stands_in and ask[3] ~= 'peek' then
      answer[said] = answer[said] + ask[2]
    end
  end
end
