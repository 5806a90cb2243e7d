//! The order in which a request's limits are asked. Read it from top to bottom.
//!
//! 1. A refusal that is known needs no question (`known`).
//! 2. The buckets of this process are asked (`here`): those of limits with scope `node`.
//! 3. The buckets in Redis are asked (`asking`). In a cluster all hash slots are asked at the same time.
//! 4. The Redisson limiters are asked, one after the other.
//! 5. If an enforcing limit refuses, what the others gave goes back. Otherwise it is kept.
//!
//! Redisson limiters come last, and those with a key before those without. Once a limit has refused, the next ones only
//! say what they would do, and take nothing. So if the limit of a client refuses, the client takes nothing from a
//! limiter that all clients share.
//!
//! Two hash slots of a cluster are asked at the same time. So one may give tokens although the other refuses. They go
//! back, but until then another request may be refused that could pass. Too much never passes. In a flood this is rare,
//! because its refusals are known.
//!
//! If Redis does not decide on a claim, the claim has failed, and its limit follows `on_store_error` (`failed`). With
//! `local` this process decides by its share of the limit, in its own buckets. They live on between outages.

mod asking;
mod failed;
mod here;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use self::asking::{Asking, Grouping};
pub use self::failed::Unavailable;
use self::failed::{follow_on_store_error, left_to_process, lose};
use self::here::receipt_use;
use super::access::Store;
use super::bucket::{ReceiptUse, RedisAnswer, RedisAsk};
use super::claim::{Claim, Decider, Party, verdict};
use super::grant::Moment;
use super::known;
use crate::limit::Mode;
use crate::limit::decide::{PerAsk, takers};
use crate::limit::decision::Outcome;

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
        moment: Moment,
    ) -> Result<(), Unavailable> {
        if claims.iter().all(|claim| claim.party == Party::Process) {
            self.take_locally(claims, moment);
            return Ok(());
        }
        if self.decide_as_known(claims, moment) {
            return Ok(());
        }
        // Boxed: otherwise the futures of requests without Redis would also have its size.
        Box::pin(self.take_with_redis(claims, moment)).await
    }

    /// Decides on a request whose refusal is known. Returns whether it is.
    fn decide_as_known(&self, claims: &mut [&mut Claim<'_>], moment: Moment) -> bool {
        if !claims.iter().all(|claim| may_be_known(claim)) {
            return false;
        }
        let limits = claims.iter().filter_map(|claim| redis_ask(claim));
        let decisions = self.known.look_up(&self.shared.memory, limits, moment.time);
        let Some(decisions) = decisions else { return false };
        let mut decisions = decisions.into_iter();
        for claim in claims {
            match claim.location().and_then(|_| decisions.next()) {
                Some(decision) => claim.decide(decision, Decider::Known, None),
                None => drop(self.look_here(claim, self.both(moment.time))),
            }
        }
        self.shared.known_refusals.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Asks Redis.
    async fn take_with_redis(
        self: &Arc<Self>,
        claims: &mut [&mut Claim<'_>],
        moment: Moment,
    ) -> Result<(), Unavailable> {
        let Some(redis) = &self.redis else { return Ok(()) };
        let (store, receipts, deadline) = (self, receipt_use(claims), redis.router.deadline());
        let (has_waited, missed) = (false, None);
        let mut asking = Asking { store, redis, moment, deadline, has_waited, receipts, missed };
        let taken = asking.take(claims).await;
        asking.count(taken);
        taken
    }
}

impl Asking<'_> {
    /// Asks for all claims. Then keeps what the limits gave, or gives it back.
    async fn take(&mut self, claims: &mut [&mut Claim<'_>]) -> Result<(), Unavailable> {
        let is_away =
            |claim: &Claim<'_>| claim.location().is_some_and(|it| it.connection.is_none());
        claims.iter_mut().filter(|claim| is_away(claim)).for_each(|claim| lose(self.store, claim));
        follow_on_store_error(claims, &mut self.missed)?;
        let is_for_redis = |claim: &Claim<'_>| claim.is_open() && claim.party != Party::Process;
        if !claims.iter().any(|claim| is_for_redis(claim)) {
            let moment = Moment::now(self.moment.present());
            self.store.take_locally(&mut left_to_process(claims), moment);
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

    /// Asks in the order that the head of this file says.
    async fn ask_all(&mut self, claims: &mut [&mut Claim<'_>]) -> Result<(), Unavailable> {
        self.ask_process(claims);
        self.ask_buckets(claims).await?;
        self.ask_limiters(claims).await;
        follow_on_store_error(claims, &mut self.missed)?;
        // Redis may not have decided on some claims. Those with `on_store_error = "local"` are decided here.
        self.ask_process(claims);
        Ok(())
    }

    /// Asks this process's own buckets. The claims hold what they took until it is known whether another limit refuses.
    fn ask_process(&self, claims: &mut [&mut Claim<'_>]) {
        let mut here = left_to_process(claims);
        if here.is_empty() {
            return;
        }
        // The request may have waited for Redis since `moment.time`. That older time would set buckets back.
        let now = self.store.both(self.moment.present());
        self.store.decide_here(&mut here, ReceiptUse::Needed, now);
        here.iter_mut().for_each(|claim| claim.hold(self.store, self.moment));
    }

    /// Asks the buckets in Redis.
    async fn ask_buckets(&mut self, claims: &mut [&mut Claim<'_>]) -> Result<(), Unavailable> {
        self.call_all(claims, Grouping::ByHashSlot).await;
        follow_on_store_error(claims, &mut self.missed)?;
        // If one key of a call has another type, or its hash slot moves, the call takes nothing. Only the answer says
        // so. Then each claim has its own call.
        self.call_all(claims, Grouping::Apart).await;
        follow_on_store_error(claims, &mut self.missed)
    }

    /// All limits have decided. If one refuses, what the others gave goes back. What cannot go back any more is spent.
    fn keep_or_give_back(&self, claims: &mut [&mut Claim<'_>]) {
        let verdict = verdict(claims.iter().map(|claim| &**claim));
        let takes = takes(claims);
        for (claim, takes) in claims.iter_mut().zip(takes) {
            if !takes {
                self.give_back(claim);
            } else if claim.may_come_back(verdict) {
                claim.hold(self.store, self.moment);
            } else {
                claim.spend();
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

    /// Notes what Redis has said, for known refusals.
    fn note(&self, claims: &[&mut Claim<'_>]) {
        if !claims.iter().all(|claim| may_be_known(claim)) {
            return;
        }
        let in_redis = claims.iter().filter(|claim| claim.location().is_some());
        let answers: Option<PerAsk<_>> = in_redis.map(|claim| redis_answer(claim)).collect();
        if let Some(answers) = answers {
            self.store.known.note(&self.store.shared.memory, &answers, self.moment.time);
        }
    }

    /// Counts the request for the log lines of an outage. A request counts once, also if several servers are
    /// away.
    fn count(&self, taken: Result<(), Unavailable>) {
        let (Some(hash_slot), Some(nodes)) = (self.missed, &self.store.shared.redis) else {
            return;
        };
        match taken {
            Ok(()) => nodes.health_of(hash_slot).decided_without(),
            Err(_) => nodes.health_of(hash_slot).refused_without(),
        }
    }
}

/// Whether a refusal of the request may be known, as far as this limit says. A candidate is always asked: it may take
/// although its limit refuses.
fn may_be_known(claim: &Claim<'_>) -> bool {
    match claim.party {
        Party::Process => claim.ask.mode != Mode::Candidate,
        Party::Bucket(_) => known::may_be_known(&claim.question()),
        Party::Limiter(_) => false,
    }
}

/// The question to Redis about a claim. `None` if its bucket is in this process.
fn redis_ask<'r>(claim: &'r Claim<'_>) -> Option<RedisAsk<'r>> {
    Some(RedisAsk { ask: claim.question(), location: claim.location()? })
}

/// For each claim, whether it takes: this follows from the decisions of all claims.
fn takes(claims: &[&mut Claim<'_>]) -> PerAsk<bool> {
    let outcome = |claim: &Claim<'_>| claim.decision().map_or(Outcome::Allow, |it| it.outcome);
    let outcomes: PerAsk<_> = claims.iter().map(|it| (it.ask.mode, outcome(it))).collect();
    takers(outcomes.into_iter()).collect()
}

/// What a bucket in Redis has decided on a claim.
fn redis_answer<'r>(claim: &'r Claim<'_>) -> Option<RedisAnswer<'r>> {
    let decision = claim.decision().filter(|_| claim.decider() == Some(Decider::Redis))?;
    Some(RedisAnswer { asked: redis_ask(claim)?, decision })
}

#[cfg(test)]
mod tests;
