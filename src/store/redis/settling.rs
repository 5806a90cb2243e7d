//! Settlements that are on their way to Redis, and those that do not arrive.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::call::Said;
use super::queue::Awaited;
use super::{Shared, StoreError};
use crate::observe::events;

/// Between two log lines about settlements that were lost: an outage must not fill the log.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(10);

/// A settlement that was handed to Redis. Dropped before it is done, it may not be sent.
#[must_use]
pub struct Settling {
    said: Awaited,
    shared: Arc<Shared>,
    _counted: Counted,
}

impl Settling {
    pub(in crate::store) fn new(said: Awaited, shared: Arc<Shared>, under_way: &UnderWay) -> Self {
        Self { said, shared, _counted: under_way.one_more() }
    }

    /// Waits for Redis to have it, no longer than `store.timeout`. One that is lost is counted, and
    /// logged now and then.
    ///
    /// # Errors
    /// Where Redis does not answer.
    pub async fn done(mut self) -> Result<(), StoreError> {
        let settled = match self.said.answer().await {
            Ok(reply) => match reply.said.first() {
                Some(Said::Decided(_)) => Ok(()),
                Some(Said::WrongType) => Err(StoreError::WrongType),
                None => Err(StoreError::Nonsense),
            },
            Err(error) => Err(error),
        };
        if let Err(error) = &settled {
            self.shared.unsettled.add(error);
        }
        settled
    }
}

/// How many of a worker's settlements are under way, or of what else it tells Redis.
#[derive(Clone, Default)]
pub(in crate::store) struct UnderWay(watch::Sender<usize>);

impl UnderWay {
    /// Waits until there are none.
    pub(in crate::store) async fn none(&self) {
        // The sender is here, so it cannot be gone.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }

    pub(super) fn one_more(&self) -> Counted {
        self.0.send_modify(|count| *count += 1);
        Counted(self.clone())
    }
}

/// One that is under way until this is dropped.
pub(super) struct Counted(UnderWay);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

/// How many of this process's settlements were lost, and what was said of it.
#[derive(Default)]
pub(in crate::store) struct Unsettled {
    count: AtomicU64,
    told: Mutex<Option<Told>>,
}

#[derive(Clone, Copy)]
struct Told {
    at: Instant,
    count: u64,
}

impl Unsettled {
    pub(in crate::store) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn add(&self, error: &StoreError) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|told| told.at.elapsed() >= COMPLAINT_PAUSE) {
            let before = told.map_or(0, |told| told.count);
            *told = Some(Told { at: Instant::now(), count });
            drop(told);
            events::costs_not_settled(error, count.saturating_sub(before));
        }
    }
}
