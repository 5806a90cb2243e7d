//! One limit's answer to one request, and what the limit gave for the request.
//!
//! `throttle` makes a [`Claim`] for each limit that applies to a request. A party decides on the claim:
//! this process's buckets (`memory`), the buckets in Redis (`redis`), or a Redisson limiter
//! (`redis::redisson`). What the party gave is a [`Grant`], and a grant has three ends: it is kept, it is
//! settled by what the request used, or it is dropped and goes back.

use std::fmt;
use std::mem;
use std::sync::Arc;

use tokio::time::Instant;

use super::Store;
use super::name::BucketKey;
use crate::limit::Mode;
use crate::limit::algorithm::{Algorithm, Difference, Receipt};
use crate::limit::decide::Ask;
use crate::limit::decision::{Decision, Outcome, Verdict};
use crate::limit::time::Timestamp;
use crate::plan::response::UsedSource;
use crate::plan::{CostSpec, LimitSpec};
use crate::redis::HashSlot;

/// A question about one bucket.
#[derive(Clone, Copy, Debug)]
pub struct BucketAsk<'r> {
    /// The limit that the bucket belongs to.
    pub spec: &'r LimitSpec,
    /// The request's key.
    pub key: &'r BucketKey,
    /// The figures that apply to this key, what the request takes, and whether a refusal counts.
    pub ask: Ask,
}

/// One limit's part in one request: the question, the decision, and what the limit gave.
#[derive(Debug)]
pub struct Claim<'p> {
    pub(crate) spec: &'p Arc<LimitSpec>,
    /// The request's key.
    pub(crate) key: BucketKey,
    /// The figures that apply to this key, what the request takes, and whether a refusal counts.
    pub ask: Ask,
    /// The limit's decision. `None` before a party has decided. It stays `None` where Redis does not decide
    /// and the limit then lets every request pass.
    pub decision: Option<Decision>,
    /// The figures of a Redisson limiter, as Redis reports them. `None` for every other limit.
    pub figures: Option<LimiterFigures>,
    /// Who decides.
    pub party: Party,
    /// Where the key is in Redis.
    pub(super) place: RedisPlace,
    /// What the bucket noted, until the verdict shows whether the tokens may come back.
    pub(super) taken: Option<BucketReceipt>,
    /// What the limit gave, where it may still go back.
    grant: Option<Box<Grant>>,
}

/// Who decides on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// The buckets of this process.
    Process,
    /// The buckets in Redis.
    Redis,
    /// A Redisson limiter in Redis.
    Limiter,
    /// Redis should decide, but cannot use the claim's key: its value has another type, Redis refuses the
    /// key, or the limiter has no figures. Then `on_store_error` names the party.
    WrongType,
    /// Redis should decide, but the server that has the claim's key did not. Then `on_store_error` names the
    /// party.
    Unreachable,
    /// No party: the limit is closed, its refusal is known, or it lets every request pass without Redis.
    Nobody,
}

/// Where a claim's key is in Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RedisPlace {
    pub(super) slot: HashSlot,
    /// The number of this worker's connection to the server. `None` where the server is away.
    pub(super) connection: Option<u64>,
    /// The generation of overrides and of buckets that were reset.
    pub(super) generation: u64,
}

/// The figures of a Redisson limiter, which only Redis knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimiterFigures {
    /// The most tokens that a request can ever take.
    pub capacity: u64,
    /// The limiter's interval in milliseconds.
    pub interval_ms: u64,
}

impl LimiterFigures {
    /// The limiter's interval in whole seconds, rounded up.
    pub(crate) fn window_seconds(self) -> u64 {
        self.interval_ms.div_ceil(1_000)
    }
}

/// What a bucket noted when a request took from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BucketReceipt {
    pub(super) receipt: Receipt,
    /// The tokens came from the shared bucket, which several keys use while the table is full.
    pub(super) from_shared: bool,
    /// The number of resets in this process before the request took.
    pub(super) resets: u64,
}

impl BucketReceipt {
    /// From a key's own bucket. The bucket counts as never reset since.
    pub(super) fn of(receipt: Receipt) -> Self {
        Self { receipt, from_shared: false, resets: u64::MAX }
    }
}

/// A time, and the [`Instant`] at which it was read. The two give the present time without another clock.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The time, by the process's steady clock.
    pub time: Timestamp,
    /// When `time` was read.
    pub at: Instant,
}

impl Moment {
    /// The present moment. `time` is the present time by the steady clock.
    pub fn now(time: Timestamp) -> Self {
        Self { time, at: Instant::now() }
    }

