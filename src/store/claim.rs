//! One limit's answer to one request, and what the limit gave for it.
//!
//! `throttle` makes a [`Claim`] for each limit that applies to a request. A party decides on the claim: this
//! process's buckets (`memory`), the buckets in Redis (`redis`), or a limiter of Redisson's
//! (`redis::redisson`). What the party gave is a [`Grant`], and a grant has three ends: it is kept, it is
//! settled by what the request used, or it is dropped and goes back.

use std::fmt;
use std::mem;
use std::sync::Arc;

use tokio::time::Instant;

use super::Store;
use super::redis::{Holder, LimiterEntry, SlotLease};
use crate::limit::Mode;
use crate::limit::algorithm::{Algorithm, Difference, Receipt};
use crate::limit::decide::Ask;
use crate::limit::decision::{Decision, Outcome, Verdict};
use crate::limit::key::Key;
use crate::limit::time::Timestamp;
use crate::plan::LimitSpec;

/// A question about one bucket.
#[derive(Clone, Copy, Debug)]
pub struct BucketAsk<'r> {
    /// The limit. Its name, key sources, scope and `on_store_error` are looked at here.
    pub spec: &'r LimitSpec,
    /// The request's key, plain.
    pub key: &'r Key,
    /// The figures that apply to this key, what the request takes, and whether a refusal counts.
    pub ask: Ask,
}

/// One limit on its way through a request: what it is asked, what it says, and what it gave.
#[derive(Debug)]
pub struct Claim<'p> {
    /// The limit.
    pub spec: &'p Arc<LimitSpec>,
    /// The request's key, plain.
    pub key: Key,
    /// The figures that apply to this key, what the request takes, and whether a refusal counts.
    pub ask: Ask,
    /// What the limit says. `None` before a party has decided, and where Redis is away and the limit then
    /// lets everything pass.
    pub decision: Option<Decision>,
    /// The figures of a limit that has them in Redis.
    pub figures: Option<LimiterFigures>,
    /// Who decides.
    pub party: Party,
    /// What the limit took, before it is known whether that may come back.
    pub(super) taken: Option<Taken>,
    /// What the limit gave, where that may come back.
    grant: Option<Box<Grant>>,
}

/// Who decides on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// The buckets of this process.
    Process,
    /// The buckets in Redis.
    Redis,
    /// A limiter of Redisson's.
    Limiter,
    /// Redis should decide, and the claim's key there holds something else.
    WrongType,
    /// Redis should decide, and cannot.
    Nobody,
}

/// The figures of a limit that only its store knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimiterFigures {
    /// The most tokens that a request can ever take.
    pub capacity: u64,
    /// The whole seconds in which they come back, rounded up.
    pub window_seconds: u64,
}

/// What a bucket has noted of a request that took from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) receipt: Receipt,
    /// It came from the bucket that several keys share for want of room.
    pub(super) from_shared: bool,
}

/// A time, and when it was: from the two the present time is known without a look at another clock.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The time, by the process's steady clock.
    pub time: Timestamp,
    /// When it was that time.
    pub at: Instant,
}

impl Moment {
    /// It is this time now.
    pub fn now(time: Timestamp) -> Self {
        Self { time, at: Instant::now() }
    }

    /// The time by now.
    pub fn present(&self) -> Timestamp {
        self.time.plus(self.at.elapsed())
    }
}

impl<'p> Claim<'p> {
    /// A claim on which no party has decided. A limit that lets nothing pass needs no party.
    pub fn new(spec: &'p Arc<LimitSpec>, key: Key, ask: Ask) -> Self {
        let (party, decision) = match ask.algorithm {
            Algorithm::Closed => (Party::Nobody, Some(Decision::NEVER)),
            _ => (Party::Process, None),
        };
        Self { spec, key, ask, decision, figures: None, party, taken: None, grant: None }
    }

