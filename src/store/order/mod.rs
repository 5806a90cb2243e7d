//! The order in which a request's limits are asked. Read it from top to bottom.
//!
//! 1. A place that is kept in a bucket's queue is taken (`queue`).
//! 2. A refusal that is known needs no question.
//! 3. The buckets of this process are asked: the limits of scope `node`.
//! 4. The buckets in Redis are asked. In a cluster the calls for all slots are sent at once.
//! 5. The Redisson limiters are asked, one after the other.
//! 6. If an enforcing limit refuses, what the others gave goes back. Otherwise it is kept.
//!
//! What is exact and the client's own comes first. Once a limit has refused, those that are asked later only say what
//! they would do, and take nothing. So a client that its own limit refuses takes nothing from a limiter that it shares
//! with others. Between two slots of a cluster it does for a moment: never too much passes, but until the tokens are
//! back another request may be refused. A flood hardly does so, because its refusals are known.
//!
//! Where Redis, or the server that has a key, does not decide, the limit follows its `on_store_error`. With `local`
//! this process decides with its share, in buckets of its own. `carry_over` writes into them what Redis says.

mod calls;
mod claims;
mod failed;

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, timeout_at};

use self::calls::{Grouping, SlotCall, all, calls, slot_ask};
use self::claims::{answers_after_redis, looked_up, noting, open, redis_answer, takes, verb};
use self::failed::{keep_candidates_with_their_limits, left_to_process};
use super::access::Store;
use super::bucket::{BucketReceipt, ReceiptUse, Source};
use super::carry_over;
use super::claim::{Claim, ClaimFailure, Decider, Party, verdict};
use super::grant::{Grant, Moment};
use super::known::{Asker, RefusalLookup};
use super::redis::{Redis, Verb, new_id};
use crate::limit::Mode;
use crate::limit::decide::PerAsk;
use crate::limit::decision::Verdict;
use crate::limit::time::Now;
use crate::limit::waiting::MaxWait;
use crate::plan::OnStoreError;
use crate::redis::{CallError, HashSlot};

/// Redis does not decide, and an enforcing limit has `on_store_error = "reject"`. What other limits gave
/// goes back. Tokens of a call that Redis did not answer in time may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store is out of reach, and a limit rejects requests then")]
pub struct Unavailable {
    /// The index of that limit's claim among the claims that were given to [`Store::take`].
    pub by: usize,
}

