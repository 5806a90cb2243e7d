-- A piece of `shell.lua`. All asks of a request are decided. If the request passes, its entries are added to the lists;
-- in the other buckets they are counted already. If not, each bucket but that of a candidate is set back to what it was
-- before the request, and the answer is corrected: what remains then includes the cost.
if entries then
  for n, entry in pairs(entries) do
    local key, ask = keys[plan[first + 2 * n - 1]], terms[plan[first + 2 * n]]
    if pass or ask[3] == 'candidate' and not void then
      lists[ask[1]].write(key, ask, entry)
    else
      lists[ask[1]].keep(key, entry)
    end
  end
end
if not pass then
  for n = count - 1, 1, -1 do
    local bucket, way = plan[first + 2 * n - 1], terms[plan[first + 2 * n]][3]
    if void or way ~= 'candidate' then
      states[bucket], written[bucket] = before[2 * n - 1], before[2 * n]
    end
  end
  said = said_before
  for n = 1, count do
    local ask = terms[plan[first + 2 * n]]
    said = said + 1
    if answer[said] < 0 then
      said = said + 1
    elseif ask[3] ~= 'peek' and (void or ask[3] ~= 'candidate') then
      answer[said] = answer[said] + ask[2]
    end
  end
end