    /// The question about its bucket.
    pub fn question(&self) -> BucketAsk<'_> {
        BucketAsk { spec: self.spec, key: &self.key, ask: self.ask }
    }

    /// Whether its limit lets the request pass, be it after a wait.
    pub fn passes(&self) -> bool {
        self.decision.is_some_and(|decision| decision.outcome.passes())
    }

    /// Whether an enforcing limit refuses.
    pub(super) fn refuses(&self) -> bool {
        self.ask.mode == Mode::Enforce && self.decision.is_some() && !self.passes()
    }

    /// The request goes on. Returns what it holds of this limit until its response ends: a slot, or tokens
    /// that are settled then. Everything else that the limit gave is kept.
    pub fn take_held(&mut self) -> Option<Box<Grant>> {
        self.end_at(Verdict::PASS);
        self.grant.take()
    }

    /// What was noted when the limit took, where that may come back.
    pub fn receipt(&self) -> Option<Receipt> {
        match &self.grant.as_ref()?.source {
            Source::Process(Taken { receipt, .. }) | Source::Redis(receipt) => Some(*receipt),
            Source::SlotLease(_) | Source::Limiter(_) | Source::Ended => None,
        }
    }

    /// Begins anew. What was given goes back.
    pub(super) fn reset(&mut self) {
        (self.decision, self.figures, self.taken, self.grant) = (None, None, None, None);
    }

    /// Holds what this claim took from a bucket, until it is known what becomes of the request.
    pub(super) fn hold(&mut self, store: &Arc<Store>, moment: Moment) {
        let Some(taken) = self.taken.take() else { return };
        let source = match self.party {
            Party::Redis => Source::Redis(taken.receipt),
            _ => Source::Process(taken),
        };
        self.grant = Some(self.granted(store, moment, source));
    }

    /// Holds a slot in Redis, which may be taken from now on.
    pub(super) fn hold_lease(&mut self, store: &Arc<Store>, moment: Moment, lease: SlotLease) {
        self.grant = Some(self.granted(store, moment, Source::SlotLease(lease)));
    }

    /// Holds permits of a Redisson limiter.
    pub(super) fn hold_entry(&mut self, store: &Arc<Store>, moment: Moment, entry: LimiterEntry) {
        self.grant = Some(self.granted(store, moment, Source::Limiter(entry)));
    }

    fn granted(&self, store: &Arc<Store>, moment: Moment, source: Source) -> Box<Grant> {
        // Others may be held behind this request: its patience is the limit's.
        let ask = Ask { patience: self.spec.wait, ..self.ask };
        Box::new(Grant {
            store: Arc::clone(store),
            spec: Arc::clone(self.spec),
            key: self.key.clone(),
            ask,
            moment,
            source,
        })
    }

    /// Who holds the slot in Redis that it may take.
    pub(super) fn holder(&self) -> Option<Holder> {
        match &self.grant.as_ref()?.source {
            Source::SlotLease(lease) => Some(lease.holder()),
            _ => None,
        }
    }

    /// Redis has said whether the slot was taken.
    pub(super) fn lease_was(&mut self, taken: bool) {
        let Some(Source::SlotLease(lease)) = self.grant.as_mut().map(|grant| &mut grant.source)
        else {
            return;
        };
        match taken {
            true => lease.taken(),
            false => {
                lease.refused();
                self.grant = None;
            }
        }
    }

    /// Whether what was taken may come back although the request goes on.
    pub(super) fn is_held_to_the_end(&self) -> bool {
        self.spec.is_settled() || matches!(self.ask.algorithm, Algorithm::Concurrency(_))
    }

    /// Whether what was taken may come back after this verdict.
    pub(super) fn may_come_back(&self, verdict: Verdict) -> bool {
        match verdict {
            Verdict::Pass { wait } => !wait.is_zero() || self.is_held_to_the_end(),
            // A candidate may have taken in place of its limit.
            Verdict::Refuse { .. } => false,
        }
    }

    /// All parties have decided, and this is the verdict: what cannot come back any more is kept.
    pub(super) fn end_at(&mut self, verdict: Verdict) {
        if !self.may_come_back(verdict)
            && let Some(grant) = self.grant.take()
        {
            grant.keep();
        }
    }

    /// Another limit refuses the request: what this one gave goes back, and remains.
    pub(super) fn give_back(&mut self) -> Option<Box<Grant>> {
        let grant = self.grant.take()?;
        if let Some(Decision { outcome: Outcome::Allow, remaining }) = &mut self.decision {
            *remaining += self.ask.cost.get();
        }
        Some(grant)
    }
}

