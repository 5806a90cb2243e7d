//! The steps of `order` that ask Redis, through `script`: its buckets, and its Redisson limiters.

use std::mem;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::failed::{is_left_to_process, lose};
use crate::limit::Mode;
use crate::limit::decide::PerAsk;
use crate::redis::{CallError, HashSlot};
use crate::store::access::Store;
use crate::store::bucket::{BucketReceipt, ReceiptUse, RedisAsk, Source};
use crate::store::claim::{Claim, ClaimFailure, Decider, Party};
use crate::store::grant::{Grant, Moment};
use crate::store::script::{CallAsk, Redis, Verb, new_id};

/// A request that asks Redis.
pub(super) struct Asking<'q> {
    pub(super) store: &'q Arc<Store>,
    pub(super) redis: &'q Redis,
    pub(super) moment: Moment,
    /// Redis must have answered all calls before this.
    pub(super) deadline: Instant,
    /// Whether this request has already waited for an answer. Then less time is left until `deadline`.
    pub(super) has_waited: bool,
    pub(super) receipts: ReceiptUse,
    /// The hash slot of a claim on which Redis did not decide. The request is counted at the server of this hash slot.
    pub(super) missed: Option<HashSlot>,
}

impl Asking<'_> {
    /// Asks for the open claims in Redis. All calls are sent at the same time. If Redis does not carry out a call
    /// because of one claim, the other claims of the call stay open.
    pub(super) async fn call_all(&mut self, claims: &mut [&mut Claim<'_>], grouping: Grouping) {
        let has_refused = has_refused(claims);
        let is_other_last = claims.iter().any(|claim| answers_after_redis(claim));
        let mut calls = calls(claims, grouping);
        if calls.is_empty() {
            return;
        }
        let has_waited = mem::replace(&mut self.has_waited, true);
        // A limit that answers later may refuse. Then what this call gives must go back, and that needs receipts.
        let is_last = calls.len() == 1 && !is_other_last && grouping == Grouping::ByHashSlot;
        let receipts = if is_last { self.receipts } else { ReceiptUse::Needed };
        let asking = calls.iter_mut().map(|call| async {
            self.call_one(call, has_refused, receipts, has_waited).await;
            if !is_last {
                // The client may leave before the other calls are answered. Then this call's tokens go back.
                call.iter_mut().for_each(|claim| claim.hold(self.store, self.moment));
            }
        });
        all(asking).await;
    }

    /// Asks Redis for the claims of one call.
    async fn call_one(
        &self,
        call: &mut BucketCall<'_, '_>,
        has_refused: bool,
        receipts: ReceiptUse,
        has_waited: bool,
    ) {
        let grants: PerAsk<_> =
            call.iter().map(|claim| self.grant_slot(claim, verb(claim, has_refused))).collect();
        let asks = call.iter().zip(&grants);
        let asks = asks.filter_map(|(claim, grant)| {
            let asked = RedisAsk { ask: claim.question(), location: claim.location()? };
            let holder = grant.as_ref().and_then(|grant| grant.slot());
            Some(CallAsk { asked, verb: verb(claim, has_refused), holder })
        });
        let asks: PerAsk<_> = asks.collect();
        let asking = self.redis.ask(&asks, receipts);
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
                        // One key is unusable, so no claim of the call took anything.
                        _ if is_void => {}
                        (Some(decision), Some(grant)) => {
                            claim.decide_and_hold(decision, Decider::Redis, grant);
                        }
                        (Some(decision), None) => {
                            let receipt = reply.receipt.map(BucketReceipt::of);
                            claim.decide(decision, Decider::Redis, receipt);
                            claim.window_left = reply.window_left;
                        }
                    }
                }
            }
            Err(error) if error.is_of_several_keys() && call.len() > 1 => {}
            // Redis may have carried out the call. Then its tokens are lost: to ask Redis about them would take the
            // time that has just run out.
            Err(_) => call.iter_mut().for_each(|claim| lose(self.store, claim)),
        }
    }

    /// A grant of a slot, made before Redis is asked for the slot. `None` for all but concurrency limits.
    fn grant_slot(&self, claim: &Claim<'_>, verb: Verb) -> Option<Box<Grant>> {
        let slot = (verb == Verb::Take).then(|| self.redis.name_slot(&claim.question()))??;
        Some(claim.grant(Source::Slot(slot), self.store, self.moment))
    }

    /// Asks the Redisson limiters. Those with a key come first: they refuse a single client, and the others would then
    /// take nothing.
    pub(super) async fn ask_limiters(&self, claims: &mut [&mut Claim<'_>]) {
        for has_key in [true, false] {
            for index in 0..claims.len() {
                let has_refused = has_refused(claims);
                let Some(claim) = claims.get_mut(index) else { continue };
                let verb = if claim.ask.takes { verb(claim, has_refused) } else { Verb::Look };
                let is_limiter = claim.is_open() && matches!(claim.party, Party::Limiter(_));
                if is_limiter && has_key != claim.spec.key.sources.is_empty() {
                    // Boxed: otherwise the futures of all other limits would also have its size.
                    Box::pin(self.ask_limiter(claim, verb)).await;
                }
            }
        }
    }

    async fn ask_limiter(&self, claim: &mut Claim<'_>, verb: Verb) {
        let id = new_id();
        let grant = || claim.grant(Source::Limiter(id), self.store, self.moment);
        // The grant is made before Redis is asked. If the answer is lost, its permits go back.
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
                // After these errors it is sure that the script took nothing. After any other error it may have taken
                // permits: they go back.
                if let CallError::Away | CallError::NotConnected | CallError::UnusableKey(_) = error
                {
                    grant.into_iter().for_each(|grant| grant.was_not_given());
                }
                match error.is_of_one_key() {
                    true => claim.fail(ClaimFailure::UnusableKey),
                    false => lose(self.store, claim),
                }
            }
        }
    }
}

/// Whether a limit has refused the request already.
pub(super) fn has_refused(claims: &[&mut Claim<'_>]) -> bool {
    claims.iter().any(|claim| claim.refuses())
}

/// How the next limit is asked: once a limit has refused, only candidates take.
pub(super) fn verb(claim: &Claim<'_>, has_refused: bool) -> Verb {
    match has_refused && claim.ask.mode != Mode::Candidate {
        true => Verb::Look,
        false => Verb::Take,
    }
}

/// Whether the claim's decision comes after those of the buckets in Redis.
fn answers_after_redis(claim: &Claim<'_>) -> bool {
    is_left_to_process(claim) || claim.is_open() && matches!(claim.party, Party::Limiter(_))
}

/// Which claims are asked by one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grouping {
    /// All claims whose keys share a hash slot.
    ByHashSlot,
    /// Each claim by itself.
    Apart,
}

/// The claims of one call.
pub(super) type BucketCall<'c, 'p> = PerAsk<&'c mut Claim<'p>>;

/// The calls for the open claims on buckets in Redis, in the order of the claims.
pub(super) fn calls<'c, 'p>(
    claims: &'c mut [&mut Claim<'p>],
    grouping: Grouping,
) -> PerAsk<BucketCall<'c, 'p>> {
    let mut calls: PerAsk<(HashSlot, BucketCall<'c, 'p>)> = PerAsk::new();
    for claim in claims.iter_mut().filter(|claim| claim.is_open()) {
        let Party::Bucket(location) = claim.party else { continue };
        let is_of = |call: &&mut (HashSlot, BucketCall<'c, 'p>)| {
            grouping == Grouping::ByHashSlot && call.0 == location.hash_slot
        };
        match calls.iter_mut().find(is_of) {
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
