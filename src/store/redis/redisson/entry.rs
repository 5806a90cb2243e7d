//! What limiters took of a request of which it is not known yet whether it goes on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::super::connection::Connection;
use super::super::queue::Teller;
use super::{LimiterKeys, Patience, Redis, command};

/// Permits that were taken for a request that has not gone on yet. Dropped, they go back: where another
/// limit refuses, and where the client leaves.
pub(in crate::store) struct Entry {
    connection: Arc<Connection>,
    teller: Teller,
    give_back: Option<Taken>,
    timeout: Duration,
}

/// What an entry is known by.
pub(super) struct Taken {
    pub(super) keys: LimiterKeys,
    pub(super) permits: i64,
    pub(super) id: [u8; 16],
}

impl Entry {
    /// One that is there, or may be.
    pub(super) fn new(redis: &Redis, taken: Taken) -> Self {
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
    fn give_back(&mut self) -> Option<JoinHandle<()>> {
        // Without a runtime the process ends, and the entry leaves the interval by itself.
        let (taken, runtime) = (self.give_back.take()?, Handle::try_current().ok()?);
        let (connection, timeout) = (Arc::clone(&self.connection), self.timeout);
        let counted = self.teller.about_to();
        Some(runtime.spawn(async move {
            let Taken { keys, permits, id } = &taken;
            let call = command(keys, ("return", *permits), id, None, Patience::NONE);
            let understood = |value| matches!(value, Value::Array(_)).then_some(());
            // Where it fails the permits come back when the interval is over.
            let _ = connection.call(&call, understood, Instant::now() + timeout).await;
            drop(counted);
        }))
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// What limiters of Redisson's took of one request that is held. Dropped, it goes back. Equal where there is
/// as much of it.
#[derive(Default)]
pub struct Entries(Vec<Entry>);

impl Entries {
    pub(in crate::store) fn of(entries: impl IntoIterator<Item = Entry>) -> Self {
        Self(entries.into_iter().collect())
    }

    /// The request goes on.
    pub fn keep(self) {
        self.0.into_iter().for_each(Entry::keep);
    }

    /// It does not, and there is time to say so: no longer than `store.timeout`.
    pub async fn give_back(mut self) {
        let tasks: Vec<_> = self.0.iter_mut().filter_map(Entry::give_back).collect();
        for task in tasks {
            // An error means that the worker ends.
            let _ = task.await;
        }
    }
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Entries").field(&self.0.len()).finish()
    }
}

impl PartialEq for Entries {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
    }
}

impl Eq for Entries {}
