//! One limit's part in one request: who decides, what was decided, and what the limit gave for the request.
//!
//! A claim begins open. `order` asks the bucket or the limiter that decides, and writes the decision
//! ([`Claim::decide`]) or that there is none ([`Claim::fail`]). While what the limit gave may go back, the claim holds
//! it as a [`Grant`] ([`Claim::hold`]). `throttle` lets a request that waits join the bucket's queue
//! ([`Claim::join_queue`]). A request that goes on takes along what it holds to its end ([`Claim::take_held`]). A claim
//! that is dropped drops its grant: see `grant`.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::access::Store;
use super::bucket::{BucketAsk, KeyLocation, Source};
use super::grant::{ClockReading, Grant, WaitingGrant};
use super::name::BucketKey;
use crate::limit::Mode;
use crate::limit::algorithm::{Algorithm, Receipt};
use crate::limit::bucket::{BucketReceipt, BucketReply, Decider, LimiterFigures};
use crate::limit::decide::Ask;
use crate::limit::decision::{Decision, Outcome, Verdict};
use crate::settings::{LimitSpec, OnStoreError};

/// One limit's part in one request.
#[derive(Debug)]
pub struct Claim<'p> {
    pub(crate) spec: &'p Arc<LimitSpec>,
    pub(crate) key: BucketKey,
    /// The figures that apply to this key, what the request takes, and whether a refusal counts.
    pub ask: Ask,
    /// Where the claim's key is in Redis. `None` if a bucket of this process decides.
    pub(super) location: Option<KeyLocation>,
    /// The time that the window has left which a request of this key has begun. `None` for other limits, and if it is
    /// not known.
    pub(crate) window_left: Option<Duration>,
    /// What was decided, and by whom, or why there is no decision. `None` as long as nobody has decided. A failure stays
    /// if the claim's limit then lets every request pass.
    state: Option<Result<(Decision, Decider), ClaimFailure>>,
    /// The bucket's receipt, if what the limit gave may still go back.
    receipt: Option<BucketReceipt>,
    /// What the limit gave, and what goes back if the claim is dropped.
    held: Option<Box<Grant>>,
}

/// Why there is no decision on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimFailure {
    /// The server that has the claim's key did not decide.
    Unreachable,
    /// Redis cannot use the claim's key: its value has another type, Redis refuses the key, or the limiter has no
    /// figures.
    UnusableKey,
}

impl<'p> Claim<'p> {
    /// An open claim, on which `store` is to decide. A closed limit needs no store: its decision is known.
    pub fn new(store: &Store, spec: &'p Arc<LimitSpec>, key: BucketKey, ask: Ask) -> Self {
        let is_closed = ask.algorithm == Algorithm::Closed;
        let question = BucketAsk { spec, key: &key, ask };
        let location = if is_closed { None } else { store.locate(&question) };
        let state = is_closed.then_some(Ok((Decision::NEVER, Decider::Known)));
        Self { spec, key, ask, location, window_left: None, state, receipt: None, held: None }
    }