    /// The present time: `time` and what has passed since.
    pub(crate) fn present(&self) -> Timestamp {
        self.time_at(Instant::now())
    }

    /// The time at `now`, which is not before [`Moment::at`].
    pub(super) fn time_at(&self, now: Instant) -> Timestamp {
        self.time.plus(now.duration_since(self.at))
    }
}

impl<'p> Claim<'p> {
    /// A claim on which no party has decided. A closed limit needs no party: its decision is known.
    pub fn new(spec: &'p Arc<LimitSpec>, key: BucketKey, ask: Ask) -> Self {
        let (party, decision) = match ask.algorithm {
            Algorithm::Closed => (Party::Nobody, Some(Decision::NEVER)),
            _ => (Party::Process, None),
        };
        let place = RedisPlace::default();
        Self { spec, key, ask, decision, figures: None, party, place, taken: None, grant: None }
    }

    /// The question about the claim's bucket.
    pub(crate) fn question(&self) -> BucketAsk<'_> {
        BucketAsk { spec: self.spec, key: &self.key, ask: self.ask }
    }

    /// Whether the limit lets the request pass, at once or after a wait. `false` before a decision.
    pub(crate) fn passes(&self) -> bool {
        self.decision.is_some_and(|decision| decision.outcome.passes())
    }

    /// Whether an enforcing limit refuses.
    pub(super) fn refuses(&self) -> bool {
        self.ask.mode == Mode::Enforce && self.decision.is_some() && !self.passes()
    }

    /// To be called when the request goes on. Returns what the request holds until its response ends: a
    /// slot, or tokens that are settled then. Anything else that the limit gave is spent.
    pub fn take_held(&mut self) -> Option<Box<Grant>> {
        self.end_at(Verdict::PASS);
        self.grant.take()
    }

    /// What the bucket noted when the request took, where the tokens may still go back.
    pub fn receipt(&self) -> Option<Receipt> {
        match &self.grant.as_ref()?.source {
            Source::Process(BucketReceipt { receipt, .. }) | Source::Redis(receipt) => {
                Some(*receipt)
            }
            Source::Slot(_) | Source::Limiter(_) | Source::Ended => None,
        }
    }

    /// Makes the claim undecided again. What the limit gave goes back.
    pub(super) fn reset(&mut self) {
        (self.decision, self.figures, self.taken, self.grant) = (None, None, None, None);
    }

    /// Turns the tokens that this claim took from a bucket into a grant. The grant goes back if the request
    /// does not go on.
    pub(super) fn hold(&mut self, store: &Arc<Store>, moment: Moment) {
        let Some(taken) = self.taken.take() else { return };
        let source = match self.party {
            Party::Redis => Source::Redis(taken.receipt),
            _ => Source::Process(taken),
        };
        self.hold_from(source, store, moment);
    }

    /// Holds what this source gives. A slot or permits are held before Redis is asked for them: Redis may give
    /// them although its answer is lost.
    pub(super) fn hold_from(&mut self, source: Source, store: &Arc<Store>, moment: Moment) {
        self.grant = Some(Box::new(Grant {
            store: Arc::clone(store),
            spec: Arc::clone(self.spec),
            key: self.key.clone(),
            // The longest wait of this request is zero where no place to wait was free. A settlement needs
            // the limit's own `wait`, because other requests may wait behind this request.
            ask: Ask { max_wait: self.spec.wait, ..self.ask },
            moment,
            source,
        }));
    }

    /// Redis has given nothing of what is held: nothing goes back.
    pub(super) fn hold_nothing(&mut self) {
        if let Some(mut grant) = self.grant.take() {
            grant.end();
        }
    }

    /// The slot that the claim holds or asks Redis for.
    pub(super) fn slot(&self) -> Option<u64> {
        match self.grant.as_ref()?.source {
            Source::Slot(slot) => Some(slot),
            _ => None,
        }
    }

    /// Whether something may come back after the request has gone on: the limit is settled later, or the
    /// claim holds a slot.
    pub(super) fn is_held_to_the_end(&self) -> bool {
        self.spec.is_settled() || matches!(self.ask.algorithm, Algorithm::Concurrency(_))
    }

    /// Whether what was taken may come back after this verdict.
    pub(super) fn may_come_back(&self, verdict: Verdict) -> bool {
        match verdict {
            Verdict::Pass { wait } => !wait.is_zero() || self.is_held_to_the_end(),
            // No limit took. A candidate may have taken in place of its limit, and its tokens stay taken.
            Verdict::Refuse { .. } => false,
        }
    }

    /// All parties have decided. A grant that cannot come back any more is kept.
    pub(super) fn end_at(&mut self, verdict: Verdict) {
        if !self.may_come_back(verdict)
            && let Some(grant) = self.grant.take()
        {
            grant.keep();
        }
    }

    /// Another limit refuses the request. Returns the grant to be given back, and adds its tokens to `remaining`.
    pub(super) fn give_back(&mut self) -> Option<Box<Grant>> {
        let grant = self.grant.take()?;
        if let Some(Decision { outcome: Outcome::Allow, remaining }) = &mut self.decision {
            *remaining += self.ask.cost.get();
        }
        Some(grant)
    }
}

