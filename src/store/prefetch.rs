//! Tokens that this worker has taken from Redis in advance, for keys that are busy. `outage` asks here before
//! it asks Redis. Only with `store.prefetch = "auto"`. `reserve` says how much may be held, and when.
//!
//! A batch is taken from the bucket like the tokens of a request, and requests are then decided here. Never
//! more passes than the limit allows: of each bucket an eighth of the burst is set aside (the reserve).
//! Requests and batches can take only the rest of the burst. All workers of all processes together hold at
//! most the reserve. Thus in any time T at most `reserve + (burst - reserve) + rate * T` tokens are spent, as
//! without batches.
//!
//! A worker holds at most its equal part of the reserve. It counts the processes that are announced in Redis
//! (`redis::processes`). A process that was announced for less than twelve seconds fetches nothing, because
//! another one may not have counted it yet. A batch is void after [`LIFE`], long before an announcement ends.
//! Therefore no two processes divide the reserve by different numbers.
//!
//! A bucket therefore has an eighth of its burst less. A batch whose answer comes too late is lost. What a
//! process that dies holds is lost: at most its part.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::claim::{BucketAsk, Claim, Moment, Party};
use super::memory::Identity;
use super::reserve::{SMALLEST, reserve};
use super::{Shared, Store, outage};
use crate::limit::algorithm::{Difference, Receipt};
use crate::limit::decide::{Ask, PerAsk};
use crate::limit::decision::{Decision, Outcome};
use crate::limit::key::Key;
use crate::limit::rate::Cost;
use crate::plan::LimitSpec;

/// A batch that is not spent after this time goes back.
const LIFE: Duration = Duration::from_secs(2);

/// The time in which a key's requests are counted. A batch is for about twice this time.
const WINDOW: Duration = Duration::from_millis(100);

/// The most keys whose requests a worker counts.
const MOST: usize = 1_024;

/// A worker's batches.
#[derive(Default)]
pub(super) struct Prefetch {
    keys: Mutex<HashMap<Identity, BusyKey>>,
    filled: Notify,
    /// The fetches that were begun.
    fetches: AtomicU64,
}

/// A key whose requests are counted, and the tokens that are held for it.
struct BusyKey {
    spec: Arc<LimitSpec>,
    key: Key,
    /// With the figures of the requests. The cost is 1.
    ask: Ask,
    batches: VecDeque<Batch>,
    /// The number of the fetch that is under way.
    fetching: Option<u64>,
    /// When a request was last counted.
    moment: Moment,
    /// What remained in Redis at its last answer.
    remaining: u64,
    counted: u64,
    counted_before: u64,
    window: Instant,
}

/// Tokens that were taken together.
struct Batch {
    tokens: u64,
    receipt: Receipt,
    /// From this time on the tokens are void. It counts from before the tokens were taken.
    ends: Instant,
}

