//! The Java side of a limiter: what a service with Redisson does to Redis, by a script of our own.

use super::redis::RedisServer;

/// As `tryAcquire` does it, from the description of its keys alone. KEYS: hash, value, permits. ARGV:
/// permits, the caller's time in milliseconds (nothing for a caller whose clock is Redis's, and who is
/// no way from it), random bytes. Answers with how much is left, or -1.
const TRY_ACQUIRE: &str = r"
local rate = tonumber(redis.call('HGET', KEYS[1], 'rate'))
local interval = tonumber(redis.call('HGET', KEYS[1], 'interval'))
if not (rate and interval and redis.call('HGET', KEYS[1], 'type')) then
  return redis.error_reply('RateLimiter is not initialized')
end
local n, now = tonumber(ARGV[1]), tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local left = tonumber(redis.call('GET', KEYS[2]) or rate)
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], 0, now - interval)) do
  local _, permits = struct.unpack('Bc0I', member)
  left = left + permits
  redis.call('ZREM', KEYS[3], member)
end
local got = left >= n
if got then
  redis.call('ZADD', KEYS[3], now, struct.pack('Bc0I', #ARGV[3], ARGV[3], n))
  left = left - n
end
redis.call('SET', KEYS[2], left)
local keep = tonumber(redis.call('HGET', KEYS[1], 'keepAliveTime') or 0)
local ttl = keep > 0 and keep or redis.call('PTTL', KEYS[1])
if ttl > 0 then
  for place = keep > 0 and 1 or 2, 3 do
    redis.call('PEXPIRE', KEYS[place], ttl)
  end
end
return got and left or -1
";

/// A service that uses a limiter.
pub(crate) struct Java {
    connection: redis::Connection,
    script: redis::Script,
    keys: [String; 3],
    id: Vec<u8>,
    entries: u64,
}

impl Java {
    /// Of Redisson 3.21 and later, where entries have ids of 16 bytes.
    pub(crate) fn new(server: &RedisServer, name: &str) -> Self {
        Self::with_ids_of(server, name, 16)
    }

    pub(crate) fn with_ids_of(server: &RedisServer, name: &str, bytes: usize) -> Self {
        let keys = match name.contains('{') {
            true => [name.to_owned(), format!("{name}:value"), format!("{name}:permits")],
            false => [name.to_owned(), format!("{{{name}}}:value"), format!("{{{name}}}:permits")],
        };
        let mut id = vec![0xAB; bytes];
        // Each service has ids of its own.
        let own = std::ptr::from_ref(&id) as usize;
        id[..4].copy_from_slice(&u32::try_from(own & 0xFFFF_FFFF).unwrap().to_be_bytes());
        let connection = server.connection();
        Self { connection, script: redis::Script::new(TRY_ACQUIRE), keys, id, entries: 0 }
    }

    /// `trySetRate`.
    pub(crate) fn try_set_rate(&mut self, rate: u64, interval_ms: u64) {
        self.set("HSETNX", rate, interval_ms);
    }

    /// `setRate`.
    pub(crate) fn set_rate(&mut self, rate: u64, interval_ms: u64) {
        self.set("HSET", rate, interval_ms);
        self.run::<()>("DEL", &[&self.keys[1].clone(), &self.keys[2].clone()]);
    }

    fn set(&mut self, how: &str, rate: u64, interval_ms: u64) {
        let hash = self.keys[0].clone();
        let values = [("rate", rate), ("interval", interval_ms), ("type", 0), ("keepAliveTime", 0)];
        for (field, value) in values {
            self.run::<()>(how, &[&hash, field, &value.to_string()]);
        }
    }

    /// `tryAcquire(permits)` by a clock that says `now_ms`; what is left.
    pub(crate) fn try_acquire_at(&mut self, permits: u64, now_ms: u64) -> Option<u64> {
        self.acquire(permits, &now_ms.to_string())
    }

    /// The same by Redis's clock.
    pub(crate) fn try_acquire(&mut self, permits: u64) -> Option<u64> {
        self.acquire(permits, "")
    }

    fn acquire(&mut self, permits: u64, now_ms: &str) -> Option<u64> {
        self.entries += 1;
        let end = self.id.len() - 4;
        self.id[end..].copy_from_slice(&u32::try_from(self.entries).unwrap().to_be_bytes());
        let mut call = self.script.prepare_invoke();
        for key in &self.keys {
            call.key(key);
        }
        let left: i64 =
            call.arg(permits).arg(now_ms).arg(&self.id[..]).invoke(&mut self.connection).unwrap();
        u64::try_from(left).ok()
    }

    /// Redis's time.
    pub(crate) fn redis_ms(&mut self) -> u64 {
        let (seconds, micros): (u64, u64) = self.run("TIME", &[]);
        seconds * 1_000 + micros / 1_000
    }

    fn run<T: redis::FromRedisValue>(&mut self, command: &str, arguments: &[&str]) -> T {
        redis::cmd(command).arg(arguments).query(&mut self.connection).unwrap()
    }
}
