-- The twin of token_bucket.rs: the same functions with the same steps, in Lua's doubles. Every
-- whole number below 2^53 is exact in them, and no step leaves that range. Only arithmetic stands
-- here; keys, Redis's clock and expiries are the shell's business.
--
-- figures: { tokens, period, burst }; a state: { missing, rest, period, at }, or nil for new.

do
  local EXACT = 9007199254740992
  local STALE = 1000000

  -- Whole quotient and remainder: fmod is exact, and so is the division of what it leaves.
  local function divide(a, b)
    local remainder = math.fmod(a, b)
    return (a - remainder) / b, remainder
  end

  local function divide_up(a, b)
    local quotient, remainder = divide(a, b)
    if remainder > 0 then
      return quotient + 1
    end
    return quotient
  end

  local function whole_missing(state)
    if state.rest > 0 then
      return state.missing + 1
    end
    return state.missing
  end

  -- A remainder that was counted under another period is rounded up to a token.
  local function under(figures, state)
    local period = figures[2]
    if state.period == period then
      return state
    end
    return { missing = whole_missing(state), rest = 0, period = period, at = state.at }
  end

  local function gain(figures, missing, rest, elapsed)
    local tokens, period = figures[1], figures[2]
    local periods, into_period = divide(elapsed, period)
    if periods >= divide_up(missing + 1, tokens) then
      return 0, 0
    end
    local gained_in_rest, rest_gained = divide(into_period * tokens, period)
    local gained = periods * tokens + gained_in_rest
    if rest_gained > rest then
      gained = gained + 1
      rest_gained = period - rest_gained + rest
    else
      rest_gained = rest - rest_gained
    end
    if gained > missing then
      return 0, 0
    end
    return missing - gained, rest_gained
  end

  local function time_to_gain(figures, whole, rest)
    local tokens, period = figures[1], figures[2]
    local batches, left = divide(whole, tokens)
    -- Either product or sum may pass 2^53 and be rounded there: then it is cut to one below.
    local time = batches * period + divide_up(left * period + rest, tokens)
    return math.min(time, EXACT - 1)
  end

  -- The state as of now (or as of its own time where now is a little behind it), whether the
  -- clock had stepped back, and by how much the state is ahead.
  local function refill(figures, state, now)
    local period = figures[2]
    if state == nil then
      return { missing = 0, rest = 0, period = period, at = now }, false, 0
    end
    state = under(figures, state)
    local ahead = math.max(state.at - now, 0)
    if ahead > STALE then
      return { missing = state.missing, rest = state.rest, period = period, at = now }, true, 0
    end
    if ahead > 0 then
      return state, false, ahead
    end
    local missing, rest = gain(figures, state.missing, state.rest, now - state.at)
    return { missing = missing, rest = rest, period = period, at = now }, false, 0
  end

  -- What a request of this cost would be told. retry_after is nil where it never passes.
  local function decide(figures, state, cost, now)
    local burst = figures[3]
    local moved, ahead
    state, moved, ahead = refill(figures, state, now)
    local used = whole_missing(state)
    local step = { untouched = math.max(burst - used, 0) }
    if moved then
      step.kept = state
    end

    if used + cost <= burst then
      step.allowed = true
      step.remaining = burst - used - cost
      step.taken =
        { missing = state.missing + cost, rest = state.rest, period = state.period, at = state.at }
      return step
    end
    step.allowed = false
    step.remaining = step.untouched
    if cost <= burst then
      local excess = state.missing + cost - burst
      step.retry_after = math.min(time_to_gain(figures, excess, state.rest) + ahead, EXACT - 1)
    end
    return step
  end

  -- The state with this many tokens given back, nil where the bucket is then full.
  local function give_back(figures, state, tokens, now)
    state = refill(figures, state, now)
    local missing = state.missing - tokens
    if missing < 0 or (missing == 0 and state.rest == 0) then
      return nil
    end
    return { missing = missing, rest = state.rest, period = state.period, at = state.at }
  end

  local function fresh_at(figures, state)
    state = under(figures, state)
    return math.min(state.at + time_to_gain(figures, state.missing, state.rest), EXACT - 1)
  end

  -- A state's bytes. The first is the format: its two digits in base 16 are the widths in bytes
  -- of `missing` (1 to 5) and of `rest` and `period` (1 to 7). Then follow, each with the highest
  -- byte first, `missing`, `at` (7 bytes), `rest` and `period`.

  local function width_of(number)
    local width = 1
    while number >= 256 do
      number = math.floor(number / 256)
      width = width + 1
    end
    return width
  end

  local function layout(missing_width, period_width)
    return '>I1I' .. missing_width .. 'I7I' .. period_width .. 'I' .. period_width
  end

  local function encode(state)
    local m, p = width_of(state.missing), width_of(state.period)
    return struct.pack(layout(m, p), m * 16 + p, state.missing, state.at, state.rest, state.period)
  end

  -- nil, which is a new bucket, for what encode does not write.
  local function decode(bytes)
    if #bytes == 0 then
      return nil
    end
    local m, p = divide(string.byte(bytes), 16)
    if m < 1 or m > 5 or p < 1 or p > 7 or #bytes ~= 8 + m + 2 * p then
      return nil
    end
    local _, missing, at, rest, period = struct.unpack(layout(m, p), bytes)
    if at >= EXACT or period >= EXACT or rest >= period then
      return nil
    end
    return { missing = missing, rest = rest, period = period, at = at }
  end

  algorithms['token-bucket'] = {
    decide = decide,
    give_back = give_back,
    fresh_at = fresh_at,
    encode = encode,
    decode = decode,
  }
end
