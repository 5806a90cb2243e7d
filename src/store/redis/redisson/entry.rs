//! Permits of a Redisson limiter, until it is known whether their request goes on. A claim's grant holds
//! them as a [`LimiterEntry`].

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::super::connection::RedisConnection;
use super::super::queue::Teller;
use super::{LimiterKeys, Patience, Redis, command};

/// Permits that were taken for a request that has not gone on yet. Dropped, they go back: another limit has
/// refused, or the client has left.
pub(in crate::store) struct LimiterEntry {
    connection: Arc<RedisConnection>,
    teller: Teller,
    give_back: Option<TakenPermits>,
    timeout: Duration,
}

/// What the script needs to find and remove an entry.
pub(super) struct TakenPermits {
    pub(super) keys: LimiterKeys,
    pub(super) permits: i64,
    pub(super) id: [u8; 16],
}

impl LimiterEntry {
    /// An entry that Redis has, or may have.
    pub(super) fn new(redis: &Redis, taken: TakenPermits) -> Self {
        Self {
            connection: Arc::clone(&redis.connection),
            teller: redis.queue.teller(),
            give_back: Some(taken),
            timeout: redis.shared.timeout(),
        }
    }

    /// To be called when the request goes on, or nothing was taken: nothing goes back.
    pub(in crate::store) fn keep(mut self) {
        self.give_back = None;
    }

    /// Starts a task that gives the permits back. `None` where there is nothing to give back.
    pub(in crate::store) fn give_back(&mut self) -> Option<JoinHandle<()>> {
        // Without a runtime the process is ending. The entry leaves the interval by itself.
        let (taken, runtime) = (self.give_back.take()?, Handle::try_current().ok()?);
        let (connection, timeout) = (Arc::clone(&self.connection), self.timeout);
        let counted = self.teller.about_to();
        Some(runtime.spawn(async move {
            let TakenPermits { keys, permits, id } = &taken;
            let call = command(keys, "return", *permits, id, None, Patience::NONE);
            let understood = |value| matches!(value, Value::Array(_)).then_some(());
            // If the call fails, the permits come back when the interval is over.
            let _ = connection.call(&call, understood, Instant::now() + timeout).await;
            drop(counted);
        }))
    }
}

impl Drop for LimiterEntry {
    fn drop(&mut self) {
        self.give_back();
    }
}
