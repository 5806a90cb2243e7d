//! Tokens that this worker has taken from Redis in advance, for keys that are busy. `outage` asks here before
//! it asks Redis. Used only with `store.prefetch = "auto"`. `busy_keys` counts and holds, and `reserve` says how
//! much may be held, and when.
//!
//! A batch is taken from the bucket like the tokens of a request, and requests are then decided here. Never
//! more passes than the limit allows: of each bucket an eighth of the burst is set aside (the reserve).
//! Requests and batches can take only the rest of the burst. All workers of all processes together hold at
//! most the reserve. Thus in any time T at most `reserve + (burst - reserve) + rate * T` tokens are spent, as
//! without batches.
//!
//! A worker holds at most its equal part of the reserve. It counts the processes that are announced in Redis
//! (`redis::processes`). A process that was announced for less than twelve seconds fetches nothing, because
//! another process may not have counted it yet. A batch is void after two seconds, long before an announcement
//! ends. Therefore no two processes divide the reserve by different numbers.
//!
//! The price: requests find an eighth less of the burst. A batch whose answer comes too late is lost. If a
//! process dies, the tokens that it holds are lost: at most its part of the reserve.

mod busy_keys;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

pub(super) use self::busy_keys::{BusyKeys, Fetch, Fetched, Return, WINDOW};
use super::claim::{BucketAsk, Claim, Moment, Party};
use super::memory::Identity;
use super::reserve::reserve;
use super::{ProcessStore, Store, carry_over};
use crate::limit::algorithm::Difference;
use crate::limit::decide::Ask;
use crate::limit::rate::Cost;

/// A worker's batches.
#[derive(Default)]
pub(super) struct Prefetch {
    keys: Mutex<BusyKeys>,
    filled: Notify,
}

impl Prefetch {
    /// Lets a request pass if enough tokens are held for each of its limits. Returns whether there were
    /// enough. If not, the claims stay unchanged.
    pub(super) fn spend(
        &self,
        store: &Arc<Store>,
        claims: &mut [&mut Claim<'_>],
        moment: Moment,
    ) -> bool {
        if !store.shared.prefetches() || !claims.iter().all(|claim| is_fetched(claim)) {
            return false;
        }
        let spent = self.keys.lock().spend(&store.shared, claims, moment, Instant::now());
        let Some(to_fetch) = spent else { return false };
        to_fetch.into_iter().for_each(|fetch| fetch.begin(store));
        true
    }

    /// Notes what Redis said, and begins to fetch for keys that are busy.
    pub(super) fn note(&self, store: &Arc<Store>, claims: &[&mut Claim<'_>], moment: Moment) {
        let is_answered = |claim: &&mut Claim<'_>| claim.party == Party::Redis && is_fetched(claim);
        if !store.shared.prefetches() || !claims.iter().all(is_answered) {
            return;
        }
        let mut keys = self.keys.lock();
        let was_empty = keys.is_empty();
        let give_back = |it: Return<'_>| it.settle(store);
        let to_fetch = keys.note(&store.shared, claims, moment, Instant::now(), give_back);
        let is_first = was_empty && !keys.is_empty();
        drop(keys);
        if is_first {
            self.filled.notify_one();
        }
        to_fetch.into_iter().for_each(|fetch| fetch.begin(store));
    }

    /// Wakes the task that sweeps.
    pub(super) fn wake(&self) {
        self.filled.notify_one();
    }

    /// The bucket is reset. The tokens that are held of it are void.
    pub(super) fn forget_bucket(&self, bucket: &Identity) {
        self.keys.lock().forget_bucket(bucket);
    }

    /// Gives back all that is held. Called before the worker ends.
    pub(super) fn give_back(&self, store: &Store) {
        self.keys.lock().give_back(Instant::now(), |it| it.settle(store));
    }

    fn sweep(&self, store: &Store) -> u64 {
        let is_on = store.shared.prefetches();
        self.keys.lock().sweep(is_on, Instant::now(), |it| it.settle(store))
    }
}

/// Sweeps a store's batches for as long as the store lives.
pub(super) async fn keep(store: Weak<Store>, shared: Arc<ProcessStore>) {
    let mut held = 0;
    loop {
        let Some(alive) = store.upgrade() else {
            shared.prefetched_keys.fetch_sub(held, Ordering::Relaxed);
            return;
        };
        let prefetch = Arc::clone(&alive.prefetch);
        let before = std::mem::replace(&mut held, prefetch.sweep(&alive));
        shared.prefetched_keys.fetch_add(held.wrapping_sub(before), Ordering::Relaxed);
        drop(alive);
        if prefetch.keys.lock().is_empty() {
            prefetch.filled.notified().await;
        }
        sleep(WINDOW).await;
    }
}

/// Whether tokens can be fetched for this claim.
pub(super) fn is_fetched(claim: &Claim<'_>) -> bool {
    claim.party == Party::Redis && reserve(claim.spec, &claim.ask) > 0
}

impl Return<'_> {
    /// Sends the tokens, by the figures that are in force now.
    fn settle(self, store: &Store) {
        store.settle(&self.ask, Difference::Less(self.tokens), self.receipt, self.now);
    }
}

impl Fetch {
    /// Starts a task that takes the batch. Requests do not wait for it.
    fn begin(self, store: &Arc<Store>) {
        let store = Arc::clone(store);
        tokio::spawn(async move {
            let Some(redis) = &store.redis else { return };
            let _counted = redis.queue.teller().about_to();
            let ask = self.question();
            let fetched = match Instant::now() < self.ends {
                true => redis.fetch(&ask).await.ok().flatten(),
                // The process was stopped, and the others may not have counted it since.
                false => None,
            };
            let now = self.moment.present();
            if let Some(batch) = &fetched {
                let ask = BucketAsk { ask: Ask { cost: Cost::ONE, ..ask.ask }, ..ask };
                carry_over::write_known(&store.shared, &ask, batch.remaining, now);
            }
            let to_return = store.prefetch.keys.lock().end_fetch(&self, fetched);
            if let Some(receipt) = to_return {
                store.settle(&ask, Difference::Less(ask.ask.cost.get()), receipt, now);
            }
        });
    }
}
