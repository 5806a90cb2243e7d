-- A limit that is shared through Redis, as one writes it for nginx with lua: a token bucket in a
-- hash, decided by one EVALSHA over a kept connection. nginx.py loads it.

local redis = require "nginx.redis"

-- Redis runs this, by its own clock. Answers the seconds to wait, 0 where the request may pass. A
-- bucket is written only where a token is taken, and is gone when it would be full again.
local BUCKET = [[
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = tonumber(bucket[1]) or burst
local passed = math.max(now - (tonumber(bucket[2]) or now), 0) / 1000000
tokens = math.min(burst, tokens + passed * rate)
if tokens < 1 then
    return math.ceil((1 - tokens) / rate)
end
tokens = tokens - 1
redis.call('HSET', KEYS[1], 'tokens', tokens, 'at', now)
redis.call('PEXPIRE', KEYS[1], math.ceil((burst - tokens) / rate * 1000))
return 0
]]

local SHA = ngx.sha1_bin(BUCKET):gsub(".", function(c) return ("%02x"):format(c:byte()) end)

-- The answer of Redis; nil and what went wrong.
local function ask(port, ...)
    local client = redis:new()
    client:set_timeout(1000)
    local wait, err = client:connect("127.0.0.1", port)
    if not wait then
        return nil, err
    end
    wait, err = client:evalsha(SHA, 1, ...)
    if wait == false and err:find("NOSCRIPT", 1, true) then
        wait, err = client:eval(BUCKET, 1, ...)
    end
    if not wait then
        client:close()
        return nil, err
    end
    client:set_keepalive(60000, 256)
    return wait
end

local M = {}

-- Takes a token from the key's bucket, or ends the request with 429 and $wait for its fields.
-- `rate` is tokens a second.
function M.take(port, key, rate, burst)
    if not key then
        return
    end
    local wait, err = ask(port, "per-client:" .. key, rate, burst)
    if not wait then
        ngx.log(ngx.ERR, "passes without a limit: ", err)
    elseif wait > 0 then
        ngx.var.wait = wait
        return ngx.exit(429)
    end
end

return M
