//! A Redisson limiter (`RRateLimiter`): a limiter in Redis that Java services use too.
//!
//! In Redis `store/script/redisson/redisson.lua` counts, by the figures that Redis has. This file has the rate from
//! `proxy.toml`, if there is one. From that rate comes a token bucket by which a process decides alone while Redis is
//! out of reach.

use std::fmt;
use std::time::Duration;

use super::token_bucket::{self, State};
use super::{Step, Want};
use crate::decision::{Decision, Outcome};
use crate::rate::{Burst, Rate};
use crate::time::Timestamp;

/// What `proxy.toml` says about a Redisson limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// The rate while Redis has no figures yet, with an interval in whole milliseconds. With `None` only
    /// the figures in Redis count.
    rate: Option<Rate>,
    /// Who shares the permits, while Redis has no figures yet.
    pub sharing: Sharing,
    /// How long the limiter's keys stay after each use, while Redis has no figures yet. `None` is for ever. It is at
    /// least the rate's interval, because otherwise permits in use would be forgotten.
    pub keep_alive: Option<Duration>,
    /// The token bucket of a process that decides alone. `None` without a rate.
    stand_in: Option<token_bucket::Params>,
}

/// Who shares a limiter's permits: Redisson's `RateType`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// All processes share one budget.
    #[default]
    Overall,
    /// Each process has the full budget for itself.
    PerClient,
}

impl Params {
    /// `None` if the rate's count is more than a bucket can hold, or if its interval is not a whole
    /// number of milliseconds.
    pub fn new(rate: Option<Rate>, sharing: Sharing) -> Option<Self> {
        let stand_in = match rate {
            Some(rate) if !rate.interval().is_multiple_of(1_000) => return None,
            Some(rate) => Some(token_bucket::Params { rate, burst: Burst::new(rate.count())? }),
            None => None,
        };
        Some(Self { rate, sharing, keep_alive: None, stand_in })
    }

    /// The same, with keys that stay for this time after each use.
    #[must_use]
    pub fn with_keep_alive(self, keep_alive: Duration) -> Self {
        Self { keep_alive: Some(keep_alive), ..self }
    }

    /// The rate while Redis has no figures yet.
    pub fn rate(&self) -> Option<Rate> {
        self.rate
    }

    pub(crate) fn stand_in(&self) -> Option<token_bucket::Params> {
        self.stand_in
    }

    /// The same limiter, with another bucket. A process that decides alone uses it.
    pub(super) fn alone_by(
        self,
        change: impl FnOnce(token_bucket::Params) -> token_bucket::Params,
    ) -> Self {
        Self { stand_in: self.stand_in.map(change), ..self }
    }
}

impl fmt::Display for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(rate) = self.rate else {
            return f.write_str("a Redisson limiter, with the figures that Redis has");
        };
        let each = match self.sharing {
            Sharing::Overall => "",
            Sharing::PerClient => " for each client",
        };
        write!(f, "a Redisson limiter, {rate}{each} where Redis has no figures")
    }
}

/// Decides on a request by the bucket of [`Params::stand_in`]. Without a rate there is no bucket, and every
/// request passes.
pub(crate) fn decide(params: &Params, state: Option<State>, want: Want, now: Timestamp) -> Step {
    let Some(bucket) = params.stand_in() else {
        let decision = Decision { outcome: Outcome::Allow, remaining: 0 };
        return Step { decision, untouched: 0, taken: None, kept: None };
    };
    token_bucket::decide(&bucket, false, state, want, now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::rate::Cost;
    use crate::waiting::MaxWait;

    const WANT: Want = Want { cost: Cost::ONE, max_wait: MaxWait::NONE };

    fn params(rate: &str) -> Option<Params> {
        Params::new(Some(rate.parse().unwrap()), Sharing::Overall)
    }

    #[test]
    fn only_what_redisson_can_hold_is_a_limiter() {
        for (rate, fits) in [
            ("100/s", true),
            ("1000000000/d", true),
            ("5/1ms", true),
            ("1000000001/s", false),
            ("5/1500us", false),
        ] {
            assert_eq!(params(rate).is_some(), fits, "{rate}");
        }
    }

    #[test]
    fn a_process_alone_decides_by_the_rate_of_the_file() {
        let limiter = Algorithm::Redisson(params("2/h").unwrap());
        let now = Timestamp::MIN;
        let (mut state, mut outcomes) = (None, Vec::new());
        for _ in 0..3 {
            let step = limiter.decide(state, WANT, now);
            outcomes.push(step.decision.outcome);
            state = step.taken.or(state);
        }
        let retry_after = Some(Duration::from_secs(1_800));
        assert_eq!(outcomes, [Outcome::Allow, Outcome::Allow, Outcome::Reject { retry_after }]);
        assert!(limiter.fresh_at(state.unwrap()) > now);
    }

    #[test]
    fn without_a_rate_there_is_nothing_to_decide_by() {
        let limiter = Algorithm::Redisson(Params::new(None, Sharing::Overall).unwrap());
        let step = limiter.decide(None, WANT, Timestamp::MIN);
        assert_eq!((step.decision.outcome, step.taken), (Outcome::Allow, None));
    }
}