    /// The question about the claim's bucket.
    pub(crate) fn question(&self) -> BucketAsk<'_> {
        BucketAsk { spec: self.spec, key: &self.key, ask: self.ask }
    }

    /// The limit's decision. `None` before there is one. It stays `None` if Redis does not decide and the limit
    /// then lets every request pass.
    pub fn decision(&self) -> Option<Decision> {
        self.decided().map(|(decision, _)| decision)
    }

    /// Who has decided.
    pub fn decider(&self) -> Option<Decider> {
        self.decided().map(|(_, by)| by)
    }

    /// The decision, and who made it. `None` if there is no decision yet.
    pub(crate) fn decided(&self) -> Option<(Decision, Decider)> {
        self.state?.ok()
    }

    /// The figures of a Redisson limiter that has decided. `None` for every other limit.
    pub fn figures(&self) -> Option<LimiterFigures> {
        match self.decider()? {
            Decider::Limiter(figures) => Some(figures),
            _ => None,
        }
    }

    /// Whether Redis was asked for this request, and has decided.
    pub(crate) fn is_decided_in_redis(&self) -> bool {
        matches!(self.decider(), Some(Decider::Redis | Decider::Limiter(_)))
    }

    /// Whether the process has decided in place of Redis, which is away.
    pub(crate) fn is_without_redis(&self) -> bool {
        let is_here = matches!(self.decider(), Some(Decider::Process | Decider::Shared));
        is_here && self.location.is_some()
    }

    /// Whether the limit is enforced, and refuses.
    pub(super) fn refuses(&self) -> bool {
        let rejects = |it: Decision| !it.outcome.passes();
        self.ask.mode == Mode::Enforce && self.decision().is_some_and(rejects)
    }

    pub(super) fn is_open(&self) -> bool {
        self.state.is_none()
    }

    /// Whether this process is still to decide.
    pub(super) fn is_left_to_process(&self) -> bool {
        match self.failure() {
            None => self.is_open() && self.location.is_none(),
            Some(_) => self.spec.on_store_error == OnStoreError::Local,
        }
    }

    /// Whether the claim has failed, and its limit then rejects the request.
    pub(super) fn rejects_without_redis(&self) -> bool {
        let rejects = self.spec.on_store_error == OnStoreError::Reject;
        rejects && self.ask.mode == Mode::Enforce && self.failure().is_some()
    }

    pub(super) fn failure(&self) -> Option<ClaimFailure> {
        self.state?.err()
    }

    /// Whether nobody has decided yet, and a Redisson limiter is to.
    pub(super) fn awaits_limiter(&self) -> bool {
        self.is_open() && self.location.is_some() && self.question().is_limiter()
    }

    /// To be called when the request goes on. Returns what the request holds until its response ends: a
    /// slot, or tokens that are settled then. Anything else that the limit gave is spent.
    pub fn take_held(&mut self) -> Option<Box<Grant>> {
        if self.is_held_to_the_end() {
            return self.held.take();
        }
        self.spend();
        None
    }

    /// The bucket's receipt. `None` if the tokens cannot go back any more.
    pub fn receipt(&self) -> Option<Receipt> {
        self.held.as_ref()?.receipt()
    }

    /// Nobody is asked: the key is banned for this time, or the bucket never holds as many tokens as the request wants.
    pub(crate) fn refuse(&mut self, retry_after: Option<Duration>) {
        let outcome = Outcome::Reject { retry_after };
        self.decide(Decision { outcome, remaining: 0 }, Decider::Known, None);
    }

    /// Whether both claims ask the same bucket.
    pub(crate) fn asks_as(&self, other: &Self) -> bool {
        let (one, two) = (self.spec, other.spec);
        one.name == two.name && one.window == two.window && self.key == other.key
    }

    /// Takes over the decision on `asked`: this claim has asked the same bucket for both.
    pub(crate) fn decide_as(&mut self, asked: &Self) {
        self.ask = Ask { mode: self.ask.mode, ..asked.ask };
        self.window_left = asked.window_left;
        if let Some((decision, by)) = asked.decided() {
            self.decide(decision, by, None);
        }
    }

    /// Writes a decision. `receipt` is the bucket's receipt, if the tokens may go back.
    pub(super) fn decide(
        &mut self,
        decision: Decision,
        by: Decider,
        receipt: Option<BucketReceipt>,
    ) {
        self.state = Some(Ok((decision, by)));
        (self.receipt, self.held) = (receipt, None);
    }

    /// Writes what a bucket or a limiter has said. `grant` was made before the question.
    pub(super) fn decide_by(&mut self, reply: BucketReply, grant: Option<Box<Grant>>) {
        let receipt = reply.receipt.filter(|_| grant.is_none());
        self.decide(reply.decision, reply.by, receipt);
        self.window_left = reply.window_left;
        match grant {
            Some(mut grant) if !reply.took => grant.was_not_given(),
            grant => self.held = grant,
        }
    }

    /// Writes that there is no decision. What the claim holds goes back.
    pub(super) fn fail(&mut self, failure: ClaimFailure) {
        self.state = Some(Err(failure));
        (self.receipt, self.held) = (None, None);
    }

    /// Makes a grant of the tokens that a bucket has noted. The grant goes back if the request does not go on.
    pub(super) fn hold(&mut self, store: &Arc<Store>, reading: ClockReading) {
        let Some(receipt) = self.receipt.take() else { return };
        let source = match self.decider() {
            Some(Decider::Redis) => Source::Redis(receipt.receipt),
            _ => Source::Process(receipt),
        };
        self.held = Some(self.grant(source, store, reading));
    }

    /// A grant of what `source` gives for the claim. For a slot or permits, the grant is made before Redis is asked: if
    /// the answer is lost, Redis may have given them.
    pub(super) fn grant(
        &self,
        source: Source,
        store: &Arc<Store>,
        reading: ClockReading,
    ) -> Box<Grant> {
        // If no permit to wait was free, the longest wait of this request is zero. A settlement needs the limit's
        // `wait`, because other requests may wait after this one.
        let ask = Ask { max_wait: self.spec.wait, ..self.ask };
        let (store, spec) = (Arc::clone(store), Arc::clone(self.spec));
        let waiting = self.waiting(&source, &store);
        Box::new(Grant { store, spec, key: self.key.clone(), ask, reading, source, waiting })
    }

    /// The moment until which the request waits. `None` if the bucket that has decided has no queue.
    fn waiting(&self, source: &Source, store: &Store) -> Option<WaitingGrant> {
        let Outcome::Delay(wait) = self.decision()?.outcome else { return None };
        let is_here = match source {
            Source::Process(taken) if !taken.from_shared => true,
            Source::Redis(_) => false,
            _ => return None,
        };
        let queue = store.queue_id(&self.question(), is_here);
        Some(WaitingGrant { queue, goes: Instant::now() + wait, queued: None })
    }

    /// The request waits for its moment. `waiter` wakes it when it moves up in the bucket's queue.
    pub(crate) fn join_queue(&mut self, waiter: &Arc<Notify>) {
        if let Some(grant) = &mut self.held {
            grant.join_queue(waiter);
        }
    }

    /// The moment at which this limit lets the request go. `None` if the limit has no queue.
    pub(crate) fn goes(&self) -> Option<Instant> {
        self.held.as_ref()?.goes()
    }

    /// Whether something may go back after the request has gone on: the limit is settled later, or the
    /// claim holds a slot.
    pub(crate) fn is_held_to_the_end(&self) -> bool {
        self.spec.is_settled() || matches!(self.ask.algorithm, Algorithm::Concurrency(_))
    }

    /// Whether what was taken may go back after this verdict.
    pub(super) fn may_come_back(&self, verdict: Verdict) -> bool {
        match verdict {
            Verdict::Pass { wait } => !wait.is_zero() || self.is_held_to_the_end(),
            // Only candidates took. Their tokens stay taken.
            Verdict::Refuse { .. } => false,
        }
    }

    /// What the claim holds cannot go back any more.
    pub(super) fn spend(&mut self) {
        self.receipt = None;
        self.held.take().into_iter().for_each(|mut grant| grant.spend());
    }

    /// Another limit refuses the request. Gives back what the claim holds, and adds it to `remaining`. Returns whether
    /// the claim held something.
    pub(super) fn give_back(&mut self) -> bool {
        let Some(grant) = self.held.take() else { return false };
        if let Some(Ok((Decision { outcome: Outcome::Allow, remaining }, _))) = &mut self.state {
            *remaining += self.ask.cost.get();
        }
        drop(grant);
        true
    }
}

/// The verdict of the enforcing limits together. It names a claim by its index among these.
pub fn verdict<'c, 'p: 'c>(claims: impl IntoIterator<Item = &'c Claim<'p>>) -> Verdict {
    let claims = claims.into_iter().enumerate();
    let enforcing = claims.filter(|(_, claim)| claim.ask.mode == Mode::Enforce);
    Verdict::over(enforcing.filter_map(|(index, claim)| Some((index, claim.decision()?.outcome))))
}
