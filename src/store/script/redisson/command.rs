//! What operators do with a limiter by `tidegate redisson`: Redisson's `getConfig`, `setRate`, `trySetRate`,
//! `expire` and `clearExpire`. The command line calls this file, over its own connection.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisError, Script, ToRedisArgs};
use tokio::runtime::{self, Runtime};
use tokio::time::timeout;

use super::config::{LimiterConfig, figures};
use super::names::limiter_keys;
use super::script::SCRIPT;
use crate::limit::algorithm::redisson::Sharing;
use crate::redis::{CallError, RedisConnector, server_of};
use crate::settings::{RedisLocation, RedisTopology};
use crate::store::process::client_id;

/// The most time for each step. It is short, because a person waits at a terminal.
const PATIENCE: Duration = Duration::from_secs(3);

/// Why a limiter could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LimiterError {
    /// The server or the connection reported an error.
    #[error("redis: {0}")]
    Redis(CallError),
    /// The limiter has no figures.
    #[error("it is not configured")]
    Unset,
    /// The key of the limiter's name holds a value of another type.
    #[error("the key of that name holds no limiter")]
    Foreign,
}

impl From<RedisError> for LimiterError {
    fn from(error: RedisError) -> Self {
        // Pipelines and the scripts of older servers wrap the error in another code.
        match error.to_string().contains("WRONGTYPE") {
            true => Self::Foreign,
            false => Self::Redis(error.into()),
        }
    }
}

/// A connection for an operator's commands.
pub(crate) struct Limiters {
    runtime: Runtime,
    connection: MultiplexedConnection,
    client: String,
}

/// Writes the figures over the present ones, and forgets the permits in use.
const SET: &str = "\
redis.call('HSET', KEYS[1], 'rate', ARGV[1], 'interval', ARGV[2], 'type', ARGV[3], 'keepAliveTime', ARGV[4])
if ARGV[4] ~= '0' then
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
if ARGV[3] == '1' then
  redis.call('DEL', KEYS[4], KEYS[5])
else
  redis.call('DEL', KEYS[2], KEYS[3])
end
return 1";

/// Writes the figures that are missing. The limiter was new if its type was missing.
const TRY_SET: &str = "\
redis.call('HSETNX', KEYS[1], 'rate', ARGV[1])
redis.call('HSETNX', KEYS[1], 'interval', ARGV[2])
redis.call('HSETNX', KEYS[1], 'keepAliveTime', ARGV[4])
local new = redis.call('HSETNX', KEYS[1], 'type', ARGV[3])
if new == 1 and ARGV[4] ~= '0' then
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return new";

/// Sets an expiry or removes it, but only if the hash belongs to a limiter. Another program may use a key with that
/// name.
const EXPIRE: &str = "\
local any = 0
if not redis.call('HGET', KEYS[1], 'rate') then
  return -1
end
for _, key in ipairs(KEYS) do
  any = math.max(any, redis.call(ARGV[1], key, unpack(ARGV, 2)))
end
return any";

impl Limiters {
    /// Connects to the server that has the limiter of this name.
    ///
    /// # Errors
    /// If the server does not answer within a few seconds.
    pub(crate) fn connect(location: &RedisLocation, name: &str) -> Result<Self, CallError> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(RedisError::from)?;
        let connecting = async {
            let location = match &location.topology {
                RedisTopology::Cluster(_) => {
                    location.of_server(server_of(location, name.as_bytes()).await?)
                }
                _ => location.clone(),
            };
            let connector = RedisConnector::new(&location);
            connector.connect(&connector.find().await?).await.map(|open| open.connection)
        };
        let connecting = runtime.block_on(async { timeout(PATIENCE, connecting).await });
        match connecting.unwrap_or(Err(CallError::TimedOut)) {
            Ok(connection) => Ok(Self { runtime, connection, client: client_id() }),
            Err(error) => {
                // The lookup of a name may hold its thread for long.
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// Waits for an answer, at most a few seconds.
    fn answer<T>(
        runtime: &Runtime,
        asking: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, LimiterError> {
        let answer = runtime.block_on(async { timeout(PATIENCE, asking).await });
        Ok(answer.map_err(|_| LimiterError::Redis(CallError::TimedOut))??)
    }

    /// The figures of a limiter.
    ///
    /// # Errors
    /// If the limiter has no figures, its key holds another type, or Redis does not answer.
    pub(crate) fn get(&mut self, name: &str) -> Result<LimiterConfig, LimiterError> {
        let fields = ["rate", "interval", "type", "keepAliveTime"];
        let mut pipe = redis::pipe();
        pipe.cmd("HMGET").arg(name).arg(&fields[..]).cmd("PTTL").arg(name);
        let (fields, expires): (Vec<Option<String>>, i64) =
            Self::answer(&self.runtime, pipe.query_async(&mut self.connection))?;
        let number = |index: usize| fields.get(index)?.as_ref()?.parse::<u64>().ok();
        let (Some(rate), Some(interval_ms), Some(kind)) = (number(0), number(1), number(2)) else {
            return Err(LimiterError::Unset);
        };
        let sharing = if kind == 1 { Sharing::PerClient } else { Sharing::Overall };
        let check = ["check", "0", "", "", "", "", "", "0"];
        let found: Vec<i64> = self.run(&SCRIPT, name, &check)?;
        Ok(LimiterConfig {
            is_of_older: found == [3],
            keep_alive_ms: number(3).filter(|keep| *keep > 0),
            expires_in_ms: u64::try_from(expires).ok(),
            ..LimiterConfig::new(rate, interval_ms, sharing)
        })
    }

    /// Gives a limiter these figures, and forgets its permits in use. If each client counts for itself,
    /// the permits of other clients stay in use.
    ///
    /// # Errors
    /// If the limiter's key holds another type, or Redis does not answer.
    pub(crate) fn set(&mut self, name: &str, config: &LimiterConfig) -> Result<(), LimiterError> {
        self.run::<i64>(&Script::new(SET), name, &figures(config)).map(|_| ())
    }

    /// Gives a limiter these figures if it has none. Returns whether it had none.
    ///
    /// # Errors
    /// If the limiter's key holds another type, or Redis does not answer.
    pub(crate) fn try_set(
        &mut self,
        name: &str,
        config: &LimiterConfig,
    ) -> Result<bool, LimiterError> {
        self.run::<i64>(&Script::new(TRY_SET), name, &figures(config)).map(|new| new == 1)
    }

    /// Lets a limiter's keys expire after this time, in milliseconds, or never. Returns whether a key has changed.
    ///
    /// # Errors
    /// If there is no such limiter, its key holds another type, or Redis does not answer.
    pub(crate) fn expire(
        &mut self,
        name: &str,
        after_ms: Option<u64>,
    ) -> Result<bool, LimiterError> {
        let script = Script::new(EXPIRE);
        let changed: i64 = match after_ms {
            Some(after) => self.run(&script, name, &["PEXPIRE".to_owned(), after.to_string()])?,
            None => self.run(&script, name, &["PERSIST"])?,
        };
        if changed < 0 { Err(LimiterError::Unset) } else { Ok(changed == 1) }
    }

    fn run<T: FromRedisValue>(
        &mut self,
        script: &Script,
        name: &str,
        arguments: &[impl ToRedisArgs],
    ) -> Result<T, LimiterError> {
        let mut call = script.prepare_invoke();
        for key in limiter_keys(name.as_bytes(), &self.client) {
            call.key(key);
        }
        for argument in arguments {
            call.arg(argument);
        }
        Self::answer(&self.runtime, call.invoke_async(&mut self.connection))
    }
}
