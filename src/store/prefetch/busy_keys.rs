//! The keys of a worker that are busy, and the tokens that are held for them. Nothing here waits or reads a
//! clock: [`Prefetch`](super::Prefetch) does that, and locks the keys.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hashbrown::HashMap;
use tokio::time::Instant;

use super::super::ProcessStore;
use super::super::claim::{BucketAsk, Claim, Moment, Party};
use super::super::memory::Identity;
use super::super::name::BucketKey;
use super::super::reserve::{SMALLEST, reserve};
use crate::limit::algorithm::Receipt;
use crate::limit::decide::{Ask, PerAsk};
use crate::limit::decision::{Decision, Outcome};
use crate::limit::rate::Cost;
use crate::limit::time::Timestamp;
use crate::plan::LimitSpec;

/// A batch that is not spent after this time goes back.
const LIFE: Duration = Duration::from_secs(2);

/// The time in which a key's requests are counted. A batch is for about twice this time.
pub(in crate::store) const WINDOW: Duration = Duration::from_millis(100);

/// The most keys whose requests a worker counts.
const MOST: usize = 1_024;

/// The keys whose requests are counted.
#[derive(Default)]
pub(in crate::store) struct BusyKeys {
    keys: HashMap<Identity, BusyKey>,
    /// The fetches that were begun.
    fetches: u64,
}

/// A key whose requests are counted, and the tokens that are held for it.
struct BusyKey {
    spec: Arc<LimitSpec>,
    key: BucketKey,
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
    /// From this time on the tokens are void. Their life is counted from before they were taken.
    ends: Instant,
}

/// Tokens that go back to their bucket.
pub(in crate::store) struct Return<'k> {
    /// The bucket. Its cost is 1.
    pub(in crate::store) ask: BucketAsk<'k>,
    pub(in crate::store) tokens: u64,
    pub(in crate::store) receipt: Receipt,
    pub(in crate::store) now: Timestamp,
}