/// What the claims of a request mean together. The verdict names a claim by its place among these.
pub fn verdict<'c, 'p: 'c>(claims: impl IntoIterator<Item = &'c Claim<'p>>) -> Verdict {
    let claims = claims.into_iter().enumerate();
    let enforcing = claims.filter(|(_, claim)| claim.ask.mode == Mode::Enforce);
    Verdict::over(enforcing.filter_map(|(place, claim)| Some((place, claim.decision?.outcome))))
}

/// What one limit gave a request: tokens, a slot, or permits of a Redisson limiter. Dropped, it goes back.
pub struct Grant {
    store: Arc<Store>,
    spec: Arc<LimitSpec>,
    key: Key,
    ask: Ask,
    moment: Moment,
    source: Source,
}

/// Where a grant came from, and goes back to.
enum Source {
    /// A bucket of this process.
    Process(Taken),
    /// A bucket in Redis.
    Redis(Receipt),
    /// A slot in Redis.
    SlotLease(SlotLease),
    /// Permits of a Redisson limiter.
    Limiter(LimiterEntry),
    /// Nowhere: the grant has ended.
    Ended,
}

impl Grant {
    /// The limit that gave it.
    pub fn spec(&self) -> &LimitSpec {
        &self.spec
    }

    /// What was asked. Its patience is the limit's.
    pub fn ask(&self) -> &Ask {
        &self.ask
    }

    /// Whether it is a slot, which is held until it is dropped.
    pub fn is_slot(&self) -> bool {
        matches!(self.ask.algorithm, Algorithm::Concurrency(_))
    }

    /// The request has used what was taken. A slot is free again.
    pub fn keep(mut self) {
        if self.is_slot() {
            return;
        }
        if let Source::Limiter(entry) = self.end() {
            entry.keep();
        }
    }

    /// The request has used more or less than was taken.
    pub fn settle(mut self, used: Difference) {
        let source = self.end();
        self.settle_with(source, used);
    }

    /// It goes back. Waits until a Redisson limiter has it again, no longer than `store.timeout`.
    pub(super) async fn give_back(mut self) {
        if let Source::Limiter(entry) = &mut self.source
            && let Some(task) = entry.give_back()
        {
            // An error means that the worker ends.
            let _ = task.await;
        }
    }

    fn end(&mut self) -> Source {
        mem::replace(&mut self.source, Source::Ended)
    }

    fn settle_with(&self, source: Source, used: Difference) {
        let ask = BucketAsk { spec: &self.spec, key: &self.key, ask: self.ask };
        let now = self.moment.present();
        match source {
            Source::Process(taken) => self.store.settle_here(&ask, used, taken, now),
            Source::Redis(receipt) => self.store.settle(&ask, used, receipt, now),
            Source::Limiter(entry) => {
                entry.keep();
                self.store.settle(&ask, used, Receipt::NONE, now);
            }
            // A slot is given back when it is dropped.
            Source::SlotLease(_) | Source::Ended => {}
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        match self.end() {
            source @ (Source::Process(_) | Source::Redis(_)) => {
                self.settle_with(source, Difference::Less(self.ask.cost.get()));
            }
            // They go back by themselves.
            Source::SlotLease(_) | Source::Limiter(_) | Source::Ended => {}
        }
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Grant").field(&self.spec.name).finish()
    }
}
