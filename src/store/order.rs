//! The order in which a request's limits are asked. Read it from top to bottom.
//!
//! 1. A refusal that is known needs no question (`known`).
//! 2. The buckets of this process are asked: those of limits with scope `node`.
//! 3. The buckets in Redis are asked. In a cluster all hash slots are asked at the same time.
//! 4. The Redisson limiters are asked, one after the other.
//! 5. The limits on which Redis did not decide follow `on_store_error`. With `local` this process decides by its share of
//!    the limit, in its own buckets. They live on between outages.
//! 6. If an enforcing limit refuses, what the others gave goes back. Otherwise it is kept.
//!
//! Redisson limiters come last, and those with a key before those without. Once a limit has refused, the next ones only
//! say what they would do, and take nothing. So if the limit of a client refuses, the client takes nothing from a
//! limiter that all clients share.
//!
//! Two hash slots of a cluster are asked at the same time. So one may give tokens although the other refuses. They go
//! back, but until then another request may be refused that could pass. Too much never passes. In a flood this is rare,
//! because its refusals are known.

use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::access::Store;
use super::bucket::Source;
use super::claim::{Claim, ClaimFailure, verdict};
use super::grant::{ClockReading, Grant};
use super::known::{self, Located};
use super::script::{CallAsk, Redis, new_id};
use crate::limit::Mode;
use crate::limit::bucket::{Decider, ReceiptUse};
use crate::limit::call::Verb;
use crate::limit::decide::{PerAsk, takers};
use crate::limit::decision::{Decision, Outcome, Verdict};
use crate::limit::time::{Now, Timestamp};
use crate::limit::waiting::MaxWait;
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
    /// Waits for Redis at most `store.timeout`, and not at all if buckets live in the process. A dropped claim gives
    /// back what it took. If this future is dropped early, tokens taken in Redis go back once Redis has answered. They
    /// are lost if Redis does not answer in time.
    ///
    /// # Errors
    /// If Redis does not decide, and an enforcing limit has `on_store_error = "reject"`.
    pub async fn take(
        self: &Arc<Self>,
        claims: &mut [&mut Claim<'_>],
        reading: ClockReading,
    ) -> Result<(), Unavailable> {
        if claims.iter().all(|claim| claim.location.is_none()) {
            self.take_locally(claims, reading);
            return Ok(());
        }
        if self.decide_as_known(claims, reading) {
            return Ok(());
        }
        let Some(redis) = &self.redis else { return Ok(()) };
        let (store, receipts, deadline) = (self, receipt_use(claims), redis.router.deadline());
        let asking = Asking { store, redis, reading, deadline, receipts };
        // Boxed: otherwise the futures of requests without Redis would also have its size.
        Box::pin(asking.take(claims)).await
    }

    /// Like [`Store::take`], but with the buckets of this process alone.
    pub(crate) fn take_locally(
        self: &Arc<Self>,
        claims: &mut [&mut Claim<'_>],
        reading: ClockReading,
    ) {
        let receipts = receipt_use(claims);
        let verdict = self.decide_here(claims, receipts, self.both(reading.time));
        for claim in claims.iter_mut().filter(|claim| claim.may_come_back(verdict)) {
            claim.hold(self, reading);
        }
    }

    /// Decides on a request whose refusal is known. Returns whether it is.
    fn decide_as_known(&self, claims: &mut [&mut Claim<'_>], reading: ClockReading) -> bool {
        if !claims.iter().all(|claim| may_be_known(claim)) {
            return false;
        }
        let limits = claims.iter().filter_map(|it| Some((it.question(), it.location?)));
        let decisions = self.known.look_up(&self.shared.memory, limits, reading.time);
        let Some(decisions) = decisions else { return false };
        let mut decisions = decisions.into_iter();
        for claim in claims {
            match claim.location.and_then(|_| decisions.next()) {
                Some(decision) => claim.decide(decision, Decider::Known, None),
                None => drop(self.decide_by_look(claim, reading.time)),
            }
        }
        self.shared.known_refusals.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Asks a bucket of this process what it would say, and takes nothing. Returns whether the claim's bucket
    /// is in this process.
    pub(crate) fn decide_by_look(&self, claim: &mut Claim<'_>, now: Timestamp) -> bool {
        let is_here = claim.location.is_none();
        if is_here {
            let decision = self.look_here(&claim.question(), now);
            claim.decide(decision, Decider::Process, None);
        }
        is_here
    }

    /// Lets the buckets of this process decide over these claims together. No claim holds yet what its bucket gave.
    fn decide_here(
        &self,
        claims: &mut [&mut Claim<'_>],
        receipts: ReceiptUse,
        now: Now,
    ) -> Verdict {
        for claim in claims.iter_mut() {
            // All processes share this claim's bucket in Redis. Without Redis, each process enforces its share.
            if claim.failure() == Some(ClaimFailure::Unreachable) {
                claim.ask = self.without_redis(&claim.question()).ask;
            }
        }
        // Most requests have one limit, which needs no lists.
        if let [claim] = claims
            && let Some((reply, verdict)) =
                self.shared.memory.take_one(&claim.question().keyed(), receipts, now)
        {
            claim.decide_by(reply, None);
            return verdict;
        }
        let asks: PerAsk<_> = claims.iter().map(|claim| claim.question().keyed()).collect();
        let (replies, verdict) = self.shared.memory.take(&asks, receipts, now);
        drop(asks);
        for (claim, reply) in claims.iter_mut().zip(replies) {
            claim.decide_by(reply, None);
        }
        verdict
    }
}

/// A request that asks Redis.
struct Asking<'q> {
    store: &'q Arc<Store>,
    redis: &'q Redis,
    reading: ClockReading,
    /// Redis must have answered all calls before this.
    deadline: Instant,
    receipts: ReceiptUse,
}

impl Asking<'_> {
    /// Asks for all claims. Then keeps what the limits gave, or gives it back.
    async fn take(&self, claims: &mut [&mut Claim<'_>]) -> Result<(), Unavailable> {
        let is_away = |claim: &Claim<'_>| claim.location.is_some_and(|it| it.connection.is_none());
        claims.iter_mut().filter(|claim| is_away(claim)).for_each(|claim| self.lose(claim));
        if !claims.iter().any(|claim| claim.rejects_without_redis()) {
            self.ask_process(claims, |claim| claim.is_open());
            self.ask_buckets(claims).await;
            self.ask_limiters(claims).await;
        }
        self.follow_on_store_error(claims)?;
        // Claims that have failed with `on_store_error = "local"` are decided here, after they were counted.
        self.ask_process(claims, |_| true);
        self.keep_or_give_back(claims);
        self.note(claims);
        Ok(())
    }

    /// Asks this process's own buckets. The claims hold what they took until it is known whether another limit refuses.
    fn ask_process(&self, claims: &mut [&mut Claim<'_>], is_due: impl Fn(&Claim<'_>) -> bool) {
        let here = claims.iter_mut().filter(|claim| claim.is_left_to_process() && is_due(claim));
        let mut here: PerAsk<_> = here.map(|claim| &mut **claim).collect();
        if here.is_empty() {
            return;
        }
        // The request may have waited for Redis since `reading`. That older time would set buckets back.
        let now = self.store.both(self.reading.present());
        self.store.decide_here(&mut here, ReceiptUse::Needed, now);
        here.iter_mut().for_each(|claim| claim.hold(self.store, self.reading));
    }

    /// Asks the buckets in Redis. All calls are sent at the same time.
    async fn ask_buckets(&self, claims: &mut [&mut Claim<'_>]) {
        let has_refused = has_refused(claims);
        let is_other_last =
            claims.iter().any(|claim| claim.awaits_limiter() || claim.is_left_to_process());
        let mut calls = calls(claims);
        // A limit that answers later may refuse. Then what a call gives must go back, and that needs receipts.
        let is_last = calls.len() == 1 && !is_other_last;
        let receipts = if is_last { self.receipts } else { ReceiptUse::Needed };
        let asking = calls.iter_mut().map(|call| async {
            self.call(call, has_refused, receipts).await;
            if !is_last {
                // The client may leave before the other calls are answered. Then this call's tokens go back.
                call.iter_mut().for_each(|claim| claim.hold(self.store, self.reading));
            }
        });
        all(asking).await;
    }

    /// Asks Redis for claims whose keys share a hash slot. If one key has another type, or the hash slot moves, the call
    /// takes nothing, and only the answer says so. Then each claim that is still open has its own call.
    async fn call(&self, claims: &mut [&mut Claim<'_>], has_refused: bool, receipts: ReceiptUse) {
        self.call_once(claims, has_refused, receipts, None).await;
        for index in 0..claims.len() {
            if !claims.get(index).is_some_and(|claim| claim.is_open()) {
                continue;
            }
            let has_refused = has_refused || self::has_refused(claims);
            let Some(claim) = claims.get_mut(index) else { continue };
            let (one, by) = (slice::from_mut(claim), Some(self.deadline));
            // Boxed, because few requests come here, and others need no room for this future.
            Box::pin(self.call_once(one, has_refused, ReceiptUse::Needed, by)).await;
            claim.hold(self.store, self.reading);
        }
    }

    /// Sends one call. Redis must answer within `store.timeout`, or `by` this time.
    async fn call_once(
        &self,
        claims: &mut [&mut Claim<'_>],
        has_refused: bool,
        receipts: ReceiptUse,
        by: Option<Instant>,
    ) {
        let grants: PerAsk<_> =
            claims.iter().map(|claim| self.grant_slot(claim, verb(claim, has_refused))).collect();
        let asks = claims.iter().zip(&grants).map(|(claim, grant)| {
            let holder = grant.as_ref().and_then(|grant| grant.holder());
            CallAsk { asked: claim.question(), verb: verb(claim, has_refused), holder }
        });
        let asks: PerAsk<_> = asks.collect();
        let location = claims.first().and_then(|claim| claim.location).unwrap_or_default();
        let asking = self.redis.ask(location.hash_slot, &asks, receipts);
        let answer = match by {
            None => asking.await,
            Some(by) => timeout_at(by, asking).await.unwrap_or(Err(CallError::TimedOut)),
        };
        drop(asks);
        match answer {
            Ok(replies) => {
                let is_void = replies.iter().any(Option::is_none);
                for ((claim, reply), grant) in claims.iter_mut().zip(replies).zip(grants) {
                    match reply {
                        None => claim.fail(ClaimFailure::UnusableKey),
                        // One key is unusable, so no claim of the call took anything.
                        Some(_) if is_void => {}
                        Some(reply) => claim.decide_by(reply, grant),
                    }
                }
            }
            Err(error) if error.is_of_several_keys() && claims.len() > 1 => {}
            // Redis may have carried out the call. Then its tokens are lost: to ask Redis about them would take the
            // time that has just run out.
            Err(_) => claims.iter_mut().for_each(|claim| self.lose(claim)),
        }
    }

    /// A grant of a slot, made before Redis is asked for the slot. `None` for all but concurrency limits.
    fn grant_slot(&self, claim: &Claim<'_>, verb: Verb) -> Option<Box<Grant>> {
        let slot = (verb == Verb::Take).then(|| self.redis.name_slot(&claim.question()))??;
        Some(claim.grant(Source::Slot(slot), self.store, self.reading))
    }

    /// Asks the Redisson limiters. Those with a key come first: they refuse a single client, and the others would then
    /// take nothing.
    async fn ask_limiters(&self, claims: &mut [&mut Claim<'_>]) {
        for has_key in [true, false] {
            for index in 0..claims.len() {
                let has_refused = has_refused(claims);
                let Some(claim) = claims.get_mut(index) else { continue };
                let verb = if claim.ask.takes { verb(claim, has_refused) } else { Verb::Look };
                if claim.awaits_limiter() && has_key != claim.spec.key.sources.is_empty() {
                    // Boxed: otherwise the futures of all other limits would also have its size.
                    Box::pin(self.ask_limiter(claim, verb)).await;
                }
            }
        }
    }

    async fn ask_limiter(&self, claim: &mut Claim<'_>, verb: Verb) {
        let id = new_id();
        let grant = || claim.grant(Source::Limiter(id), self.store, self.reading);
        // The grant is made before Redis is asked. If the answer is lost, its permits go back.
        let grant = (verb == Verb::Take).then(grant);
        match self.redis.limiters.ask(&claim.question(), verb, &id, self.deadline).await {
            Ok(reply) => claim.decide_by(reply, grant),
            Err(error) => {
                // After these errors it is sure that the script took nothing. After any other error it may have taken
                // permits: they go back.
                if let CallError::Away | CallError::NotConnected | CallError::UnusableKey(_) = error
                {
                    grant.into_iter().for_each(|mut grant| grant.was_not_given());
                }
                match error.is_of_one_key() {
                    true => claim.fail(ClaimFailure::UnusableKey),
                    false => self.lose(claim),
                }
            }
        }
    }

    /// The server that has the claim's key has not decided on it.
    fn lose(&self, claim: &mut Claim<'_>) {
        claim.fail(ClaimFailure::Unreachable);
        self.store.known.forget(&self.store.shared.memory, &claim.question());
    }

    /// Some claims may have failed. With `on_store_error = "local"` or `"allow"` the request goes on. It counts once
    /// for the log lines of an outage, also if several servers are away.
    ///
    /// # Errors
    /// If a limit has `on_store_error = "reject"`. What the claims hold goes back.
    fn follow_on_store_error(&self, claims: &mut [&mut Claim<'_>]) -> Result<(), Unavailable> {
        let by = claims.iter().position(|claim| claim.rejects_without_redis());
        let is_missed =
            |claim: &&&mut Claim<'_>| claim.failure() == Some(ClaimFailure::Unreachable);
        let missed = claims.iter().find(is_missed).and_then(|claim| claim.location);
        if let Some(location) = missed {
            self.redis.router.nodes.count_without(location.hash_slot, by.is_some());
        }
        let Some(by) = by else { return Ok(()) };
        claims.iter_mut().for_each(|claim| self.give_back(claim));
        Err(Unavailable { by })
    }

    /// All limits have decided. If one refuses, what the others gave goes back. What cannot go back any more is spent.
    fn keep_or_give_back(&self, claims: &mut [&mut Claim<'_>]) {
        let verdict = verdict(claims.iter().map(|claim| &**claim));
        let outcome = |claim: &Claim<'_>| claim.decision().map_or(Outcome::Allow, |it| it.outcome);
        let outcomes: PerAsk<_> = claims.iter().map(|it| (it.ask.mode, outcome(it))).collect();
        for (claim, takes) in claims.iter_mut().zip(takers(outcomes.into_iter())) {
            if !takes {
                self.give_back(claim);
            } else if claim.may_come_back(verdict) {
                claim.hold(self.store, self.reading);
            } else {
                claim.spend();
            }
        }
    }

    fn give_back(&self, claim: &mut Claim<'_>) {
        claim.hold(self.store, self.reading);
        if claim.give_back() {
            // A refusal that was noted meanwhile may not hold any more.
            self.store.known.forget(&self.store.shared.memory, &claim.question());
        }
    }

    /// Notes what Redis has said, for known refusals.
    fn note(&self, claims: &[&mut Claim<'_>]) {
        if !claims.iter().all(|claim| may_be_known(claim)) {
            return;
        }
        let in_redis = claims.iter().filter(|claim| claim.location.is_some());
        let answers: Option<PerAsk<_>> = in_redis.map(|claim| redis_answer(claim)).collect();
        if let Some(answers) = answers {
            self.store.known.note(&self.store.shared.memory, &answers, self.reading.time);
        }
    }
}

/// Whether receipts are noted for these claims. They are needed if a request may be held and its client
/// may leave meanwhile, if a limit is settled later or holds a slot, and if the receipt tells the begin of a window.
fn receipt_use(claims: &[&mut Claim<'_>]) -> ReceiptUse {
    let comes_back = |claim: &&mut Claim<'_>| {
        claim.ask.max_wait > MaxWait::NONE
            || claim.is_held_to_the_end()
            || claim.ask.algorithm.has_rolling_windows()
    };
    if claims.iter().any(comes_back) { ReceiptUse::Needed } else { ReceiptUse::Unneeded }
}

/// Whether a refusal of the request may be known, as far as this limit says. A candidate is always asked: it may take
/// although its limit refuses.
fn may_be_known(claim: &Claim<'_>) -> bool {
    match claim.location {
        None => claim.ask.mode != Mode::Candidate,
        Some(_) => known::may_be_known(&claim.question()),
    }
}

/// What a bucket in Redis has decided on a claim.
fn redis_answer<'r>(claim: &'r Claim<'_>) -> Option<(Located<'r>, Decision)> {
    let decision = claim.decision().filter(|_| claim.decider() == Some(Decider::Redis))?;
    Some(((claim.question(), claim.location?), decision))
}

/// Whether a limit has refused the request already.
fn has_refused(claims: &[&mut Claim<'_>]) -> bool {
    claims.iter().any(|claim| claim.refuses())
}

/// How the next limit is asked: once a limit has refused, only candidates take.
fn verb(claim: &Claim<'_>, has_refused: bool) -> Verb {
    match has_refused && claim.ask.mode != Mode::Candidate {
        true => Verb::Look,
        false => Verb::Take,
    }
}

/// The open claims on buckets in Redis, by the hash slots of their keys.
fn calls<'c, 'p>(claims: &'c mut [&mut Claim<'p>]) -> PerAsk<PerAsk<&'c mut Claim<'p>>> {
    let mut calls: PerAsk<(HashSlot, PerAsk<&'c mut Claim<'p>>)> = PerAsk::new();
    for claim in claims.iter_mut().filter(|claim| claim.is_open() && !claim.awaits_limiter()) {
        let Some(location) = claim.location else { continue };
        match calls.iter_mut().find(|call| call.0 == location.hash_slot) {
            Some((_, call)) => call.push(claim),
            None => calls.push((location.hash_slot, PerAsk::from_iter([&mut **claim]))),
        }
    }
    calls.into_iter().map(|(_, call)| call).collect()
}

/// Waits for all answers. One call is the usual case.
async fn all(mut asking: impl ExactSizeIterator<Item = impl Future<Output = ()>>) {
    match (asking.len(), asking.next()) {
        (1, Some(asking)) => asking.await,
        (_, first) => {
            join_all(first.into_iter().chain(asking)).await;
        }
    }
}

#[cfg(test)]
mod tests;