impl Store {
    /// Decides over these claims together: every limit that allows takes, or none does. The decisions are
    /// written into the claims, and [`verdict`] combines them.
    ///
    /// Waits for Redis at most `store.timeout`, and not at all where buckets live in the process. A dropped
    /// claim gives back what it took. Where this future is dropped early, tokens taken in Redis are given
    /// back once Redis has answered, and lost where Redis does not answer in time.
    ///
    /// # Errors
    /// Where Redis does not decide, and an enforcing limit has `on_store_error = "reject"`.
    pub async fn take(
        self: &Arc<Self>,
        claims: &mut [&mut Claim<'_>],
        moment: Moment,
    ) -> Result<(), Unavailable> {
        if self.take_kept(claims, moment) {
            // Boxed, because a place is seldom kept, and the others need no room for this future.
            return Box::pin(self.take_open(&mut open(claims), moment)).await;
        }
        self.take_open(claims, moment).await
    }

    /// [`Store::take`] for open claims.
    async fn take_open(
        self: &Arc<Self>,
        claims: &mut [&mut Claim<'_>],
        moment: Moment,
    ) -> Result<(), Unavailable> {
        match self.take_without_a_question(claims, moment) {
            FirstStep::Decided => Ok(()),
            // Boxed: otherwise the futures of requests without Redis would also have its size.
            step => Box::pin(self.take_with_redis(claims, moment, step)).await,
        }
    }

    /// Like [`Store::take`], but with the buckets of this process alone.
    pub(crate) fn take_locally(self: &Arc<Self>, claims: &mut [&mut Claim<'_>], moment: Moment) {
        match self.take_kept(claims, moment) {
            true => self.take_open_locally(&mut open(claims), moment),
            false => self.take_open_locally(claims, moment),
        }
    }

    /// Gives the request the places that this process keeps in the queues of its buckets. Returns whether there are
    /// any.
    fn take_kept(self: &Arc<Self>, claims: &mut [&mut Claim<'_>], moment: Moment) -> bool {
        let may_wait = |claim: &Claim<'_>| {
            let may_wait = claim.ask.max_wait > MaxWait::NONE && claim.ask.mode == Mode::Enforce;
            may_wait && claim.is_open()
        };
        if !claims.iter().any(|claim| may_wait(claim)) || !self.shared.queues.have_kept() {
            return false;
        }
        let mut has_place = false;
        for claim in claims.iter_mut().filter(|claim| may_wait(claim)) {
            has_place |= claim.take_kept(self, moment);
        }
        if has_place {
            claims.iter_mut().for_each(|claim| claim.waits_for_another = true);
        }
        has_place
    }

    fn take_open_locally(self: &Arc<Self>, claims: &mut [&mut Claim<'_>], moment: Moment) {
        let noting = noting(claims);
        let verdict = self.decide_here(claims, noting, self.both(moment.time));
        for claim in claims.iter_mut().filter(|claim| claim.may_come_back(verdict)) {
            claim.hold(self, moment);
        }
    }

    /// Asks a bucket of this process what it would say, and takes nothing. Returns whether the claim's bucket
    /// is in this process.
    pub(crate) fn look_here(&self, claim: &mut Claim<'_>, now: Now) -> bool {
        let is_here = claim.party == Party::Process;
        if is_here {
            let decision = self.shared.memory.look(&claim.question(), now);
            claim.decide(decision, Decider::Process, None);
        }
        is_here
    }

    /// Decides where this needs no question to Redis.
    fn take_without_a_question(
        self: &Arc<Self>,
        claims: &mut [&mut Claim<'_>],
        moment: Moment,
    ) -> FirstStep<'_> {
        if claims.iter().all(|claim| claim.party == Party::Process) {
            self.take_open_locally(claims, moment);
            return FirstStep::Decided;
        }
        let limits = claims.iter().map(|claim| looked_up(claim));
        match self.known.look_up(&self.shared.memory, limits, moment.time) {
            RefusalLookup::Ask(asker) => FirstStep::Ask(asker),
            RefusalLookup::Wait(answered) => FirstStep::Wait(answered),
            RefusalLookup::Refused(decisions) => {
                for (claim, decision) in claims.iter_mut().zip(decisions) {
                    match decision {
                        Some(decision) => claim.decide(decision, Decider::Known, None),
                        None => drop(self.look_here(claim, self.both(moment.time))),
                    }
                }
                self.shared.known_refusals.fetch_add(1, Ordering::Relaxed);
                FirstStep::Decided
            }
        }
    }

    /// Waits while another request asks for this one, and asks if that does not help.
    async fn take_with_redis(
        self: &Arc<Self>,
        claims: &mut [&mut Claim<'_>],
        mut moment: Moment,
        mut step: FirstStep<'_>,
    ) -> Result<(), Unavailable> {
        let Some(redis) = &self.redis else { return Ok(()) };
        let deadline = redis.router.deadline();
        let mut has_waited = false;
        let asker = loop {
            match step {
                FirstStep::Decided => return Ok(()),
                FirstStep::Ask(asker) => break asker,
                FirstStep::Wait(answered) => {
                    has_waited = true;
                    // Boxed, because few requests wait, and the others need no room for this future.
                    if Box::pin(timeout_at(deadline, answered)).await.is_err() {
                        break None;
                    }
                    moment = Moment::now(moment.present());
                    step = self.take_without_a_question(claims, moment);
                }
            }
        };
        let noting = noting(claims);
        let store = self;
        let mut asking =
            Asking { store, redis, moment, asker, deadline, has_waited, noting, met: None };
        let taken = asking.take(claims).await;
        asking.count(taken);
        taken
    }

    /// Lets the buckets of this process decide over these claims together.
    fn decide_here(&self, claims: &mut [&mut Claim<'_>], noting: ReceiptUse, now: Now) -> Verdict {
        for claim in claims.iter_mut() {
            // Its bucket is in Redis, as are those of the other processes. Each process enforces a share.
            if claim.failure() == Some(ClaimFailure::Unreachable) {
                let processes = self.shared.processes.load(Ordering::Relaxed);
                claim.ask.algorithm = claim.ask.algorithm.share(processes, claim.ask.cost);
            }
        }
        // Most requests have one limit, which needs no lists.
        if let [claim] = claims
            && let Some((answer, verdict)) =
                self.shared.memory.take_one(&claim.question(), noting, now)
        {
            claim.decide(answer.decision, Decider::Process, answer.taken);
            return verdict;
        }
        let asks: PerAsk<_> = claims.iter().map(|claim| claim.question()).collect();
        let (answers, verdict) = self.shared.memory.take(&asks, noting, now);
        drop(asks);
        for (claim, answer) in claims.iter_mut().zip(answers) {
            claim.decide(answer.decision, Decider::Process, answer.taken);
        }
        verdict
    }
}

/// What becomes of a request before Redis is asked.
enum FirstStep<'k> {
    /// All its claims are decided.
    Decided,
    /// Redis is to be asked, by the `Asker` if other requests wait for the answer.
    Ask(Option<Asker<'k>>),
    /// Another request is asking Redis. Then comes the first step again.
    Wait(OwnedNotified),
}

/// A request that asks Redis.
struct Asking<'q> {
    store: &'q Arc<Store>,
    redis: &'q Redis,
    moment: Moment,
    /// `Some` if other requests wait for the answer to this request.
    asker: Option<Asker<'q>>,
    /// By when Redis must have answered all calls.
    deadline: Instant,
    /// Whether a part of the time has gone by, with a question of this request or of another one.
    has_waited: bool,
    noting: ReceiptUse,
    /// The slot of a claim on which Redis should have decided and did not.
    met: Option<HashSlot>,
}

impl Asking<'_> {
    async fn take(&mut self, claims: &mut [&mut Claim<'_>]) -> Result<(), Unavailable> {
        let is_away = |claim: &Claim<'_>| claim.place().is_some_and(|it| it.connection.is_none());
        claims.iter_mut().filter(|claim| is_away(claim)).for_each(|claim| self.lose(claim));
        self.follow_on_store_error(claims)?;
        let is_for_redis = |claim: &Claim<'_>| claim.is_open() && claim.party != Party::Process;
        if !claims.iter().any(|claim| is_for_redis(claim)) {
            let moment = Moment::now(self.moment.present());
            self.store.take_open_locally(&mut left_to_process(claims), moment);
            return Ok(());
        }
        if let Err(rejected) = self.ask_all(claims).await {
            claims.iter_mut().for_each(|claim| self.give_back(claim));
            return Err(rejected);
        }
        self.keep_or_give_back(claims);
        self.note(claims);
        Ok(())
    }

    async fn ask_all(&mut self, claims: &mut [&mut Claim<'_>]) -> Result<(), Unavailable> {
        self.ask_process(claims);
        self.ask_slots(claims).await?;
        self.ask_limiters(claims).await?;
        // The claims that Redis has left to this process meanwhile.
        self.ask_process(claims);
        Ok(())
    }

    /// Asks this process's own buckets. The claims hold what they took until it is known whether another limit refuses.
    fn ask_process(&self, claims: &mut [&mut Claim<'_>]) {
        let mut here = left_to_process(claims);
        if here.is_empty() {
            return;
        }
        // The request may have waited for Redis since `moment.time`. An older time would set buckets back.
        let now = self.store.both(self.moment.present());
        self.store.decide_here(&mut here, ReceiptUse::Needed, now);
        here.iter_mut().for_each(|claim| claim.hold(self.store, self.moment));
    }

    /// Asks the buckets in Redis.
    async fn ask_slots(&mut self, claims: &mut [&mut Claim<'_>]) -> Result<(), Unavailable> {
        let verb = verb(claims);
        self.call_slots(claims, verb, Grouping::BySlot).await;
        self.follow_on_store_error(claims)?;
        // A call takes nothing if one of its keys has another type, or if its slot moves. Only the answer tells.
        self.call_slots(claims, verb, Grouping::Apart).await;
        self.follow_on_store_error(claims)
    }

    /// Asks for the open claims in Redis, by calls that are sent at once. A claim stays open if its call was not
    /// carried out because of another claim.
    async fn call_slots(&mut self, claims: &mut [&mut Claim<'_>], verb: Verb, grouping: Grouping) {
        let is_other_last = claims.iter().any(|claim| answers_after_redis(claim));
        let mut calls = calls(claims, grouping);
        if calls.is_empty() {
            return;
        }
        let has_waited = mem::replace(&mut self.has_waited, true);
        // What a call gives must go back if another limit, which answers later, refuses.
        let is_last = calls.len() == 1 && !is_other_last && grouping == Grouping::BySlot;
        let noting = if is_last { self.noting } else { ReceiptUse::Needed };
        let asking = calls.iter_mut().map(|call| async {
            self.call_slot(call, verb, noting, has_waited).await;
            if !is_last {
                // The client may leave before the other calls are answered.
                call.iter_mut().for_each(|claim| claim.hold(self.store, self.moment));
            }
        });
        all(asking).await;
    }

    /// Asks one slot for these claims.
    async fn call_slot(
        &self,
        call: &mut SlotCall<'_, '_>,
        verb: Verb,
        noting: ReceiptUse,
        has_waited: bool,
    ) {
        let grants: PerAsk<_> = call.iter().map(|claim| self.grant_slot(claim, verb)).collect();
        let asks: PerAsk<_> = call.iter().zip(&grants).filter_map(slot_ask).collect();
        let asking = self.redis.ask(&asks, verb, noting);
        let answer = match has_waited {
            // The call itself has the same deadline.
            false => asking.await,
            true => timeout_at(self.deadline, asking).await.unwrap_or(Err(CallError::TimedOut)),
        };
        drop(asks);
        match answer {
            Ok(replies) => {
                let is_void = replies.iter().any(|reply| reply.decision.is_none());
                for ((claim, reply), grant) in call.iter_mut().zip(replies).zip(grants) {
                    match (reply.decision, grant.filter(|_| reply.took)) {
                        (None, _) => claim.fail(ClaimFailure::UnusableKey),
                        // Nobody took anything.
                        _ if is_void => {}
                        (Some(decision), Some(grant)) => {
                            claim.decide_and_hold(decision, Decider::Redis, grant);
                        }
                        (Some(decision), None) => {
                            let receipt = reply.receipt.map(BucketReceipt::of);
                            claim.decide(decision, Decider::Redis, receipt);
                        }
                    }
                }
            }
            Err(error) if error.is_of_several_keys() && call.len() > 1 => {}
            // Redis may have carried out the call, and then its tokens are lost. To ask Redis about them
            // would take the time that has just run out.
            Err(_) => call.iter_mut().for_each(|claim| self.lose(claim)),
        }
    }

    /// A slot of a concurrency limit is held before Redis is asked for it. `None` for all other limits.
    fn grant_slot(&self, claim: &Claim<'_>, verb: Verb) -> Option<Box<Grant>> {
        let slot = (verb == Verb::Take).then(|| self.redis.name_slot(&claim.question()))??;
        Some(claim.grant(Source::Slot(slot), self.store, self.moment))
    }

    /// Asks the Redisson limiters. Those with a key come first: their refusals are the client's own.
    async fn ask_limiters(&mut self, claims: &mut [&mut Claim<'_>]) -> Result<(), Unavailable> {
        for has_key in [true, false] {
            for place in 0..claims.len() {
                let verb = verb(claims);
                let Some(claim) = claims.get_mut(place) else { continue };
                let is_limiter = claim.is_open() && matches!(claim.party, Party::Limiter(_));
                if is_limiter && has_key != claim.spec.key.sources.is_empty() {
                    // Boxed: otherwise the futures of all other limits would also have its size.
                    Box::pin(self.ask_limiter(claim, verb)).await;
                }
            }
        }
        self.follow_on_store_error(claims)
    }

    async fn ask_limiter(&self, claim: &mut Claim<'_>, verb: Verb) {
        let id = new_id();
        let grant = || claim.grant(Source::Limiter(id), self.store, self.moment);
        // The permits are held before Redis is asked. If the answer is lost, they go back.
        let grant = (verb == Verb::Take).then(grant);
        match self.redis.limiters.ask(&claim.question(), verb, &id, self.deadline).await {
            Ok((decision, figures)) => match grant {
                Some(grant) if decision.outcome.passes() => {
                    claim.decide_and_hold(decision, Decider::Limiter(figures), grant);
                }
                grant => {
                    grant.into_iter().for_each(|grant| grant.was_not_given());
                    claim.decide(decision, Decider::Limiter(figures), None);
                }
            },
            Err(error) => {
                // Otherwise the script may have taken permits before it failed, or its answer is lost. They go back.
                if let CallError::Away | CallError::NotConnected | CallError::UnusableKey(_) = error
                {
                    grant.into_iter().for_each(|grant| grant.was_not_given());
                }
                match error.is_of_one_key() {
                    true => claim.fail(ClaimFailure::UnusableKey),
                    false => self.lose(claim),
                }
            }
        }
    }

    /// Redis did not decide on these claims that have failed. Nothing is decided here: with `local` and `allow` the
    /// request goes on.
    ///
    /// # Errors
    /// Where a limit has `on_store_error = "reject"`.
    fn follow_on_store_error(&mut self, claims: &mut [&mut Claim<'_>]) -> Result<(), Unavailable> {
        keep_candidates_with_their_limits(claims);
        for (by, claim) in claims.iter().enumerate() {
            let Some(failure) = claim.failure() else { continue };
            let place = claim.place().filter(|_| failure == ClaimFailure::Unreachable);
            let slot = place.map(|place| place.hash_slot);
            if (claim.spec.on_store_error, claim.ask.mode) == (OnStoreError::Reject, Mode::Enforce)
            {
                self.met = slot;
                return Err(Unavailable { by });
            }
            self.met = self.met.or(slot);
        }
        Ok(())
    }

    /// The server that has this claim's key did not decide.
    fn lose(&self, claim: &mut Claim<'_>) {
        claim.fail(ClaimFailure::Unreachable);
        self.store.known.forget(&self.store.shared.memory, &claim.question());
    }

    /// All limits have decided. Keeps what cannot come back any more, and gives back what a limit gave for a request
    /// that another limit refuses.
    fn keep_or_give_back(&self, claims: &mut [&mut Claim<'_>]) {
        let verdict = verdict(claims.iter().map(|claim| &**claim));
        let takes = takes(claims);
        for (claim, takes) in claims.iter_mut().zip(takes) {
            if !takes {
                self.give_back(claim);
            } else if claim.may_come_back(verdict) {
                claim.hold(self.store, self.moment);
            } else {
                claim.spend_unless_it_may_come_back(verdict);
            }
        }
    }

    fn give_back(&self, claim: &mut Claim<'_>) {
        claim.hold(self.store, self.moment);
        if claim.give_back() {
            // A refusal that was noted meanwhile may not hold any more.
            self.store.known.forget(&self.store.shared.memory, &claim.question());
        }
    }

    /// Notes what Redis has said, for later requests and for the time when Redis is away.
    fn note(&self, claims: &[&mut Claim<'_>]) {
        let (shared, moment) = (&self.store.shared, self.moment);
        let answers: PerAsk<_> = claims.iter().filter_map(|claim| redis_answer(claim)).collect();
        let asker = self.asker.as_ref().filter(|_| !claims.iter().any(|claim| claim.refuses()));
        self.store.known.note(&shared.memory, &answers, moment.time, asker);
        carry_over::note(shared, claims, moment.present());
    }

    /// Counts the request for the log lines of an outage. A request counts once, also where several servers are
    /// away.
    fn count(&self, taken: Result<(), Unavailable>) {
        let (Some(slot), Some(nodes)) = (self.met, &self.store.shared.redis) else { return };
        match taken {
            Ok(()) => nodes.health_of(slot).decided_without(),
            Err(_) => nodes.health_of(slot).refused_without(),
        }
    }
}

#[cfg(test)]
mod tests;
