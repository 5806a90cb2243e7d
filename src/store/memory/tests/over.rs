//! Counts the keys that are over a lowered limit.

use super::*;
use crate::limit::waiting::MaxWait;
use crate::plan::{
    CountingKind, Figures, KeyDisplay, LoweredLimit, OverrideSpec, WantedFigures, WindowStart, Zone,
};
use crate::request::overrides::{KeyOverrides, Part};

const NOW: u64 = 1_800_000_000_000_000;

/// The figures that these words make.
pub(super) fn figures(
    kind: &CountingKind,
    rate: &str,
    burst: Option<u64>,
    queue: Option<u64>,
) -> Algorithm {
    let wanted = WantedFigures { rate: rate.to_owned(), burst, queue };
    kind.figures(&wanted).unwrap().at(at(NOW)).unwrap()
}

fn bucket(rate: &str) -> Algorithm {
    figures(&CountingKind::TokenBucket, rate, None, None)
}

fn slots(slots: u64) -> Algorithm {
    let lease = std::time::Duration::from_secs(60);
    Algorithm::Concurrency(concurrency::Params::new(Burst::new(slots).unwrap(), lease))
}

/// A limit that a reload lowers.
fn lowered(name: &str, before: Algorithm, after: Algorithm) -> LoweredLimit {
    let wait = match before {
        Algorithm::LeakyBucket(_) => MaxWait::ENDLESS,
        _ => MaxWait::NONE,
    };
    LoweredLimit { spec: Arc::new(LimitSpec { wait, ..limit(name) }), before, after }
}

/// Lets a key take this number of single tokens, by the limit's old figures.
fn take(memory: &Memory, limit: &LoweredLimit, name: &str, tokens: u64, now: Now) {
    let (spec, key) = (&*limit.spec, key(name));
    let ask = Ask { max_wait: spec.wait, ..Ask::for_one(limit.before) };
    for _ in 0..tokens {
        memory.decide(&[&BucketAsk { spec, key: &key, ask }], now);
    }
}

fn over(memory: &Memory, lowered: &[LoweredLimit], now: Now) -> Vec<(u64, u64)> {
    memory
        .count_over(lowered, KeyDisplay::Hashed, now)
        .iter()
        .map(|count| (count.over, count.keys))
        .collect()
}

#[test]
fn each_algorithm_counts_the_keys_that_the_new_figures_refuse() {
    let rolling = CountingKind::FixedWindow(WindowStart::FirstRequest);
    let daily = CountingKind::FixedWindow(WindowStart::Clock(Zone::find("UTC").unwrap()));
    let (token, leaky) = (CountingKind::TokenBucket, CountingKind::LeakyBucket);
    let (window, log) = (CountingKind::SlidingWindow, CountingKind::SlidingLog);
    let plain = |kind, rate| figures(kind, rate, None, None);
    for (before, after) in [
        (plain(&token, "9/h"), plain(&token, "4/h")),
        (figures(&token, "9/h", Some(12), None), figures(&token, "9/h", Some(4), None)),
        (figures(&leaky, "9/h", None, Some(8)), figures(&leaky, "9/h", None, Some(3))),
        (plain(&rolling, "9/h"), plain(&rolling, "4/h")),
        (plain(&daily, "9/d"), plain(&daily, "4/d")),
        (plain(&window, "9/h"), plain(&window, "4/h")),
        (plain(&log, "9/h"), plain(&log, "4/h")),
        (slots(9), slots(4)),
    ] {
        let limits = ["a", "b"].map(|name| lowered(name, before, after));
        let (memory, now) = (Memory::new(1_000), at(NOW));
        for tokens in 1..=8 {
            take(&memory, &limits[0], &format!("key {tokens}"), tokens, now);
        }
        take(&memory, &limits[1], "key 1", 7, now);
        // The keys that have used 4 to 8 tokens.
        assert_eq!(over(&memory, &limits, now), [(5, 8), (1, 1)], "{before}");
    }
}

#[test]
fn full_buckets_are_no_live_keys_and_a_closed_limit_is_over_for_all() {
    let limits = [lowered("a", bucket("10/s"), Algorithm::Closed)];
    let (memory, now) = (Memory::new(1_000), at(HOUR));
    for n in 0..100 {
        take(&memory, &limits[0], &n.to_string(), 1, now);
    }
    assert_eq!(over(&memory, &limits, now), [(100, 100)]);
    assert_eq!(over(&memory, &limits, at(2 * HOUR)), [(0, 0)]);
}

#[test]
fn a_key_with_figures_of_its_own_is_not_counted() {
    let LoweredLimit { spec, before, after } = lowered("a", bucket("9/h"), bucket("4/h"));
    let all = OverrideSpec { figures: Figures::Unlimited, name: None };
    let own = vec![(vec![Part::Exact("partner".to_owned())], all)];
    let spec = LimitSpec { overrides: KeyOverrides::new(own), ..LimitSpec::clone(&spec) };
    let limits = [LoweredLimit { spec: Arc::new(spec), before, after }];
    let (memory, now) = (Memory::new(1_000), at(HOUR));
    for name in ["partner", "other"] {
        take(&memory, &limits[0], name, 8, now);
    }
    assert_eq!(over(&memory, &limits, now), [(1, 1)]);
}

/// The mark of the limit is a part of the identity. It must leave enough of the hash to keep buckets apart, and to
/// fill all shards.
#[test]
fn the_mark_of_a_limit_leaves_its_buckets_spread() {
    let table = Table::of(50_000);
    for n in 0..50_000 {
        assert!(table.take(&n.to_string(), ask(1), HOUR));
    }
    assert_eq!(table.memory.keys(), 50_000);
    let sizes: Vec<_> = table.memory.shards.iter().map(|shard| shard.lock().len()).collect();
    assert!(sizes.iter().all(|size| (600..1_000).contains(size)), "{sizes:?}");
}

#[test]
fn a_sliding_log_is_counted_and_stays_as_it_is() {
    let log = |rate| figures(&CountingKind::SlidingLog, rate, None, None);
    let limits = [lowered("a", log("9/h"), log("4/m"))];
    let (memory, later) = (Memory::new(1_000), at(HOUR + HOUR / 2));
    take(&memory, &limits[0], "a", 8, at(HOUR));
    assert_eq!(over(&memory, &limits, later), [(0, 1)], "not in the last minute");
    let ask = Ask::for_one(log("9/h"));
    let left = memory.look(&BucketAsk { spec: &limits[0].spec, key: &key("a"), ask }, later);
    assert_eq!(left.remaining, 1, "the entries are still there");
}

/// Measures the time of a count over a full table. Each of its shards is locked for its part of this time.
#[test]
#[ignore = "a measurement: run it alone, in release"]
fn a_count_over_a_million_keys() {
    let limits = [lowered("a", bucket("9/h"), bucket("4/h"))];
    let (memory, now) = (Memory::new(1_000_000), at(HOUR));
    for n in 0..1_000_000 {
        take(&memory, &limits[0], &n.to_string(), 1, now);
    }
    let began = tokio::time::Instant::now();
    assert_eq!(over(&memory, &limits, now), [(0, 1_000_000)]);
    println!("{:?} for {} shards", began.elapsed(), memory.shards.len());
}
