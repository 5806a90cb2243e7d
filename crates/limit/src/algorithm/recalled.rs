//! What would have let a request pass that was refused. A bucket is recalled from what it said: a state in which it says
//! the same. Then the algorithm itself decides about other figures and other costs.

use super::fixed_window::windows::Windows;
use super::{Algorithm, BucketState, Want, concurrency, fixed_window, sliding_log};
use super::{sliding_window, token_bucket};
use crate::decision::{Decision, Outcome};
use crate::rate::{Cost, MAX_TOKENS};
use crate::time::{Now, Timestamp};

/// A bucket at the moment when it refused a request.
#[derive(Clone, Copy, Debug)]
pub struct RecalledBucket {
    algorithm: Algorithm,
    want: Want,
    state: Option<BucketState>,
    now: Now,
}

impl RecalledBucket {
    /// The bucket that has decided so by these figures. `may_owe` is whether it may be below zero. `None` if what it
    /// said does not tell.
    pub fn new(
        algorithm: Algorithm,
        want: Want,
        decision: Decision,
        may_owe: bool,
        now: Now,
    ) -> Option<Self> {
        let state = match algorithm {
            // A window at zero may be below, and says the same.
            Algorithm::SlidingWindow(_) | Algorithm::SlidingLog(_) | Algorithm::FixedWindow(_)
                if may_owe && decision.remaining == 0 =>
            {
                return None;
            }
            Algorithm::Closed => None,
            algorithm => Some(state(algorithm, want.cost, decision, algorithm.time(now))?),
        };
        let recalled = Self { algorithm, want, state, now };
        let again = recalled.decide(algorithm, want);
        let is_same = again.remaining == decision.remaining && !again.outcome.passes();
        is_same.then_some(recalled)
    }

    fn decide(&self, algorithm: Algorithm, want: Want) -> Decision {
        let state = match (algorithm, self.state) {
            // The view of a list is for a count and a cost.
            (Algorithm::SlidingLog(params), Some(BucketState::SlidingLog(state))) => {
                let fits = u64::from(state.used) + want.cost.get() <= params.count.get();
                let room_at = if fits { Timestamp::MIN } else { state.room_at };
                Some(BucketState::SlidingLog(sliding_log::State { room_at, ..state }))
            }
            (_, state) => state,
        };
        algorithm.decide(state, want, algorithm.time(self.now)).decision
    }

    /// Whether the request would have passed under these figures, in the same bucket.
    pub fn passes_under(&self, algorithm: Algorithm) -> bool {
        let is_same_kind = algorithm.number() == self.algorithm.number();
        is_same_kind && self.decide(algorithm, self.want).outcome.passes()
    }

    /// The smallest bucket in which the request would have passed.
    pub fn burst(&self) -> Option<u64> {
        let passes = |size| self.algorithm.sized(size).is_some_and(|it| self.passes_under(it));
        let mut least = self.algorithm.known_capacity().filter(|size| *size > 0)?;
        let mut most = least;
        while !passes(most) {
            least = most;
            most = most.checked_mul(2).filter(|most| *most <= 2 * MAX_TOKENS)?;
        }
        Some(first(least, most, passes))
    }

    /// The largest cost below the request's own that would have passed.
    pub fn cost(&self) -> Option<u64> {
        let passes = |cost| {
            let cost = Cost::new(cost);
            cost.is_some_and(|cost| {
                self.decide(self.algorithm, Want { cost, ..self.want }).outcome.passes()
            })
        };
        if !passes(1) || matches!(self.algorithm, Algorithm::Concurrency(_)) {
            return None;
        }
        Some(first(1, self.want.cost.get(), |cost| !passes(cost)) - 1)
    }
}

/// The smallest number above `least` and up to `most` that is so. `most` is so, and `least` is not.
fn first(mut least: u64, mut most: u64, is_so: impl Fn(u64) -> bool) -> u64 {
    while most - least > 1 {
        let middle = least + (most - least) / 2;
        if is_so(middle) { most = middle } else { least = middle }
    }
    most
}

/// A state in which the algorithm decides so at `now` about a request of this cost.
fn state(
    algorithm: Algorithm,
    cost: Cost,
    Decision { outcome, remaining }: Decision,
    now: Timestamp,
) -> Option<BucketState> {
    let used = algorithm.capacity().checked_sub(remaining)?;
    let wait = match outcome {
        Outcome::Reject { retry_after } => retry_after.map(|wait| wait.as_micros()),
        Outcome::Allow | Outcome::Delay(_) => return None,
    };
    let wait = wait.and_then(|wait| u64::try_from(wait).ok());
    Some(match algorithm {
        Algorithm::TokenBucket(_) | Algorithm::LeakyBucket(_) => {
            let bucket = algorithm.bucket()?;
            let period = bucket.rate.period();
            let missing = match wait {
                Some(wait) if remaining == 0 => missing(&bucket, cost, wait),
                _ => u128::from(used) * u128::from(period),
            };
            let whole = u64::try_from(missing / u128::from(period)).ok()?;
            let rest = u64::try_from(missing % u128::from(period)).ok()?;
            BucketState::Bucket(token_bucket::State { missing: whole, rest, period, at: now })
        }
        Algorithm::FixedWindow(params) => {
            let start = match (params.windows, wait) {
                (Windows::Rolling(length), Some(wait)) => {
                    now.plus_micros(wait).plus_signed(-i64::try_from(length.as_micros()).ok()?)
                }
                _ => params.windows.start_of(now),
            };
            BucketState::FixedWindow(fixed_window::State::of(start, used))
        }
        Algorithm::SlidingWindow(params) => {
            let into = now.as_micros() % params.interval.as_micros();
            let start = now.plus_signed(-i64::try_from(into).ok()?);
            let (previous, current, next) = (0, used, 0);
            BucketState::SlidingWindow(sliding_window::State { start, previous, current, next })
        }
        Algorithm::SlidingLog(_) => {
            let (used, added) = (u32::try_from(used).ok()?, 0);
            let room_at = now.plus_micros(wait.unwrap_or(1).max(1));
            let (arrived, newest) = (now, now);
            BucketState::SlidingLog(sliding_log::State { arrived, newest, room_at, used, added })
        }
        Algorithm::Concurrency(_) => BucketState::Concurrency(concurrency::State { held: used }),
        Algorithm::Redisson(_) | Algorithm::Closed => return None,
    })
}

/// What is missing from a bucket that lets a request of this cost pass after `wait` microseconds and not earlier, in
/// units of `1 / period` token. If several amounts are possible, whole tokens are.
fn missing(bucket: &token_bucket::Params, cost: Cost, wait: u64) -> u128 {
    let [tokens, period] = [bucket.rate.tokens(), bucket.rate.period()].map(u128::from);
    let room = u128::from(bucket.burst.get().saturating_sub(cost.get())) * period;
    let most = room + u128::from(wait) * tokens;
    let whole = most / period * period;
    if whole + tokens > most { whole } else { most }
}

impl Algorithm {
    /// The tokens of a second, to compare figures. `None` if time gives none.
    pub fn per_second(&self) -> Option<f64> {
        let (count, micros) = match self {
            Self::TokenBucket(params) => (params.rate.count(), params.rate.interval()),
            Self::LeakyBucket(params) => (params.rate.count(), params.rate.interval()),
            _ => (self.known_capacity()?, self.window_seconds()?.saturating_mul(1_000_000)),
        };
        Some(count as f64 / micros as f64)
    }
}

#[cfg(test)]
mod tests;
