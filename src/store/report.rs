//! Hits that another proxy reports when a request is over. They are used already, so a bucket takes them whatever
//! remains.

use super::access::Store;
use super::bucket::{BucketAsk, Decider};
use super::claim::Claim;
use super::grant::Grant;
use crate::limit::algorithm::{Algorithm, Difference, Receipt};
use crate::limit::decide::Ask;
use crate::limit::decision::{Decision, Outcome};
use crate::limit::rate::Cost;
use crate::limit::time::Timestamp;
use crate::limit::waiting::MaxWait;
use crate::redis::CallError;

/// How far below zero reports bring a bucket, in bursts.
const MOST_BURSTS: u64 = 100;

impl Store {
    /// Takes the claim's cost from its bucket, also if the bucket then is below zero. The decision allows if the bucket
    /// was not below zero before. If Redis does not answer, the claim stays open.
    pub(crate) async fn take_reported(&self, claim: &mut Claim<'_>, now: Timestamp) {
        let asked = claim.question();
        let Ok((before, most)) = self.look_at_all(&asked, now).await else { return };
        let hits = Difference::More(asked.ask.cost.get().min(most));
        self.settle(&asked, hits, Receipt::NONE, now);
        // The settlement comes before this question.
        let after = self.peek(&look(&asked, Cost::ONE), now).await.unwrap_or(before);
        let is_below_zero = most < asked.ask.algorithm.capacity().saturating_mul(MOST_BURSTS);
        let outcome = if is_below_zero { after.outcome } else { Outcome::Allow };
        let by = self.decider(&asked);
        claim.decide(Decision { outcome, ..after }, by, None);
    }

    /// Gives the claim's cost back to its bucket, as far as it is missing there. This is never refused.
    pub(crate) async fn give_back_reported(&self, claim: &mut Claim<'_>, now: Timestamp) {
        let asked = claim.question();
        let algorithm = asked.ask.algorithm;
        let receipt = Receipt::new(match algorithm {
            Algorithm::SlidingWindow(_) => algorithm.time(self.both(now)),
            // It gives back whatever is missing.
            _ => Timestamp::MAX,
        });
        self.settle(&asked, Difference::Less(asked.ask.cost.get()), receipt, now);
        self.known.forget(&self.shared.memory, &asked);
        let (after, by) = (self.peek(&look(&asked, Cost::ONE), now).await, self.decider(&asked));
        match after {
            Ok(after) => claim.decide(Decision { outcome: Outcome::Allow, ..after }, by, None),
            // What the limit does without Redis is decided later. It takes nothing.
            Err(_) => claim.ask = look(&asked, Cost::ONE).ask,
        }
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
        let decision = self.peek(&look(asked, all), now).await?;
        let missing = algorithm.missing(&decision, algorithm.time(self.both(now)));
        let most = algorithm.capacity().saturating_mul(MOST_BURSTS + 1).saturating_sub(missing);
        Ok((decision, most))
    }

    fn decider(&self, ask: &BucketAsk<'_>) -> Decider {
        if self.locate(ask).is_some() { Decider::Redis } else { Decider::Process }
    }
}

/// A question that takes nothing.
fn look<'r>(asked: &BucketAsk<'r>, cost: Cost) -> BucketAsk<'r> {
    let ask = Ask { cost, takes: false, max_wait: MaxWait::NONE, ..asked.ask };
    BucketAsk { ask, ..*asked }
}
