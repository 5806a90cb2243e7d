-- The processes that share this Redis. All keys have one hash slot.
-- KEYS[1] is a sorted set: each process with the end of its lease in microseconds.
-- KEYS[2] is a hash: the version of each process's configuration file, a space, and the version of its program.
-- KEYS[3] is a hash of what processes ask each other: the ID of a question, its end in microseconds, a space, and the
-- question.
--
-- ARGV[1] is the process that calls, and ARGV[2] its lease in microseconds. 0 says that it ends. ARGV[3] has its
-- versions. ARGV[4] is 1 if the answer is to name the processes. If the process asks something, the question's ID, its
-- time in microseconds and its text follow.
--
-- The question `reports`, which all processes ask together, always has room. A question that would end later than a
-- minute from now is of no process, and is removed.
--
-- The answer: the number of processes whose lease runs; these processes, each with its versions; the open questions,
-- each with its ID, among them the new one if there was room for it; the processes whose lease has ended. These are
-- forgotten after a minute, so that each process can tell of them.
local MOST_QUESTIONS = 16
local all, versions, asked, own = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function whole(number)
  return string.format('%.0f', number)
end

if ARGV[2] == '0' then
  redis.call('ZREM', all, own)
  redis.call('HDEL', versions, own)
else
  redis.call('ZADD', all, whole(now + ARGV[2]), own)
  local forgotten = redis.call('ZREVRANGEBYSCORE', all, whole(now - 60000000), '-inf', 'LIMIT', '0', '1000')
  if #forgotten > 0 then
    redis.call('ZREM', all, unpack(forgotten))
    redis.call('HDEL', versions, unpack(forgotten))
  end
  redis.call('HSET', versions, own, ARGV[3])
  local expiry = whole(now / 1000 + 60000)
  redis.call('PEXPIREAT', all, expiry)
  redis.call('PEXPIREAT', versions, expiry)
end

local questions, found, latest = {}, redis.call('HGETALL', asked), 0
for index = 1, #found, 2 do
  local ends, text = string.match(found[index + 1], '^(%d+) (.*)$')
  ends = tonumber(ends or '0')
  if ends <= now or ends > now + 60000000 then
    redis.call('HDEL', asked, found[index])
  elseif found[index] ~= ARGV[5] then
    latest = math.max(latest, ends)
    questions[#questions + 1], questions[#questions + 2] = found[index], text
  end
end
local has_room = ARGV[5] == 'reports' or #questions < 2 * MOST_QUESTIONS
if ARGV[5] and has_room then
  local ends = now + ARGV[6]
  redis.call('HSET', asked, ARGV[5], whole(ends) .. ' ' .. ARGV[7])
  redis.call('PEXPIREAT', asked, whole(math.max(latest, ends) / 1000 + 1))
  questions[#questions + 1], questions[#questions + 2] = ARGV[5], ARGV[7]
end

local held, living = redis.call('ZCOUNT', all, '(' .. whole(now), '+inf'), {}
if ARGV[4] == '1' then
  local said = {}
  local each = redis.call('HGETALL', versions)
  for index = 1, #each, 2 do
    said[each[index]] = each[index + 1]
  end
  for _, name in ipairs(redis.call('ZREVRANGEBYSCORE', all, '+inf', '(' .. whole(now), 'LIMIT', '0', '1000')) do
    living[#living + 1], living[#living + 2] = name, said[name] or ''
  end
end
local ended = redis.call('ZREVRANGEBYSCORE', all, whole(now), '-inf', 'LIMIT', '0', '1000')
return { held, living, questions, ended }
