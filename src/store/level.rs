//! Reads what a bucket holds, and takes nothing from it.

use std::time::Duration;

use futures_util::future::try_join_all;

use super::access::Store;
use super::bucket::BucketAsk;
use crate::limit::algorithm::Algorithm;
use crate::limit::bucket::LimiterFigures;
use crate::limit::decide::Ask;
use crate::limit::decision::{Decision, Outcome};
use crate::limit::rate::{Cost, MAX_TOKENS};
use crate::limit::time::Timestamp;
use crate::limit::waiting::MaxWait;
use crate::redis::CallError;

/// To learn how far a bucket is below zero, the question names a larger size: the size times the first factor that is
/// allowed. A large sliding log allows only the second factor, because it keeps at most twice its count.
const ROOM: [u64; 2] = [1_000, 2];

/// What a bucket holds now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketLevel {
    /// Whole tokens that are left.
    pub(crate) remaining: u64,
    /// The tokens that are missing. If the bucket is below zero, these are more than its size.
    pub(crate) used: u64,
    /// The answer to a request of one token that may not wait.
    pub(crate) at_once: Outcome,
    /// The answer to a request of one token that may wait as long as the limit allows.
    pub(crate) held: Outcome,
    /// The time until the bucket is full. `None` for slots, and if it is unknown.
    pub(crate) full_after: Option<Duration>,
    /// The figures of a Redisson limiter in Redis. `None` for all other limits.
    pub(crate) figures: Option<LimiterFigures>,
}

impl BucketLevel {
    /// The level if there is no bucket, and all requests get this answer.
    pub(crate) fn without_bucket(outcome: Outcome) -> Self {
        let (at_once, held) = (outcome, outcome);
        let full_after = outcome.passes().then_some(Duration::ZERO);
        Self { remaining: 0, used: 0, at_once, held, full_after, figures: None }
    }

    /// The time until a request of one token would pass, however long it may wait. `None` means never.
    pub(crate) fn passes_in(&self) -> Option<Duration> {
        match self.at_once {
            Outcome::Allow => Some(Duration::ZERO),
            Outcome::Delay(wait) => Some(wait),
            Outcome::Reject { retry_after } => retry_after,
        }
    }
}

impl Store {
    /// What the bucket of this question holds. `is_here` asks the bucket in this process, which decides while Redis is
    /// away. One call to Redis is enough, except for a Redisson limiter.
    ///
    /// # Errors
    /// If Redis does not decide.
    pub(crate) async fn level(
        &self,
        asked: &BucketAsk<'_>,
        is_here: bool,
        now: Timestamp,
    ) -> Result<BucketLevel, CallError> {
        let redis = self.redis.as_ref().filter(|_| !is_here && asked.is_limiter());
        let figures = match redis {
            Some(redis) => Some(redis.limiter_figures(asked).await?),
            None => None,
        };
        let algorithm = asked.ask.algorithm;
        let size = figures.map_or_else(|| algorithm.capacity(), |figures| figures.capacity);
        let sized = |room| algorithm.sized(size.saturating_mul(room).min(MAX_TOKENS));
        let roomy = ROOM.into_iter().find_map(sized);
        let one = Ask { cost: Cost::ONE, max_wait: MaxWait::NONE, ..asked.ask };
        let whole = match algorithm {
            // A sliding log is full if it would let one request pass with a count of 1. This works for a log of any
            // size.
            Algorithm::SlidingLog(_) => {
                Ask { algorithm: algorithm.sized(1).unwrap_or(algorithm), ..one }
            }
            _ => Ask { cost: Cost::new(size).unwrap_or(Cost::ONE), ..one },
        };
        let asks = [
            one,
            Ask { max_wait: asked.spec.wait, ..one },
            Ask { algorithm: roomy.unwrap_or(algorithm), ..one },
            whole,
        ];
        // All four questions go to Redis in one call.
        let looks = asks.into_iter().map(|ask| async move {
            let asked = BucketAsk { ask, ..*asked };
            if is_here { Ok(self.look_here(&asked, now)) } else { self.look(&asked, now).await }
        });
        let looks: Vec<Decision> = try_join_all(looks).await?;
        let [at_once, held, in_roomy, whole] = looks[..] else { return Err(CallError::Nonsense) };
        let remaining = at_once.remaining;
        let below = roomy.filter(|_| remaining == 0 && in_roomy.remaining > 0);
        let below = below.map(|roomy| roomy.capacity().saturating_sub(in_roomy.remaining));
        let used = match below.filter(|used| *used >= size) {
            Some(used) => used,
            // With the larger size, a window forgets its debt to later windows. The debt may also be more than that
            // size.
            None if remaining == 0 && figures.is_none() => {
                algorithm.missing(&whole, algorithm.time(self.both(now)))
            }
            None => size.saturating_sub(remaining),
        };
        let full_after = match (algorithm, whole.outcome) {
            (Algorithm::Concurrency(_), _) => None,
            (_, Outcome::Reject { retry_after }) => retry_after,
            (_, Outcome::Allow | Outcome::Delay(_)) => Some(Duration::ZERO),
        };
        let (at_once, held) = (at_once.outcome, held.outcome);
        Ok(BucketLevel { remaining, used, at_once, held, full_after, figures })
    }
}
