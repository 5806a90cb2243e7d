//! What limiters took of a request of which it is not known yet whether it goes on.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::super::connection::RedisConnection;
use super::super::queue::Teller;
use super::{LimiterKeys, Patience, Redis, command};

/// Permits that were taken for a request that has not gone on yet. Dropped, they go back: where another
/// limit refuses, and where the client leaves.
pub(in crate::store) struct LimiterEntry {
    connection: Arc<RedisConnection>,
    teller: Teller,
    give_back: Option<TakenPermits>,
    timeout: Duration,
}

/// What an entry is known by.
pub(super) struct TakenPermits {
    pub(super) keys: LimiterKeys,
    pub(super) permits: i64,
    pub(super) id: [u8; 16],
}

impl LimiterEntry {
    /// One that is there, or may be.
    pub(super) fn new(redis: &Redis, taken: TakenPermits) -> Self {
        Self {
            connection: Arc::clone(&redis.connection),
            teller: redis.queue.teller(),
            give_back: Some(taken),
            timeout: redis.shared.timeout(),
        }
    }

    /// The request goes on.
    pub(in crate::store) fn keep(mut self) {
        self.give_back = None;
    }

    /// Leaves a task behind that gives back what is not kept.
    pub(in crate::store) fn give_back(&mut self) -> Option<JoinHandle<()>> {
        // Without a runtime the process ends, and the entry leaves the interval by itself.
        let (taken, runtime) = (self.give_back.take()?, Handle::try_current().ok()?);
        let (connection, timeout) = (Arc::clone(&self.connection), self.timeout);
        let counted = self.teller.about_to();
        Some(runtime.spawn(async move {
            let TakenPermits { keys, permits, id } = &taken;
            let call = command(keys, ("return", *permits), id, None, Patience::NONE);
            let understood = |value| matches!(value, Value::Array(_)).then_some(());
            // Where it fails the permits come back when the interval is over.
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
