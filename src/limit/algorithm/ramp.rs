//! Figures on the way from high figures down to low ones, after a reload has lowered them.

use super::fixed_window::windows::Windows;
use super::{
    Algorithm, concurrency, fixed_window, leaky_bucket, sliding_log, sliding_window, token_bucket,
};
use crate::limit::rate::{Burst, Interval, MAX_TOKENS, Rate};
use crate::limit::time::Descent;

impl Algorithm {
    /// The figures with which the way from these figures down to `new` begins. A figure that is not lowered
    /// has its new value at once. A count is converted to the new interval. `None` where no figure is
    /// lowered, and where there is no even way: to another algorithm, from or to a limit that lets nothing
    /// pass, for the figures of a Redisson limiter, and between windows of the calendar of different lengths
    /// or zones.
    pub fn begin_descent(self, new: Self) -> Option<Self> {
        let start = match (self, new) {
            (Self::TokenBucket(old), Self::TokenBucket(new)) => {
                let (rate, burst) = (higher(old.rate, new.rate), old.burst.max(new.burst));
                Self::TokenBucket(token_bucket::Params { rate, burst })
            }
            (Self::LeakyBucket(old), Self::LeakyBucket(new)) => {
                let rate = higher(old.rate, new.rate);
                let queue = old.queue().max(new.queue());
                Self::LeakyBucket(leaky_bucket::Params::new(rate, queue)?)
            }
            (Self::FixedWindow(old), Self::FixedWindow(new)) => {
                let count = match (old.windows, new.windows) {
                    (
                        Windows::Rolling(old_length) | Windows::Clock(old_length),
                        Windows::Rolling(length) | Windows::Clock(length),
                    ) => count_in(old.count.get(), old_length, length)?,
                    (old_windows, windows) if old_windows == windows => old.count,
                    _ => return None,
                };
                Self::FixedWindow(fixed_window::Params { count: count.max(new.count), ..new })
            }
            (Self::SlidingWindow(old), Self::SlidingWindow(new)) => {
                let count = count_in(old.count.get(), old.interval, new.interval)?;
                let params = sliding_window::Params::new(count.max(new.count), new.interval);
                Self::SlidingWindow(params)
            }
            (Self::SlidingLog(old), Self::SlidingLog(new)) => {
                let count = count_in(old.count.get(), old.interval, new.interval)?.max(new.count);
                let count = Burst::new(count.get().min(sliding_log::MOST))?;
                Self::SlidingLog(sliding_log::Params { count, ..new })
            }
            (Self::Concurrency(old), Self::Concurrency(new)) => {
                let limit = old.limit.max(new.limit);
                Self::Concurrency(concurrency::Params::new(limit, new.lease()))
            }
            _ => return None,
        };
        (start != new).then_some(start)
    }

    /// The figures at this place on the way down to `new`. The way begins with these figures.
    pub fn descend(self, new: Self, place: Descent) -> Self {
        let burst = |start: Burst, end: Burst| {
            Burst::new(place.between(start.get(), end.get())).unwrap_or(end)
        };
        if place.is_end() {
            return new;
        }
        match (self, new) {
            (Self::TokenBucket(start), Self::TokenBucket(end)) => {
                Self::TokenBucket(token_bucket::Params {
                    rate: rate(start.rate, end.rate, place),
                    burst: burst(start.burst, end.burst),
                })
            }
            (Self::LeakyBucket(start), Self::LeakyBucket(end)) => {
                let queue = place.between(start.queue(), end.queue());
                let params = leaky_bucket::Params::new(rate(start.rate, end.rate, place), queue);
                params.map_or(new, Self::LeakyBucket)
            }
            (Self::FixedWindow(start), Self::FixedWindow(end)) => {
                let count = burst(start.count, end.count);
                Self::FixedWindow(fixed_window::Params { count, ..end })
            }
            (Self::SlidingWindow(start), Self::SlidingWindow(end)) => {
                let count = burst(start.count, end.count);
                Self::SlidingWindow(sliding_window::Params::new(count, end.interval))
            }
            (Self::SlidingLog(start), Self::SlidingLog(end)) => {
                let count = burst(start.count, end.count);
                Self::SlidingLog(sliding_log::Params { count, ..end })
            }
            (Self::Concurrency(start), Self::Concurrency(end)) => {
                let limit = burst(start.limit, end.limit);
                Self::Concurrency(concurrency::Params::new(limit, end.lease()))
            }
            _ => new,
        }
    }
}

