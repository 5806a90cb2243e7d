-- A piece of `shell.lua`. Writes each bucket of the call that has changed. Expiries are in whole milliseconds, rounded
-- up.
for bucket = 1, #keys do
  local expiry = written[bucket]
  if expiry then
    local state = states[bucket]
    if not state then
      call('DEL', keys[bucket])
    elseif expiry == true then
      call('SETRANGE', keys[bucket], '0', state)
    else
      local old = stored and stored[bucket]
      local text = expiries[expiry] or format('%d', expiry / 1000 + 1)
      if old and #old == #state then
        -- Two commands that answer with numbers cost three quarters of one that answers OK.
        call('SETRANGE', keys[bucket], '0', state)
        call('PEXPIREAT', keys[bucket], text)
      else
        -- With GET the command answers with the old value, and not with OK.
        call('SET', keys[bucket], state, 'PXAT', text, 'GET')
      end
    end
  elseif aged[bucket] then
    -- Nothing was taken. The key may still have the expiry of other figures, and would expire too early.
    local ask = aged[bucket]
    local _, _, lives, _, expiry = decide(ask[1], ask[4], 0, 0, states[bucket], now)
    if expiry and expiry > (lives or 0) then
      call('PEXPIREAT', keys[bucket], format('%d', expiry / 1000 + 1))
    end
  end
end