/// The verdict of the enforcing limits together. It names a claim by its index among these.
pub fn verdict<'c, 'p: 'c>(claims: impl IntoIterator<Item = &'c Claim<'p>>) -> Verdict {
    let claims = claims.into_iter().enumerate();
    let enforcing = claims.filter(|(_, claim)| claim.ask.mode == Mode::Enforce);
    Verdict::over(enforcing.filter_map(|(place, claim)| Some((place, claim.decision?.outcome))))
}

/// Redis does not decide, and an enforcing limit has `on_store_error = "reject"`. What other limits gave
/// goes back. Tokens of a call that Redis did not answer in time may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store is out of reach, and a limit rejects requests then")]
pub struct Unavailable {
    /// The index of that limit's claim among the claims that were given to [`Store::take`].
    pub by: usize,
}

/// What one limit gave a request: tokens, a slot, or permits of a Redisson limiter. Dropped, it goes back.
pub struct Grant {
    store: Arc<Store>,
    spec: Arc<LimitSpec>,
    key: BucketKey,
    ask: Ask,
    moment: Moment,
    source: Source,
}

/// Where a grant came from, and goes back to.
pub(super) enum Source {
    /// A bucket of this process.
    Process(BucketReceipt),
    /// A bucket in Redis.
    Redis(Receipt),
    /// The slot in Redis that this worker knows by this number.
    Slot(u64),
    /// A Redisson limiter, which knows the permits by this id.
    Limiter([u8; 16]),
    /// Nowhere: the grant has ended.
    Ended,
}

impl Grant {
    /// The limit that gave the grant.
    pub(crate) fn spec(&self) -> &LimitSpec {
        &self.spec
    }

    /// What was asked, with the limit's own longest wait.
    pub(crate) fn ask(&self) -> &Ask {
        &self.ask
    }

    /// Whether the grant is a slot of a concurrency limit.
    pub(crate) fn is_slot(&self) -> bool {
        matches!(self.ask.algorithm, Algorithm::Concurrency(_))
    }

    /// Whether the bytes of the response's body are what is counted.
    pub(crate) fn counts_bytes(&self) -> bool {
        match &self.spec.cost {
            CostSpec::Response { source, .. } => **source == UsedSource::Bytes,
            CostSpec::Fixed(_) | CostSpec::Header { .. } => false,
        }
    }

    /// Ends the grant: the request has used exactly what it took. A slot is free again.
    pub fn keep(mut self) {
        if !self.is_slot() {
            self.end();
        }
    }

    /// The present time.
    pub(crate) fn present(&self) -> Timestamp {
        self.moment.present()
    }

    /// Ends the grant at the time `now`: the request has used this much more or less than it took.
    pub(crate) fn settle_at(mut self, used: Difference, now: Timestamp) {
        let source = self.end();
        self.settle_with(source, used, now);
    }

    fn end(&mut self) -> Source {
        mem::replace(&mut self.source, Source::Ended)
    }

    fn question(&self) -> BucketAsk<'_> {
        BucketAsk { spec: &self.spec, key: &self.key, ask: self.ask }
    }

    fn settle_with(&self, source: Source, used: Difference, now: Timestamp) {
        let ask = self.question();
        match source {
            Source::Process(taken) => self.store.settle_here(&ask, used, taken, now),
            Source::Redis(receipt) => self.store.settle(&ask, used, receipt, now),
            Source::Limiter(_) => self.store.settle(&ask, used, Receipt::NONE, now),
            Source::Slot(slot) => {
                self.store.redis.iter().for_each(|redis| redis.leases.give_back(slot));
            }
            Source::Ended => {}
        }
    }

    fn go_back(&mut self) {
        match (self.end(), &self.store.redis) {
            (Source::Limiter(id), Some(redis)) => redis.return_permits(&self.question(), id),
            (source, _) => {
                self.settle_with(source, Difference::Less(self.ask.cost.get()), self.present());
            }
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.go_back();
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Grant").field(&self.spec.name).finish()
    }
}
