//! A full bucket is a new one, also before a sweep has removed it.

use std::time::Duration;

use super::*;
use crate::algorithm::leaky_bucket;
use crate::waiting::MaxWait;

/// A day by the time of day, so that windows on the clock begin with it.
const DAY: u64 = 24 * HOUR;

/// The figures of each algorithm for so many requests in this interval.
fn figures(count: u64, interval: u64) -> [Algorithm; 6] {
    let (rate, burst) = (Rate::new(count, interval).unwrap(), Burst::new(count).unwrap());
    let interval = Interval::from_micros(interval).unwrap();
    let window = |windows| Algorithm::FixedWindow(fixed_window::Params { count: burst, windows });
    [
        Algorithm::TokenBucket(Params { rate, burst }),
        Algorithm::LeakyBucket(leaky_bucket::Params::new(rate, count).unwrap()),
        window(Windows::Rolling(interval)),
        window(Windows::Clock(interval)),
        Algorithm::SlidingWindow(sliding_window::Params::new(burst, interval)),
        Algorithm::SlidingLog(sliding_log::Params::new(rate).unwrap()),
    ]
}

/// A regression: after a reload to slower figures, a bucket that was full long before was used up. Its key was
/// refused for as long as the new figures take to fill it.
#[test]
fn slower_figures_find_no_use_in_a_full_bucket() {
    for (fast, slow) in figures(100, 1_000_000).into_iter().zip(figures(2, DAY)) {
        let table = Table::of(10);
        let kind = fast.name();
        let [fast, slow] = [fast, slow].map(|algorithm| {
            let ask = Ask::for_one(algorithm);
            Ask { max_wait: MaxWait::of(Duration::from_secs(1)), ..ask }
        });
        let passed = |name, ask, now| {
            let key = key(name);
            let ask = KeyedAsk { limit: id(&table.name), key: &key, ask };
            (0..60).filter(|_| table.memory.decide(&[&ask], at(now)).verdict.passes()).count()
        };
        assert_eq!(passed("a", fast, DAY), 60, "{kind}");
        // All has come back, and no sweep has run.
        let later = DAY + 3_000_000;
        let [full, new] = ["a", "b"].map(|name| passed(name, slow, later));
        assert!(full == new && new > 0, "{kind}: {full} {new}");
        assert_eq!((table.memory.keys(), passed("a", slow, later)), (2, 0), "{kind}");
    }
}
