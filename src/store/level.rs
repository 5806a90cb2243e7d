//! What a bucket holds, for those who only ask. Nothing is taken.

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

/// A bucket of such a multiple of the size tells how far below zero it is. A large sliding log has the second one, since
/// it keeps no more than twice its count.
const ROOM: [u64; 2] = [1_000, 2];

/// What a bucket holds now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketLevel {
    /// Whole tokens that are left.
    pub(crate) remaining: u64,
    /// The tokens that are missing: more than the bucket's size if it is below zero.
    pub(crate) used: u64,
    /// What a request of one token would be told that is not held.
    pub(crate) at_once: Outcome,
    /// What it would be told if the limit may hold it.
    pub(crate) held: Outcome,
    /// The time until the bucket is full. `None` for slots, and if nobody knows.
    pub(crate) full_after: Option<Duration>,
    /// The figures of a Redisson limiter in Redis. `None` for all other limits.
    pub(crate) figures: Option<LimiterFigures>,
}

impl BucketLevel {
    /// All requests get this answer, and there is no bucket.
    pub(crate) fn without_bucket(outcome: Outcome) -> Self {
        let (at_once, held) = (outcome, outcome);
        let full_after = outcome.passes().then_some(Duration::ZERO);
        Self { remaining: 0, used: 0, at_once, held, full_after, figures: None }
    }
}

impl Store {
    /// What the ask's bucket holds. If `is_here`, the bucket of this process says so that decides while Redis is away.
    /// Redis is asked once, but for a Redisson limiter.
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
            // It is full if it lets one pass in an interval that has no other. So a log of any size tells.
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
        // All of them join one call.
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
            // A window forgets in the roomy one what it owes to later windows, and more may be owed than that holds.
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