fn higher(old: Rate, new: Rate) -> Rate {
    if old.is_above(new) { old } else { new }
}

fn rate(start: Rate, end: Rate, place: Descent) -> Rate {
    if start.is_above(end) { start.down_to(end, place) } else { end }
}

/// A count for one interval as that of another one, rounded down. `None` where it is less than 1.
fn count_in(count: u64, of: Interval, interval: Interval) -> Option<Burst> {
    let count = u128::from(count) * u128::from(interval.as_micros()) / u128::from(of.as_micros());
    Burst::new(u64::try_from(count).unwrap_or(u64::MAX).min(MAX_TOKENS))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::limit::algorithm::{State, Usage};
    use crate::limit::time::{Lead, Timestamp};

    fn bucket(rate: &str, burst: u64) -> Algorithm {
        let (rate, burst) = (rate.parse().unwrap(), Burst::new(burst).unwrap());
        Algorithm::TokenBucket(token_bucket::Params { rate, burst })
    }

    fn leaky(rate: &str, queue: u64) -> Algorithm {
        Algorithm::LeakyBucket(leaky_bucket::Params::new(rate.parse().unwrap(), queue).unwrap())
    }

    fn minutes(minutes: u64) -> Interval {
        Interval::from_micros(minutes * 60_000_000).unwrap()
    }

    fn window(count: u64, length: u64) -> Algorithm {
        let (count, windows) = (Burst::new(count).unwrap(), Windows::Rolling(minutes(length)));
        Algorithm::FixedWindow(fixed_window::Params { count, windows })
    }

    fn sliding(count: u64, length: u64) -> Algorithm {
        let count = Burst::new(count).unwrap();
        Algorithm::SlidingWindow(sliding_window::Params::new(count, minutes(length)))
    }

    fn log(rate: &str) -> Algorithm {
        Algorithm::SlidingLog(sliding_log::Params::new(rate.parse().unwrap()).unwrap())
    }

    fn slots(limit: u64) -> Algorithm {
        let limit = Burst::new(limit).unwrap();
        Algorithm::Concurrency(concurrency::Params::new(limit, Duration::from_secs(60)))
    }

    /// The beginning, half way and the end, as texts. `None` where the new figures hold at once.
    fn way(old: Algorithm, new: Algorithm) -> Option<[String; 3]> {
        let start = old.begin_descent(new)?;
        let text = |algorithm: Algorithm| algorithm.to_string();
        let figures = |text: String| text.replace(" from a key's first request", "");
        Some([2, 1, 0].map(|left| figures(text(start.descend(new, Descent::of(left, 2))))))
    }

    #[test]
    fn lowered_figures_come_down_and_raised_ones_hold_at_once() {
        let at = |texts: [&str; 3]| Some(texts.map(str::to_owned));
        for (old, new, expected) in [
            (
                bucket("100/s", 100),
                bucket("50/s", 10),
                at(["100/s, burst 100", "75/s, burst 55", "50/s, burst 10"]),
            ),
            (
                bucket("100/s", 10),
                bucket("50/s", 100),
                at(["100/s, burst 100", "75/s, burst 100", "50/s, burst 100"]),
            ),
            (
                bucket("50/s", 100),
                bucket("100/s", 10),
                at(["100/s, burst 100", "100/s, burst 55", "100/s, burst 10"]),
            ),
            (bucket("50/s", 10), bucket("100/s", 10), None),
            (bucket("50/s", 10), bucket("50/s", 10), None),
            (bucket("60/m", 10), bucket("1/s", 10), None),
            (
                leaky("10/s", 10),
                leaky("10/s", 0),
                at([
                    "10/s at even spacing, queue 10",
                    "10/s at even spacing, queue 5",
                    "10/s at even spacing, queue 0",
                ]),
            ),
            (window(100, 1), window(51, 1), at(["100/m", "75/m", "51/m"])),
            (window(1000, 10), window(50, 1), at(["100/m", "75/m", "50/m"])),
            (window(1, 10), window(50, 1), None),
            (window(10, 1), window(5, 1), at(["10/m", "7/m", "5/m"])),
            (
                sliding(100, 1),
                sliding(50, 1),
                at([
                    "100/m in a sliding window",
                    "75/m in a sliding window",
                    "50/m in a sliding window",
                ]),
            ),
            (
                log("100/m"),
                log("50/m"),
                at([
                    "100/m in any such interval",
                    "75/m in any such interval",
                    "50/m in any such interval",
                ]),
            ),
            (slots(10), slots(5), at(["10 at once", "7 at once", "5 at once"])),
            (bucket("1/s", 1), window(1, 10), None),
            (bucket("1/s", 1), Algorithm::Closed, None),
            (Algorithm::Closed, bucket("1/s", 1), None),
        ] {
            assert_eq!(way(old, new), expected, "{old} {new}");
        }
    }

    /// The store chooses by this time which bucket it forgets first. A regression: the time was the long period of
    /// the rate.
    #[test]
    fn a_bucket_on_the_way_is_known_to_refill_as_fast_as_it_does() {
        let (old, new) = (bucket("100/m", 100), bucket("50/m", 50));
        let half = old.begin_descent(new).unwrap().descend(new, Descent::of(1, 2));
        let (at, lead) = (Timestamp::MIN, Lead::NONE);
        let state = token_bucket::State { missing: 1, rest: 0, period: 1, at, lead };
        let Some(Usage::RefillsIn(micros)) = half.usage(State::Bucket(state)) else {
            panic!("{half}")
        };
        assert_eq!(half.window_seconds(), Some(60));
        assert!((59_000_000..=61_000_000).contains(&micros), "{micros}");
    }

    fn figures() -> impl Strategy<Value = [u64; 3]> {
        (1..100_000_u64, 1..20_000_u64, 1..2_000_u64)
            .prop_map(|(count, burst, length)| [count, burst, length])
    }

    /// All algorithms with these figures.
    fn all([count, burst, length]: [u64; 3]) -> Vec<Algorithm> {
        let rate = format!("{count}/{length}m");
        let mut all = vec![window(count, length), sliding(count, length), slots(burst)];
        if let Ok(rate) = rate.parse::<Rate>() {
            all.push(bucket(&rate.to_string(), burst));
            all.push(leaky(&rate.to_string(), burst));
            all.push(log(&rate.to_string()));
        }
        all
    }

    /// Tokens in an hour, and at once.
    fn rate_and_size(algorithm: &Algorithm) -> (f64, u64) {
        let hour = |count: u64, micros: u64| count as f64 * 3.6e9 / micros as f64;
        let rate = match algorithm {
            Algorithm::TokenBucket(params) => hour(params.rate.tokens(), params.rate.period()),
            Algorithm::LeakyBucket(params) => hour(params.rate.tokens(), params.rate.period()),
            Algorithm::SlidingWindow(params) => {
                hour(params.count.get(), params.interval.as_micros())
            }
            Algorithm::SlidingLog(params) => hour(params.count.get(), params.interval.as_micros()),
            Algorithm::FixedWindow(params) => match params.windows {
                Windows::Rolling(length) => hour(params.count.get(), length.as_micros()),
                _ => f64::NAN,
            },
            _ => 0.0,
        };
        (rate, algorithm.capacity())
    }

    proptest! {
        #[test]
        fn figures_on_the_way_lie_between_and_only_fall(old in figures(), new in figures()) {
            for (old, new) in all(old).into_iter().flat_map(|old| all(new).into_iter().map(move |new| (old, new))) {
                let Some(start) = old.begin_descent(new) else { continue };
                prop_assert_eq!(old.number(), new.number());
                let (of_old, of_new) = (rate_and_size(&old), rate_and_size(&new));
                let counts_rate_and_size = matches!(old, Algorithm::TokenBucket(_) | Algorithm::LeakyBucket(_) | Algorithm::Concurrency(_));
                let mut before = rate_and_size(&start);
                prop_assert!(before.0 <= of_old.0.max(of_new.0) * (1.0 + 1e-9));
                prop_assert!(!counts_rate_and_size || before.1 == of_old.1.max(of_new.1));
                for left in (0..=60).rev() {
                    let now = rate_and_size(&start.descend(new, Descent::of(left, 60)));
                    prop_assert!(now.0 <= before.0 && now.1 <= before.1, "{old} {new} {left}");
                    prop_assert!(now.0 >= of_new.0 * (1.0 - 1e-9) && now.1 >= of_new.1, "{old} {new} {left}");
                    before = now;
                }
                prop_assert_eq!(start.descend(new, Descent::of(60, 60)), start);
                prop_assert_eq!(start.descend(new, Descent::of(0, 60)), new);
            }
        }
    }
}
