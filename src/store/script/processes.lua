-- The processes that share this Redis. KEYS[1] is a sorted set: each process with the end of its lease in microseconds.
-- ARGV[1] is the process that calls, and ARGV[2] its lease in microseconds. 0 says that it ends.
--
-- The answer: the number of processes whose lease runs, then those whose lease has ended. These are forgotten after a
-- minute, so that each process can tell of them.
local all, own = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function whole(number)
  return string.format('%.0f', number)
end

if ARGV[2] == '0' then
  redis.call('ZREM', all, own)
else
  redis.call('ZADD', all, whole(now + ARGV[2]), own)
  redis.call('ZREMRANGEBYSCORE', all, '-inf', whole(now - 60000000))
  redis.call('PEXPIREAT', all, whole(now / 1000 + 60000))
end
local held = redis.call('ZCOUNT', all, '(' .. whole(now), '+inf')
return { held, unpack(redis.call('ZREVRANGEBYSCORE', all, whole(now), '-inf', 'LIMIT', '0', '1000')) }