impl Prefetch {
    /// Lets a request pass by tokens that are held, where they suffice for each of its limits. Returns whether
    /// they did. If they did not, the claims stay unchanged.
    pub(super) fn spend(
        &self,
        store: &Arc<Store>,
        claims: &mut [&mut Claim<'_>],
        moment: Moment,
    ) -> bool {
        if !store.shared.prefetches() || !claims.iter().all(|claim| is_fetched(claim)) {
            return false;
        }
        let now = Instant::now();
        let mut keys = self.keys.lock();
        if keys.is_empty() {
            return false;
        }
        let memory = &store.shared.memory;
        let ids: PerAsk<_> = claims.iter().map(|it| memory.identity(&it.question())).collect();
        let suffice = claims.iter().zip(&ids).all(|(claim, id)| {
            let busy = keys.get(id).filter(|busy| busy.ask.algorithm == claim.ask.algorithm);
            busy.is_some_and(|busy| busy.held(now) >= claim.ask.cost.get())
        });
        if !suffice {
            return false;
        }
        let mut to_fetch = PerAsk::<Fetch>::new();
        for (claim, id) in claims.iter_mut().zip(ids) {
            let Some(busy) = keys.get_mut(&id) else { continue };
            busy.count(claim.ask.cost, now);
            busy.spend(claim.ask.cost.get(), now);
            let remaining = busy.remaining + busy.held(now);
            claim.decision = Some(Decision { outcome: Outcome::Allow, remaining });
            claim.party = Party::Nobody;
            busy.moment = moment;
            to_fetch.extend(busy.begin_fetch(id, &self.fetches, &store.shared, now));
        }
        drop(keys);
        to_fetch.into_iter().for_each(|fetch| fetch.begin(store));
        true
    }

    /// Notes what Redis said, and begins to fetch for keys that are busy.
    pub(super) fn note(&self, store: &Arc<Store>, claims: &[&mut Claim<'_>], moment: Moment) {
        let is_answered = |claim: &&mut Claim<'_>| claim.party == Party::Redis && is_fetched(claim);
        if !store.shared.prefetches() || !claims.iter().all(is_answered) {
            return;
        }
        let now = Instant::now();
        let mut to_fetch = PerAsk::<Fetch>::new();
        let mut keys = self.keys.lock();
        let was_empty = keys.is_empty();
        let mut ids = PerAsk::<Identity>::new();
        for claim in claims {
            let Some(Decision { remaining, .. }) = claim.decision else { continue };
            let id = store.shared.memory.identity(&claim.question());
            if keys.len() >= MOST && !keys.contains_key(&id) {
                continue;
            }
            let busy = keys.entry(id).or_insert_with(|| BusyKey::new(claim, moment, now));
            if busy.ask.algorithm != claim.ask.algorithm {
                // A reload or an override has changed the figures.
                busy.give_back(store, |_| true);
                *busy = BusyKey::new(claim, moment, now);
            }
            (busy.remaining, busy.moment) = (remaining, moment);
            busy.count(claim.ask.cost, now);
            ids.push(id);
        }
        // Tokens of one limit alone could not be spent.
        let is_busy = |id: &Identity| keys.get(id).is_some_and(BusyKey::is_busy);
        if ids.len() == claims.len() && ids.iter().all(is_busy) {
            for id in ids {
                let Some(busy) = keys.get_mut(&id) else { continue };
                to_fetch.extend(busy.begin_fetch(id, &self.fetches, &store.shared, now));
            }
        }
        let is_first = was_empty && !keys.is_empty();
        drop(keys);
        if is_first {
            self.filled.notify_one();
        }
        to_fetch.into_iter().for_each(|fetch| fetch.begin(store));
    }

    /// Lets the task that sweeps look again.
    pub(super) fn wake(&self) {
        self.filled.notify_one();
    }

    /// The bucket is made new: what is held of it is void.
    pub(super) fn forget_bucket(&self, bucket: &Identity) {
        self.keys.lock().remove(bucket);
    }

    /// Gives back all that is held. Called before the worker ends. A batch that is under way goes back when it
    /// comes, because its key is gone.
    pub(super) fn give_back(&self, store: &Store) {
        for (_, mut busy) in self.keys.lock().drain() {
            busy.give_back(store, |_| true);
        }
    }

    /// Gives back what is not spent in time, and forgets keys that are not busy any more. Returns how many
    /// keys have tokens.
    fn sweep(&self, store: &Store) -> u64 {
        let (now, is_on) = (Instant::now(), store.shared.prefetches());
        let mut held = 0;
        self.keys.lock().retain(|_, busy| {
            let age = now.duration_since(busy.window);
            let is_idle = age > 5 * WINDOW;
            busy.give_back(store, |batch| is_idle || !is_on || batch.ends <= now);
            held += u64::from(!busy.batches.is_empty());
            let is_counted = is_on && !is_idle && (busy.is_busy() || age < WINDOW);
            !busy.batches.is_empty() || busy.fetching.is_some() || is_counted
        });
        held
    }
}

/// Sweeps a store's batches for as long as the store lives.
pub(super) async fn keep(store: Weak<Store>, shared: Arc<Shared>) {
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
fn is_fetched(claim: &Claim<'_>) -> bool {
    claim.party == Party::Redis && reserve(claim.spec, &claim.ask) > 0
}

impl BusyKey {
    fn new(claim: &Claim<'_>, moment: Moment, now: Instant) -> Self {
        Self {
            spec: Arc::clone(claim.spec),
            key: claim.key.clone(),
            ask: Ask { cost: Cost::ONE, ..claim.ask },
            batches: VecDeque::new(),
            fetching: None,
            moment,
            remaining: 0,
            counted: 0,
            counted_before: 0,
            window: now,
        }
    }

    /// Counts the tokens that requests want.
    fn count(&mut self, cost: Cost, now: Instant) {
        let age = now.duration_since(self.window);
        if age >= WINDOW {
            self.counted_before = if age < 2 * WINDOW { self.counted } else { 0 };
            (self.counted, self.window) = (0, now);
        }
        self.counted += cost.get();
    }

    fn held(&self, now: Instant) -> u64 {
        self.batches.iter().filter(|batch| now < batch.ends).map(|batch| batch.tokens).sum()
    }

    /// Spends tokens, those that end first before the others.
    fn spend(&mut self, mut tokens: u64, now: Instant) {
        for batch in self.batches.iter_mut().filter(|batch| now < batch.ends) {
            let spent = tokens.min(batch.tokens);
            (batch.tokens, tokens) = (batch.tokens - spent, tokens - spent);
        }
        self.batches.retain(|batch| batch.tokens > 0);
    }

    fn is_busy(&self) -> bool {
        self.counted.max(self.counted_before) >= SMALLEST
    }

    /// The batch that is to be fetched now.
    fn begin_fetch(
        &mut self,
        id: Identity,
        fetches: &AtomicU64,
        shared: &Shared,
        now: Instant,
    ) -> Option<Fetch> {
        if self.fetching.is_some() || !self.is_busy() {
            return None;
        }
        let wanted = 2 * self.counted.max(self.counted_before);
        // Void tokens count, too, until they are back.
        let held: u64 = self.batches.iter().map(|batch| batch.tokens).sum();
        if 2 * held > wanted || !shared.presence.is_settled(now) {
            return None;
        }
        let workers = shared.stores.load(Ordering::Relaxed).max(1);
        let holders = workers.saturating_mul(shared.processes.load(Ordering::Relaxed).max(1));
        let part = reserve(&self.spec, &self.ask) / holders;
        // What remains is for all of them.
        let tokens = wanted.min(part.saturating_sub(held)).min(self.remaining / (2 * holders));
        let cost = Cost::new(tokens).filter(|_| tokens >= SMALLEST)?;
        let number = fetches.fetch_add(1, Ordering::Relaxed);
        self.fetching = Some(number);
        let (spec, key, moment) = (Arc::clone(&self.spec), self.key.clone(), self.moment);
        let (ask, ends) = (Ask { cost, ..self.ask }, now + LIFE);
        Some(Fetch { number, id, spec, key, ask, moment, ends })
    }

    /// Gives batches back, by the figures that are in force now.
    fn give_back(&mut self, store: &Store, is_due: impl Fn(&Batch) -> bool) {
        let now = self.moment.present();
        let ask = BucketAsk { spec: &self.spec, key: &self.key, ask: self.ask };
        self.batches.retain(|batch| {
            if is_due(batch) {
                store.settle(&ask, Difference::Less(batch.tokens), batch.receipt, now);
            }
            !is_due(batch)
        });
    }
}

/// A batch that is to be taken.
struct Fetch {
    number: u64,
    id: Identity,
    spec: Arc<LimitSpec>,
    key: Key,
    ask: Ask,
    moment: Moment,
    /// From this time on the batch is void.
    ends: Instant,
}

impl Fetch {
    /// Starts a task that takes the batch. Requests do not wait for it.
    fn begin(self, store: &Arc<Store>) {
        let store = Arc::clone(store);
        tokio::spawn(async move {
            let Some(redis) = &store.redis else { return };
            let _counted = redis.about_to();
            let ask = BucketAsk { spec: &self.spec, key: &self.key, ask: self.ask };
            let fetched = match Instant::now() < self.ends {
                true => redis.fetch(&ask).await.ok().flatten(),
                // The process was stopped, and the others may not have counted it since.
                false => None,
            };
            let now = self.moment.present();
            if let Some(batch) = &fetched {
                let ask = BucketAsk { ask: Ask { cost: Cost::ONE, ..self.ask }, ..ask };
                outage::write_known(&store.shared, &ask, batch.remaining, now);
            }
            let mut keys = store.prefetch.keys.lock();
            let busy = keys.get_mut(&self.id).filter(|busy| busy.fetching == Some(self.number));
            if let Some(busy) = busy {
                busy.fetching = None;
                // A refusal is noted as nothing left, so that the next batch waits for better news.
                busy.remaining = fetched.as_ref().map_or(0, |batch| batch.remaining);
                if let Some(batch) = fetched {
                    let (tokens, receipt, ends) = (self.ask.cost.get(), batch.receipt, self.ends);
                    busy.batches.push_back(Batch { tokens, receipt, ends });
                }
            } else if let Some(batch) = fetched {
                // The figures have changed meanwhile, the bucket was made new, or the worker ends.
                let used = Difference::Less(self.ask.cost.get());
                store.settle(&ask, used, batch.receipt, now);
            }
        });
    }
}

/// What Redis said about a batch that it gave.
pub(super) struct Fetched {
    pub(super) remaining: u64,
    pub(super) receipt: Receipt,
}
