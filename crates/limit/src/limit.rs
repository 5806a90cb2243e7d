//! One limit as a service names it: its name, its figures, and what is wrong with them.

use std::time::Duration;

use crate::algorithm::fixed_window::windows::Windows;
use crate::algorithm::{
    Algorithm, concurrency, fixed_window, leaky_bucket, sliding_log, sliding_window, token_bucket,
};
use crate::decide::Ask;
use crate::name::Name;
use crate::rate::{Burst, Interval, Rate};
use crate::waiting::MaxWait;

/// One limit: its name and how it counts. A mistake in the figures is reported by [`Limits::new`](crate::Limits::new).
#[derive(Clone, Debug)]
pub struct Limit {
    name: String,
    ask: Result<Ask, LimitFault>,
}

/// Why [`Limits::new`](crate::Limits::new) refuses a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("limit {name:?}: {fault}")]
pub struct LimitError {
    /// The limit's name as it was given.
    pub name: String,
    /// What is wrong with the limit.
    pub fault: LimitFault,
}

/// What is wrong with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitFault {
    /// The name has other characters, or too many.
    #[error("a name has 1 to 64 of the characters A-Z a-z 0-9 _ . -")]
    Name,
    /// Two limits have this name.
    #[error("another limit has this name")]
    Twice,
    /// A count, a burst, a queue or a number of slots is zero or too large.
    #[error("a bucket holds 1 to 1,000,000,000 tokens, and a sliding log at most 100,000")]
    Tokens,
    /// The limit's algorithm does not have this figure.
    #[error("only a {0} has this figure")]
    OnlyOf(&'static str),
}

impl Limit {
    /// A bucket that refills continuously at `rate`, and holds as many tokens as the rate's count, or
    /// [`burst`](Self::burst).
    pub fn token_bucket(name: &str, rate: Rate) -> Self {
        let params = Burst::new(rate.count()).map(|burst| token_bucket::Params { rate, burst });
        Self::of(name, params.map(Algorithm::TokenBucket))
    }

    /// Requests go one after the other at the even spacing of `rate`, and up to `queue` of them are held until their
    /// turn: [`Answer::Taken`](crate::Answer::Taken) says how long. [`max_wait`](Self::max_wait) is endless unless it is
    /// set.
    pub fn leaky_bucket(name: &str, rate: Rate, queue: u64) -> Self {
        let params = leaky_bucket::Params::new(rate, queue);
        Self::of(name, params.map(Algorithm::LeakyBucket)).holding(MaxWait::ENDLESS)
    }

    /// The rate's count in each window of the rate's interval. A window begins with a key's first request, or
    /// [by the clock](Self::on_the_clock).
    pub fn fixed_window(name: &str, rate: Rate) -> Self {
        Self::counted(name, rate, |count, interval| {
            let windows = Windows::Rolling(interval);
            Algorithm::FixedWindow(fixed_window::Params { count, windows })
        })
    }

    /// About the rate's count in the interval that ends now, by two counters: what the window before has counted weighs
    /// less and less.
    pub fn sliding_window(name: &str, rate: Rate) -> Self {
        Self::counted(name, rate, |count, interval| {
            Algorithm::SlidingWindow(sliding_window::Params::new(count, interval))
        })
    }

    /// Exactly the rate's count, at most 100,000, in any interval. It needs memory for each permit.
    pub fn sliding_log(name: &str, rate: Rate) -> Self {
        Self::of(name, sliding_log::Params::new(rate).map(Algorithm::SlidingLog))
    }

    /// At most this number of requests at once: each holds a slot until its [`Permit`](crate::Permit) is dropped.
    pub fn concurrency(name: &str, slots: u64) -> Self {
        let lease = Duration::from_secs(60);
        let params = Burst::new(slots).map(|slots| concurrency::Params::new(slots, lease));
        Self::of(name, params.map(Algorithm::Concurrency))
    }

    /// The tokens that a full token bucket holds, 1 to 1,000,000,000.
    #[must_use]
    pub fn burst(self, tokens: u64) -> Self {
        self.with(|algorithm| match algorithm {
            Algorithm::TokenBucket(params) => {
                let burst = Burst::new(tokens).ok_or(LimitFault::Tokens)?;
                Ok(Algorithm::TokenBucket(token_bucket::Params { burst, ..params }))
            }
            _ => Err(LimitFault::OnlyOf("token bucket")),
        })
    }

    /// Windows of a fixed window begin at the multiples of the interval since 1970 UTC: days at midnight UTC.
    #[must_use]
    pub fn on_the_clock(self) -> Self {
        self.with(|algorithm| match algorithm {
            Algorithm::FixedWindow(params) => {
                let windows = params.windows.on_the_clock();
                Ok(Algorithm::FixedWindow(fixed_window::Params { windows, ..params }))
            }
            _ => Err(LimitFault::OnlyOf("fixed window")),
        })
    }

    /// In Redis, a slot of a concurrency limit whose process died is free again after this time: at least a second, a
    /// minute unless it is set.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|algorithm| match algorithm {
            Algorithm::Concurrency(params) => {
                Ok(Algorithm::Concurrency(concurrency::Params::new(params.limit, lease)))
            }
            _ => Err(LimitFault::OnlyOf("concurrency limit")),
        })
    }

    /// A request that has to wait up to this time is not rejected: its place is reserved, and
    /// [`Answer::Taken`](crate::Answer::Taken) says how long to wait. Concurrency limits have no waits.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.holding(MaxWait::of(max_wait))
    }

    /// The limit's name, and its question for a cost of one.
    pub(crate) fn checked(self, others: &[(Name, Ask)]) -> Result<(Name, Ask), LimitError> {
        let checked = match Name::new(&self.name) {
            None => Err(LimitFault::Name),
            Some(name) if others.iter().any(|(other, _)| *other == name) => Err(LimitFault::Twice),
            Some(name) => self.ask.map(|ask| (name, ask)),
        };
        checked.map_err(|fault| LimitError { name: self.name, fault })
    }

    fn counted(name: &str, rate: Rate, by: impl FnOnce(Burst, Interval) -> Algorithm) -> Self {
        let figures = Burst::new(rate.count()).zip(Interval::from_micros(rate.interval()));
        Self::of(name, figures.map(|(count, interval)| by(count, interval)))
    }

    fn of(name: &str, algorithm: Option<Algorithm>) -> Self {
        let ask = algorithm.map(Ask::for_one).ok_or(LimitFault::Tokens);
        Self { name: name.to_owned(), ask }
    }

    fn with(self, change: impl FnOnce(Algorithm) -> Result<Algorithm, LimitFault>) -> Self {
        let changed = |ask: Ask| Ok(Ask { algorithm: change(ask.algorithm)?, ..ask });
        Self { ask: self.ask.and_then(changed), ..self }
    }

    fn holding(self, max_wait: MaxWait) -> Self {
        Self { ask: self.ask.map(|ask| Ask { max_wait, ..ask }), ..self }
    }
}
