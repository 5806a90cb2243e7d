//! One process's share of a limit. While Redis is away, each process enforces its share by itself. `store` calls this
//! file.

use super::redisson::Sharing;
use super::{
    Algorithm, concurrency, fixed_window, leaky_bucket, sliding_log, sliding_window, token_bucket,
};
use crate::rate::{Burst, Cost, Rate};

/// How many lower counts are tried if a rate cannot be counted exactly.
const TRIES: u64 = 20_000;

impl Algorithm {
    /// The figures for one process, when `processes` processes share the limit evenly. A rate gets a longer interval.
    /// If that interval would be too long, the rate's count is rounded down instead, to at least 1. A burst, a
    /// queue and slots are rounded up. A window's count is rounded down. A request of this cost that fits the whole
    /// limit also fits the share. A Redisson limiter shares the bucket that stands in for it, unless each process has
    /// the whole limit in any case.
    pub fn share(self, processes: u64, cost: Cost) -> Self {
        let whole = self.capacity();
        let size = match self {
            _ if processes <= 1 => return self,
            Self::Redisson(params) if params.sharing == Sharing::PerClient => return self,
            // A queue of n lets n + 1 requests in: one of them goes at once.
            Self::LeakyBucket(params) => params.queue().div_ceil(processes) + 1,
            Self::FixedWindow(_) | Self::SlidingWindow(_) | Self::SlidingLog(_) => {
                whole / processes
            }
            _ => whole.div_ceil(processes),
        };
        let mut shared = self.sized(size.max(cost.get().min(whole))).unwrap_or(self);
        match &mut shared {
            Self::TokenBucket(params) => params.rate = part(params.rate, processes),
            Self::LeakyBucket(params) => params.rate = part(params.rate, processes),
            Self::Redisson(params) => {
                *params = params
                    .alone_by(|it| token_bucket::Params { rate: part(it.rate, processes), ..it });
            }
            _ => {}
        }
        shared
    }

    /// The same figures with another bucket size, or with another count. `None` if the algorithm has neither.
    pub fn sized(&self, size: u64) -> Option<Self> {
        let count = Burst::new(size)?;
        Some(match *self {
            Self::TokenBucket(params) => {
                Self::TokenBucket(token_bucket::Params { burst: count, ..params })
            }
            Self::LeakyBucket(params) => {
                Self::LeakyBucket(leaky_bucket::Params::new(params.rate, size - 1)?)
            }
            Self::FixedWindow(params) => {
                Self::FixedWindow(fixed_window::Params { count, ..params })
            }
            Self::SlidingWindow(params) => {
                Self::SlidingWindow(sliding_window::Params::new(count, params.interval))
            }
            Self::SlidingLog(params) if size <= sliding_log::MOST => {
                Self::SlidingLog(sliding_log::Params { count, ..params })
            }
            Self::Concurrency(params) => {
                Self::Concurrency(concurrency::Params::new(count, params.lease()))
            }
            Self::Redisson(params) => {
                Self::Redisson(params.alone_by(|it| token_bucket::Params { burst: count, ..it }))
            }
            Self::SlidingLog(_) | Self::Closed => return None,
        })
    }
}

/// A share of a rate: the same count in a longer interval, or a smaller count in the same interval.
fn part(rate: Rate, processes: u64) -> Rate {
    let longer = rate.interval().checked_mul(processes);
    longer
        .and_then(|interval| Rate::new(rate.count(), interval).ok())
        .unwrap_or_else(|| fewer(rate, processes))
}

/// A share of a rate in the same interval.
fn fewer(rate: Rate, processes: u64) -> Rate {
    let count = (rate.count() / processes).max(1);
    let lower = count.saturating_sub(TRIES).max(1)..=count;
    lower.rev().find_map(|count| Rate::new(count, rate.interval()).ok()).unwrap_or(rate)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::redisson;
    use crate::rate::{MAX_INTERVAL, MAX_TOKENS};

    fn bucket(rate: &str, burst: u64) -> Algorithm {
        let (rate, burst) = (rate.parse().unwrap(), Burst::new(burst).unwrap());
        Algorithm::TokenBucket(token_bucket::Params { rate, burst })
    }

    #[test]
    fn a_share_of_each_algorithm() {
        assert_eq!(bucket("10/s", 10).share(1, Cost::ONE), bucket("10/s", 10));
        assert_eq!(bucket("10/s", 10).share(3, Cost::ONE), bucket("10/3s", 4));
        assert_eq!(bucket("1/s", 1).share(5, Cost::ONE), bucket("1/5s", 1));
        let leaky = |rate: &str, queue| {
            let params = leaky_bucket::Params::new(rate.parse().unwrap(), queue).unwrap();
            Algorithm::LeakyBucket(params)
        };
        assert_eq!(leaky("10/s", 5).share(2, Cost::ONE), leaky("10/2s", 3));
        let log = |rate: &str| {
            Algorithm::SlidingLog(sliding_log::Params::new(rate.parse().unwrap()).unwrap())
        };
        assert_eq!(log("10/h").share(3, Cost::ONE), log("3/h"));
        assert_eq!(log("2/h").share(3, Cost::ONE), log("1/h"));
        let slots = |limit| {
            let lease = std::time::Duration::from_secs(60);
            Algorithm::Concurrency(concurrency::Params::new(Burst::new(limit).unwrap(), lease))
        };
        assert_eq!(slots(10).share(4, Cost::ONE), slots(3));
        let limiter = |sharing| {
            let rate = "20/s".parse().unwrap();
            Algorithm::Redisson(redisson::Params::new(Some(rate), sharing).unwrap())
        };
        let Algorithm::Redisson(shared) = limiter(Sharing::Overall).share(3, Cost::ONE) else {
            panic!("another algorithm")
        };
        assert_eq!(shared.stand_in().map(Algorithm::TokenBucket), Some(bucket("20/3s", 7)));
        assert_eq!(shared.rate(), Some("20/s".parse().unwrap()), "what Redis is told stays");
        assert_eq!(limiter(Sharing::PerClient).share(3, Cost::ONE), limiter(Sharing::PerClient));
        let five = Cost::new(5).unwrap();
        assert_eq!(bucket("10/s", 10).share(3, five), bucket("10/3s", 5));
        assert_eq!(log("10/h").share(3, five), log("5/h"));
        assert_eq!(leaky("10/s", 10).share(5, five), leaky("10/5s", 4));
        assert_eq!(Algorithm::Closed.share(4, Cost::ONE), Algorithm::Closed);
    }

    proptest! {
        /// All shares of a rate together are at most the rate. A share with a count of 1 may be more: it cannot be
        /// rounded down.
        #[test]
        fn shares_are_never_more_than_the_rate(
            count in 1..MAX_TOKENS,
            interval in 1..MAX_INTERVAL,
            processes in 1..300_u64,
        ) {
            let Ok(rate) = Rate::new(count, interval) else { return Ok(()) };
            let share = part(rate, processes);
            let all = u128::from(share.tokens()) * u128::from(processes) * u128::from(rate.period());
            let whole = u128::from(rate.tokens()) * u128::from(share.period());
            prop_assert!(all <= whole || share.count() == 1, "{share} of {rate}");
        }
    }
}
