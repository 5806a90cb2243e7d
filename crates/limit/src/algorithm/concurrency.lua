-- The twin of `decide` in concurrency.rs. `figures` are limit and lease. `bytes` is the number of held
-- slots. The fourth value returned is the end of the lease.

local held = bytes or 0
if held >= figures[1] then
  return 1000000, 0, false -- GUESS
end
return 0, figures[1] - held - 1, false, now + figures[2], now + figures[2]