impl BusyKeys {
    pub(in crate::store) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Lets a request pass if enough tokens are held for each of its limits. Returns the batches that are to
    /// be fetched then. If too few tokens are held, the claims stay unchanged.
    pub(in crate::store) fn spend(
        &mut self,
        shared: &ProcessStore,
        claims: &mut [&mut Claim<'_>],
        moment: Moment,
        now: Instant,
    ) -> Option<PerAsk<Fetch>> {
        if self.keys.is_empty() {
            return None;
        }
        let memory = &shared.memory;
        let ids: PerAsk<_> = claims.iter().map(|it| memory.identity(&it.question())).collect();
        let suffice = claims.iter().zip(&ids).all(|(claim, id)| {
            let busy = self.keys.get(id).filter(|busy| busy.ask.algorithm == claim.ask.algorithm);
            busy.is_some_and(|busy| busy.held(now) >= claim.ask.cost.get())
        });
        if !suffice {
            return None;
        }
        let mut to_fetch = PerAsk::new();
        for (claim, id) in claims.iter_mut().zip(ids) {
            let Some(busy) = self.keys.get_mut(&id) else { continue };
            busy.count(claim.ask.cost, now);
            busy.spend(claim.ask.cost.get(), now);
            let remaining = busy.remaining + busy.held(now);
            claim.decision = Some(Decision { outcome: Outcome::Allow, remaining });
            claim.party = Party::Nobody;
            busy.moment = moment;
            to_fetch.extend(busy.begin_fetch(id, &mut self.fetches, shared, now));
        }
        Some(to_fetch)
    }

    /// Notes what Redis said. Returns the batches that are to be fetched for busy keys.
    pub(in crate::store) fn note(
        &mut self,
        shared: &ProcessStore,
        claims: &[&mut Claim<'_>],
        moment: Moment,
        now: Instant,
        mut give_back: impl FnMut(Return<'_>),
    ) -> PerAsk<Fetch> {
        let (mut ids, mut to_fetch) = (PerAsk::<Identity>::new(), PerAsk::new());
        for claim in claims {
            let Some(Decision { remaining, .. }) = claim.decision else { continue };
            let id = shared.memory.identity(&claim.question());
            if self.keys.len() >= MOST && !self.keys.contains_key(&id) {
                continue;
            }
            let busy = self.keys.entry(id).or_insert_with(|| BusyKey::new(claim, moment, now));
            if busy.ask.algorithm != claim.ask.algorithm {
                // A reload or an override has changed the figures.
                busy.give_back(now, |_| true, &mut give_back);
                *busy = BusyKey::new(claim, moment, now);
            }
            (busy.remaining, busy.moment) = (remaining, moment);
            busy.count(claim.ask.cost, now);
            ids.push(id);
        }
        // A batch is fetched only if the keys of all limits are busy: tokens of one limit alone could not be
        // spent.
        let is_busy = |id: &Identity| self.keys.get(id).is_some_and(BusyKey::is_busy);
        if ids.len() == claims.len() && ids.iter().all(is_busy) {
            for id in ids {
                let Some(busy) = self.keys.get_mut(&id) else { continue };
                to_fetch.extend(busy.begin_fetch(id, &mut self.fetches, shared, now));
            }
        }
        to_fetch
    }

    /// Holds the batch that Redis gave. A batch for which there is no place goes back: then its receipt is
    /// returned.
    pub(in crate::store) fn end_fetch(
        &mut self,
        fetch: &Fetch,
        fetched: Option<Fetched>,
    ) -> Option<Receipt> {
        let busy = self.keys.get_mut(&fetch.id).filter(|it| it.fetching == Some(fetch.number));
        let Some(busy) = busy else {
            // The figures have changed meanwhile, the bucket was reset, or the worker ends.
            return fetched.map(|batch| batch.receipt);
        };
        busy.fetching = None;
        // A refusal counts as nothing left. The next batch is fetched only after Redis has named a larger
        // number.
        busy.remaining = fetched.as_ref().map_or(0, |batch| batch.remaining);
        if let Some(batch) = fetched {
            let (tokens, receipt, ends) = (fetch.ask.cost.get(), batch.receipt, fetch.ends);
            busy.batches.push_back(Batch { tokens, receipt, ends });
        }
        None
    }

    /// The bucket is reset. The tokens that are held of it are void.
    pub(in crate::store) fn forget_bucket(&mut self, bucket: &Identity) {
        self.keys.remove(bucket);
    }

    /// Gives back all that is held. A batch that is under way goes back when it comes, because its key is
    /// gone.
    pub(in crate::store) fn give_back(&mut self, now: Instant, mut back: impl FnMut(Return<'_>)) {
        for (_, mut busy) in self.keys.drain() {
            busy.give_back(now, |_| true, &mut back);
        }
    }

    /// Gives back what is not spent in time, and forgets keys that are not busy any more. `is_on` says whether
    /// tokens are fetched. Returns how many keys have tokens.
    pub(in crate::store) fn sweep(
        &mut self,
        is_on: bool,
        now: Instant,
        mut back: impl FnMut(Return<'_>),
    ) -> u64 {
        let mut held = 0;
        self.keys.retain(|_, busy| {
            let age = now.duration_since(busy.window);
            let is_idle = age > 5 * WINDOW;
            busy.give_back(now, |batch| is_idle || !is_on || batch.ends <= now, &mut back);
            held += u64::from(!busy.batches.is_empty());
            let is_counted = is_on && !is_idle && (busy.is_busy() || age < WINDOW);
            !busy.batches.is_empty() || busy.fetching.is_some() || is_counted
        });
        held
    }
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
        fetches: &mut u64,
        shared: &ProcessStore,
        now: Instant,
    ) -> Option<Fetch> {
        if self.fetching.is_some() || !self.is_busy() {
            return None;
        }
        let workers = shared.stores.load(Ordering::Relaxed).max(1);
        let holders = workers.saturating_mul(shared.processes.load(Ordering::Relaxed).max(1));
        let part = reserve(&self.spec, &self.ask) / holders;
        // At most this worker's part is wanted. Otherwise a batch would be fetched after each few spent
        // tokens.
        let wanted = (2 * self.counted.max(self.counted_before)).min(part);
        // Void tokens count, too, until they have gone back.
        let held: u64 = self.batches.iter().map(|batch| batch.tokens).sum();
        if 2 * held > wanted || !shared.presence.is_settled(now) {
            return None;
        }
        // All holders share the tokens that remain. A batch is at most half of this worker's part.
        let tokens = wanted.min(part.saturating_sub(held)).min(self.remaining / (2 * holders));
        let cost = Cost::new(tokens).filter(|_| tokens >= SMALLEST)?;
        let number = *fetches;
        (*fetches, self.fetching) = (number + 1, Some(number));
        let (spec, key, moment) = (Arc::clone(&self.spec), self.key.clone(), self.moment);
        let (ask, ends) = (Ask { cost, ..self.ask }, now + LIFE);
        Some(Fetch { number, id, spec, key, ask, moment, ends })
    }

    /// Gives batches back.
    fn give_back(
        &mut self,
        now: Instant,
        is_due: impl Fn(&Batch) -> bool,
        mut back: impl FnMut(Return<'_>),
    ) {
        let ask = BucketAsk { spec: &self.spec, key: &self.key, ask: self.ask };
        let now = self.moment.time_at(now);
        self.batches.retain(|batch| {
            let is_due = is_due(batch);
            if is_due {
                back(Return { ask, tokens: batch.tokens, receipt: batch.receipt, now });
            }
            !is_due
        });
    }
}

/// A batch that is to be taken.
pub(in crate::store) struct Fetch {
    number: u64,
    id: Identity,
    spec: Arc<LimitSpec>,
    key: BucketKey,
    ask: Ask,
    pub(in crate::store) moment: Moment,
    /// From this time on the batch is void.
    pub(in crate::store) ends: Instant,
}

impl Fetch {
    /// The question by which the batch is taken.
    pub(in crate::store) fn question(&self) -> BucketAsk<'_> {
        BucketAsk { spec: &self.spec, key: &self.key, ask: self.ask }
    }
}

/// What Redis said about a batch that it gave.
pub(in crate::store) struct Fetched {
    pub(in crate::store) remaining: u64,
    pub(in crate::store) receipt: Receipt,
}
