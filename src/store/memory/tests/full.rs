//! A full bucket is a new one, also before a sweep has removed it.

use std::time::Duration;

use super::*;
use crate::limit::waiting::MaxWait;
use crate::settings::{CountingKind, WantedFigures, WindowStart, Zone};

/// A day by the time of day, so that windows on the clock begin with it.
const DAY: u64 = 24 * HOUR;

/// The figures of this rate.
fn figures(kind: &CountingKind, rate: &str) -> Algorithm {
    let wanted = WantedFigures { rate: rate.to_owned(), burst: None, queue: None };
    kind.figures(&wanted).unwrap().at(at(DAY)).unwrap()
}

/// A regression: after a reload to slower figures, a bucket that was full long before was used up. Its key was
/// refused for as long as the new figures take to fill it.
#[test]
fn slower_figures_find_no_use_in_a_full_bucket() {
    let daily = CountingKind::FixedWindow(WindowStart::Clock(Zone::find("UTC").unwrap()));
    for (kind, fast, slow) in [
        (CountingKind::TokenBucket, "100/s", "2/s"),
        (CountingKind::LeakyBucket, "100/s", "2/d"),
        (CountingKind::FixedWindow(WindowStart::FirstRequest), "100/s", "2/d"),
        (daily, "100/s", "2/d"),
        (CountingKind::SlidingWindow, "100/s", "2/d"),
        (CountingKind::SlidingLog, "100/s", "2/d"),
    ] {
        let table = Table::of(10);
        let [fast, slow] = [fast, slow].map(|rate| {
            let ask = Ask::for_one(figures(&kind, rate));
            Ask { max_wait: MaxWait::of(Duration::from_secs(1)), ..ask }
        });
        let passed = |name, ask, now| {
            let key = key(name);
            let ask = BucketAsk { spec: &table.spec, key: &key, ask };
            (0..60).filter(|_| table.memory.decide(&[&ask], at(now)).verdict.passes()).count()
        };
        assert_eq!(passed("a", fast, DAY), 60, "{kind:?}");
        // All has come back, and no sweep has run.
        let later = DAY + 3_000_000;
        let [full, new] = ["a", "b"].map(|name| passed(name, slow, later));
        assert!(full == new && new > 0, "{kind:?}: {full} {new}");
        assert_eq!((table.memory.keys(), passed("a", slow, later)), (2, 0), "{kind:?}");
    }
}
