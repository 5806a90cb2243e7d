//! The steps of `order` that ask the buckets of this process.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::limit::decide::PerAsk;
use crate::limit::decision::Verdict;
use crate::limit::time::Now;
use crate::limit::waiting::MaxWait;
use crate::store::access::Store;
use crate::store::bucket::ReceiptUse;
use crate::store::claim::{Claim, ClaimFailure, Decider, Party};
use crate::store::grant::Moment;
use crate::store::memory::LocalAnswer;

impl Store {
    /// Like [`Store::take`], but with the buckets of this process alone.
    pub(crate) fn take_locally(self: &Arc<Self>, claims: &mut [&mut Claim<'_>], moment: Moment) {
        let receipts = receipt_use(claims);
        let verdict = self.decide_here(claims, receipts, self.both(moment.time));
        for claim in claims.iter_mut().filter(|claim| claim.may_come_back(verdict)) {
            claim.hold(self, moment);
        }
    }

    /// Like [`Store::take_locally`], but no claim holds yet what its bucket gave.
    pub(super) fn decide_here(
        &self,
        claims: &mut [&mut Claim<'_>],
        receipts: ReceiptUse,
        now: Now,
    ) -> Verdict {
        for claim in claims.iter_mut() {
            // All processes share this claim's bucket in Redis. Without Redis, each process enforces its share.
            if claim.failure() == Some(ClaimFailure::Unreachable) {
                let processes = self.shared.processes.load(Ordering::Relaxed);
                claim.ask.algorithm = claim.ask.algorithm.share(processes, claim.ask.cost);
            }
        }
        // Most requests have one limit, which needs no lists.
        if let [claim] = claims
            && let Some((answer, verdict)) =
                self.shared.memory.take_one(&claim.question(), receipts, now)
        {
            claim.decide(answer.decision, answer.decider(), answer.taken);
            claim.window_left = answer.window_left;
            return verdict;
        }
        let asks: PerAsk<_> = claims.iter().map(|claim| claim.question()).collect();
        let (answers, verdict) = self.shared.memory.take(&asks, receipts, now);
        drop(asks);
        for (claim, answer) in claims.iter_mut().zip(answers) {
            claim.decide(answer.decision, answer.decider(), answer.taken);
            claim.window_left = answer.window_left;
        }
        verdict
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
}

impl LocalAnswer {
    fn decider(&self) -> Decider {
        if self.is_shared { Decider::Shared } else { Decider::Process }
    }
}

/// Whether receipts are noted for these claims. They are needed if a request may be held and its client
/// may leave meanwhile, if a limit is settled later or holds a slot, and if the receipt tells the begin of a window.
pub(super) fn receipt_use(claims: &[&mut Claim<'_>]) -> ReceiptUse {
    let comes_back = |claim: &&mut Claim<'_>| {
        claim.ask.max_wait > MaxWait::NONE
            || claim.is_held_to_the_end()
            || claim.ask.algorithm.has_rolling_windows()
    };
    if claims.iter().any(comes_back) { ReceiptUse::Needed } else { ReceiptUse::Unneeded }
}
