//! Hits that another proxy reports when a request is over. They are used already, so a bucket takes them whatever
//! remains.

use std::sync::Arc;

use super::access::Store;
use super::bucket::BucketAsk;
use super::claim::Claim;
use super::grant::Grant;
use crate::limit::algorithm::{Algorithm, Difference, Receipt};
use crate::limit::bucket::Decider;
use crate::limit::decide::Ask;
use crate::limit::decision::{Decision, Outcome};
use crate::limit::rate::Cost;
use crate::limit::time::Timestamp;
use crate::limit::waiting::MaxWait;
use crate::redis::CallError;

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
                // What the limit does without Redis is decided later. It takes nothing.
                None if *gives_back => claim.ask = look(&claim.question(), Cost::ONE).ask,
                None => {}
            }
        }
    }

    async fn take_report(&self, asked: &BucketAsk<'_>, now: Timestamp) -> Option<Decision> {
        let (before, most) = self.look_at_all(asked, now).await.ok()?;
        let ask = &asked.ask;
        let hits = Difference::More(ask.cost.get().min(most));
        self.settle(asked, hits, Receipt::NONE, now);
        // The settlement comes before this question.
        let after = self.look(&look(asked, Cost::ONE), now).await.unwrap_or(before);
        let is_below_zero = most < ask.algorithm.capacity().saturating_mul(MOST_BURSTS);
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
        let most = self.look_at_all(&asked, now).await.map_or(u64::MAX, |(_, most)| most);
        most.saturating_add(asked.ask.cost.get())
    }

    /// What a request for the whole bucket would be told, and the most tokens that a report takes.
    async fn look_at_all(
        &self,
        asked: &BucketAsk<'_>,
        now: Timestamp,
    ) -> Result<(Decision, u64), CallError> {
        let algorithm = asked.ask.algorithm;
        let all = match algorithm {
            Algorithm::SlidingLog(_) => Cost::ONE,
            _ => Cost::new(algorithm.capacity()).unwrap_or(Cost::ONE),
        };
        let decision = self.look(&look(asked, all), now).await?;
        let missing = algorithm.missing(&decision, algorithm.time(self.both(now)));
        let most = algorithm.capacity().saturating_mul(MOST_BURSTS + 1).saturating_sub(missing);
        Ok((decision, most))
    }
}

/// A question that takes nothing.
fn look<'r>(asked: &BucketAsk<'r>, cost: Cost) -> BucketAsk<'r> {
    let ask = Ask { cost, takes: false, max_wait: MaxWait::NONE, ..asked.ask };
    BucketAsk { ask, ..*asked }
}
