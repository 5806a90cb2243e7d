//! Hits that another proxy reports when a request is over. They are used already, so a bucket takes them whatever
//! remains.

use std::sync::Arc;

use super::access::Store;
use super::bucket::BucketAsk;
use super::claim::Claim;
use super::grant::Grant;
use super::level::BucketLevel;
use crate::limit::algorithm::{Difference, Receipt};
use crate::limit::bucket::Decider;
use crate::limit::decide::Ask;
use crate::limit::decision::{Decision, Outcome};
use crate::limit::rate::Cost;
use crate::limit::time::Timestamp;
use crate::limit::waiting::MaxWait;

/// How far below zero reports bring a bucket, in bursts.
const MOST_BURSTS: u64 = 100;

impl Store {
    /// Takes the cost of each claim from its bucket, also if the bucket then is below zero. The decision allows if the
    /// bucket was not below zero before. A claim that gives back is never refused: it gives back what is missing in its
    /// bucket. If Redis does not answer, the claim stays open.
    ///
    /// If this future is dropped early, the hits are settled all the same once Redis answers.
    pub(crate) async fn settle_reported(
        self: &Arc<Self>,
        claims: &mut [(&mut Claim<'_>, bool)],
        now: Timestamp,
    ) {
        let report = |(claim, gives_back): &(&mut Claim<'_>, bool)| {
            (Arc::clone(claim.spec), claim.key.clone(), claim.ask, *gives_back)
        };
        let reports: Vec<_> = claims.iter().map(report).collect();
        let store = Arc::clone(self);
        // `Store::settled` waits for this task, too.
        let counted = self.redis.as_ref().map(|redis| redis.queue.count());
        let settling = tokio::spawn(async move {
            let (_counted, mut said) = (counted, Vec::new());
            for (spec, key, ask, gives_back) in &reports {
                let asked = BucketAsk { spec, key, ask: *ask };
                said.push(match gives_back {
                    true => store.give_back_report(&asked, now).await,
                    false => store.take_report(&asked, now).await,
                });
            }
            said
        });
        // An error means that the worker ends.
        for ((claim, gives_back), said) in claims.iter_mut().zip(settling.await.unwrap_or_default())
        {
            let by = if claim.location.is_some() { Decider::Redis } else { Decider::Process };
            match said {
                Some(decision) => claim.decide(decision, by, None),
                // Redis did not answer. What the limit does without Redis is decided later, and nothing is taken.
                None if *gives_back => claim.ask = look(&claim.question(), Cost::ONE).ask,
                None => {}
            }
        }
    }

    async fn take_report(&self, asked: &BucketAsk<'_>, now: Timestamp) -> Option<Decision> {
        let before = self.level(asked, false, now).await.ok()?;
        let ask = &asked.ask;
        let hits = Difference::More(ask.cost.get().min(most(asked, before)));
        self.settle(asked, hits, Receipt::NONE, now);
        // The settlement comes before this question.
        let after = self.look(&look(asked, Cost::ONE), now).await;
        let BucketLevel { remaining, used, at_once: outcome, .. } = before;
        let after = after.unwrap_or(Decision { outcome, remaining });
        let is_below_zero = used > ask.algorithm.capacity();
        let outcome = if is_below_zero { after.outcome } else { Outcome::Allow };
        Some(Decision { outcome, ..after })
    }

    async fn give_back_report(&self, asked: &BucketAsk<'_>, now: Timestamp) -> Option<Decision> {
        // A slot goes back when its own request ends.
        if asked.ask.algorithm.lease().is_none() {
            let less = Difference::Less(asked.ask.cost.get());
            self.settle(asked, less, Receipt::NEWEST, now);
            self.known.forget(&self.shared.memory, asked);
        }
        let decision = self.look(&look(asked, Cost::ONE), now).await.ok()?;
        Some(Decision { outcome: Outcome::Allow, ..decision })
    }

    /// The most tokens that a request may have used whose end is reported now. The grant is what it took.
    pub(crate) async fn most_reported(&self, grant: &Grant, now: Timestamp) -> u64 {
        let asked = grant.question();
        if !asked.spec.reported {
            return u64::MAX;
        }
        let level = self.level(&asked, false, now).await;
        let most = level.map_or(u64::MAX, |level| most(&asked, level));
        most.saturating_add(asked.ask.cost.get())
    }
}

/// The most tokens that a report takes from a bucket at this level.
fn most(asked: &BucketAsk<'_>, BucketLevel { used, .. }: BucketLevel) -> u64 {
    asked.ask.algorithm.capacity().saturating_mul(MOST_BURSTS + 1).saturating_sub(used)
}

/// A question that takes nothing.
fn look<'r>(asked: &BucketAsk<'r>, cost: Cost) -> BucketAsk<'r> {
    let ask = Ask { cost, takes: false, max_wait: MaxWait::NONE, ..asked.ask };
    BucketAsk { ask, ..*asked }
}
