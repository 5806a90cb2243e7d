-- The script of the store under a clock that the test holds. In front of this stand the algorithms; the
-- shell is put in below with this `call` in place of Redis's.
--
-- ARGV[1]: JSON, { expires, calls }: whether keys go when their time has come (by the test's clock), and
--          a list of { now, keys, plan, terms }, the last two as the shell takes them, unpacked.
-- Answer: for each call what the shell answers, and of each of its keys what it then holds, a string as
--         it is, a sorted set as text, and the millisecond at which it goes, 0 where there is none.

local now, expiries = 0, {}

local function test_call(command, ...)
  local key = ...
  if command == 'TIME' then
    return { (now - now % 1000000) / 1000000, now % 1000000 }
  elseif command == 'PEXPIREAT' then
    expiries[key] = tonumber((select(2, ...)))
    return 1
  elseif command == 'SET' then
    expiries[key] = tonumber((select(4, ...)))
    return redis.call('SET', key, (select(2, ...)))
  end
  return redis.call(command, ...)
end

local function shell(KEYS, ARGV)
-- (shell.lua)
end

-- The requests' numbers of slots, or each permit of a log with the clock by which its entry was made. No
-- more of a log's weights is said than how many permits an entry stands for; that their sum is noted is
-- checked here.
local function listed(key)
  local members, texts = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES'), {}
  local weights, sum, total = {}, 0, 0
  for n = 1, #members, 2 do
    local member, score = members[n], tonumber(members[n + 1])
    if #member == 14 then
      texts[#texts + 1] = string.format('%09d', select(2, struct.unpack('>I7I7', member)))
    elseif score < -2^53 then
      total = (-2^53 - score) / 2
    elseif score < 0 then
      local clock, number, more = struct.unpack('>I7I4I4', member)
      local entry = struct.pack('>I7I4', 2^53 - clock, 2^32 - 1 - number)
      weights[entry], sum = more, sum + more
      assert(tonumber(redis.call('ZSCORE', key, entry)) == -1 - score, 'a weight has its entry')
    else
      local clock = struct.unpack('>I7I4', member)
      for _ = 0, weights[member] or 0 do
        texts[#texts + 1] = string.format('%.0f:%.0f', score, clock)
      end
    end
  end
  assert(sum == total, 'the weights have a sum')
  if members[1] and #members[1] == 14 then
    table.sort(texts)
  end
  return table.concat(texts, ' ')
end

local given, answer = cjson.decode(ARGV[1]), {}
for _, step in ipairs(given.calls) do
  now = step.now
  for _, key in ipairs(step.keys) do
    if given.expires and expiries[key] and expiries[key] * 1000 <= now then
      redis.call('DEL', key)
    end
  end
  local arguments = { cmsgpack.pack(unpack(step.plan)) }
  for _, terms in ipairs(step.terms) do
    arguments[#arguments + 1] = cmsgpack.pack(unpack(terms))
  end
  local said, kept, goes_at = shell(step.keys, arguments), {}, {}
  for _, key in ipairs(step.keys) do
    local kind = redis.call('TYPE', key).ok
    if kind == 'none' then
      expiries[key] = nil
    elseif not expiries[key] then
      return redis.error_reply(key .. ' has no expiry')
    end
    kept[#kept + 1] = kind == 'string' and redis.call('GET', key) or listed(key)
    goes_at[#goes_at + 1] = expiries[key] or 0
  end
  answer[#answer + 1] = { said, kept, goes_at }
end
return answer
