//! Counts the keys that are over a lowered limit.

use super::*;
use crate::config::{Overrides, parse};
use crate::limit::algorithm::sliding_log;
use crate::plan::{LoweredLimit, Plan};

/// A plan with two limits that have these lines.
fn plan(lines: &str) -> Plan {
    let text = format!(
        "[upstreams.api]\nservers = [\"http://a\"]\n\
         [limits.a]\nkey = [\"header:x-user\"]\n{lines}\n[limits.b]\nkey = [\"header:x-user\"]\n{lines}\n\
         [[routes]]\npath = \"/\"\nupstream = \"api\"\nlimits = [\"a\", \"b\"]\n"
    );
    parse("proxy.toml", &text, &|_| None, &Overrides::default()).unwrap().plan
}

/// Lets a key take so many single tokens from a limit.
fn take(memory: &Memory, spec: &LimitSpec, name: &str, tokens: u64, now: Now) {
    let key = key(name);
    let ask = Ask { patience: spec.wait, ..Ask::for_one(spec.figures.at(now).unwrap()) };
    for _ in 0..tokens {
        memory.decide(&[&BucketAsk { spec, key: &key, ask }], now);
    }
}

fn over(memory: &Memory, lowered: &[LoweredLimit], now: Now) -> Vec<(u64, u64)> {
    memory.count_over(lowered, now).iter().map(|count| (count.over, count.keys)).collect()
}

#[test]
fn each_algorithm_counts_the_keys_that_the_new_figures_refuse() {
    for (old, new) in [
        ("rate = \"9/h\"", "rate = \"4/h\""),
        ("rate = \"9/h\"\nburst = 12", "rate = \"9/h\"\nburst = 4"),
        (
            "rate = \"9/h\"\nalgorithm = \"leaky-bucket\"\nqueue = 8",
            "rate = \"9/h\"\nalgorithm = \"leaky-bucket\"\nqueue = 3",
        ),
        (
            "rate = \"9/h\"\nalgorithm = \"fixed-window\"",
            "rate = \"4/h\"\nalgorithm = \"fixed-window\"",
        ),
        (
            "rate = \"9/d\"\nalgorithm = \"fixed-window\"\nalign = \"clock\"",
            "rate = \"4/d\"\nalgorithm = \"fixed-window\"\nalign = \"clock\"",
        ),
        (
            "rate = \"9/h\"\nalgorithm = \"sliding-window\"",
            "rate = \"4/h\"\nalgorithm = \"sliding-window\"",
        ),
        (
            "rate = \"9/h\"\nalgorithm = \"sliding-log\"",
            "rate = \"4/h\"\nalgorithm = \"sliding-log\"",
        ),
        ("limit = 9\nalgorithm = \"concurrency\"", "limit = 4\nalgorithm = \"concurrency\""),
    ] {
        let (before, after) = (plan(old), plan(new));
        let (memory, now) = (Memory::new(1_000), at(1_800_000_000_000_000));
        for tokens in 1..=8 {
            take(&memory, &before.limits[0], &format!("key {tokens}"), tokens, now);
        }
        take(&memory, &before.limits[1], "key 1", 7, now);
        let lowered = after.lowered_from(&before, now);
        // The keys that have used 4 to 8 tokens.
        assert_eq!(over(&memory, &lowered, now), [(5, 8), (1, 1)], "{old}");
    }
}

#[test]
fn full_buckets_are_no_live_keys_and_a_closed_limit_is_over_for_all() {
    let (before, after) = (plan("rate = \"10/s\""), plan("rate = \"0/s\""));
    let (memory, now) = (Memory::new(1_000), at(HOUR));
    for n in 0..100 {
        take(&memory, &before.limits[0], &n.to_string(), 1, now);
    }
    let lowered = after.lowered_from(&before, now);
    assert_eq!(over(&memory, &lowered, now), [(100, 100), (0, 0)]);
    assert_eq!(over(&memory, &lowered, at(2 * HOUR)), [(0, 0), (0, 0)]);
}

#[test]
fn a_key_with_figures_of_its_own_is_not_counted() {
    const OWN: &str = "overrides = [{ key = [\"partner\"], rate = \"100/h\" }]";
    let (before, after) =
        (plan(&format!("rate = \"9/h\"\n{OWN}")), plan(&format!("rate = \"4/h\"\n{OWN}")));
    let (memory, now) = (Memory::new(1_000), at(HOUR));
    for name in ["partner", "other"] {
        take(&memory, &before.limits[0], name, 8, now);
    }
    assert_eq!(over(&memory, &after.lowered_from(&before, now), now), [(1, 1), (0, 0)]);
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

/// Measures the time of a count over a full table. Each of its shards is locked for its part of this time.
#[test]
#[ignore = "a measurement: run it alone, in release"]
fn a_count_over_a_million_keys() {
    let (before, after) = (plan("rate = \"9/h\""), plan("rate = \"4/h\""));
    let (memory, now) = (Memory::new(1_000_000), at(HOUR));
    for n in 0..1_000_000 {
        take(&memory, &before.limits[0], &n.to_string(), 1, now);
    }
    let lowered = after.lowered_from(&before, now);
    let began = std::time::Instant::now();
    assert_eq!(over(&memory, &lowered, now)[0], (0, 1_000_000));
    println!("{:?} for {} shards", began.elapsed(), memory.shards.len());
}

#[test]
fn a_sliding_log_is_counted_and_stays_as_it_is() {
    let lines = |rate: &str| format!("rate = \"{rate}\"\nalgorithm = \"sliding-log\"");
    let (before, after) = (plan(&lines("9/h")), plan(&lines("4/m")));
    let (memory, now) = (Memory::new(1_000), at(HOUR));
    take(&memory, &before.limits[0], "a", 8, now);
    let later = at(HOUR + HOUR / 2);
    let lowered = [LoweredLimit {
        spec: Arc::clone(&after.limits[0]),
        before: before.limits[0].figures.at(now).unwrap(),
        after: after.limits[0].figures.at(now).unwrap(),
    }];
    assert_eq!(over(&memory, &lowered, later), [(0, 1)], "not in the last minute");
    let params = sliding_log::Params::new("9/h".parse().unwrap()).unwrap();
    let ask = Ask::for_one(Algorithm::SlidingLog(params));
    let left = memory.look(&BucketAsk { spec: &before.limits[0], key: &key("a"), ask }, later);
    assert_eq!(left.remaining, 1, "the entries are still there");
}
