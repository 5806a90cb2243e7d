mod full;
mod lists;
mod resets;
mod shares;
mod size;

use std::sync::atomic::AtomicUsize;

use super::*;
use crate::Mode;
use crate::algorithm::fixed_window::{self, windows::Windows};
use crate::algorithm::token_bucket::Params;
use crate::algorithm::{Difference, Settlement, concurrency, sliding_window};
use crate::decision::Outcome;
use crate::key::Key;
use crate::name::Name;
use crate::rate::{Burst, Cost, Interval, Rate};
use crate::time::Timestamp;

const HOUR: u64 = 3_600_000_000;

fn limit(name: &str) -> Name {
    Name::new(name).unwrap()
}

fn id(name: &Name) -> LimitId<'_> {
    LimitId { name, fingerprint: 7 }
}

fn key(text: &str) -> Key {
    Key::of([Some(text.as_bytes())])
}

fn at(micros: u64) -> Now {
    Timestamp::from_micros(micros).unwrap().into()
}

/// An ask of a bucket of ten tokens, which gains one token each hour.
fn ask(cost: u64) -> Ask {
    ask_of(10, cost)
}

fn ask_of(burst: u64, cost: u64) -> Ask {
    let rate = Rate::new(1, HOUR).unwrap();
    let algorithm = Algorithm::TokenBucket(Params { rate, burst: Burst::new(burst).unwrap() });
    Ask { cost: Cost::new(cost).unwrap(), ..Ask::for_one(algorithm) }
}

struct Table {
    memory: Memory,
    name: Name,
}

struct TableAnswer {
    decisions: Vec<Decision>,
    taken: Vec<Option<BucketReceipt>>,
    verdict: Verdict,
}

impl Memory {
    fn decide(&self, asks: &[&KeyedAsk<'_>], now: Now) -> TableAnswer {
        let asks: Vec<_> = asks.iter().map(|ask| **ask).collect();
        let one = match &asks[..] {
            [ask] => self.take_one(ask, ReceiptUse::Needed, now),
            _ => None,
        };
        let (answers, verdict) = one.map_or_else(
            || self.take(&asks, ReceiptUse::Needed, now),
            |(answer, verdict)| (PerAsk::from_iter([answer]), verdict),
        );
        let decisions = answers.iter().map(|answer| answer.decision).collect();
        let taken = answers.iter().map(|answer| answer.receipt).collect();
        TableAnswer { decisions, taken, verdict }
    }
}

impl Table {
    fn of(max_keys: usize) -> Self {
        Self { memory: Memory::new(max_keys), name: limit("per-client") }
    }

    fn take(&self, name: &str, ask: Ask, now: u64) -> bool {
        let key = key(name);
        let ask = KeyedAsk { limit: id(&self.name), key: &key, ask };
        self.memory.decide(&[&ask], at(now)).verdict == Verdict::PASS
    }

    fn left(&self, name: &str, now: u64) -> u64 {
        let key = key(name);
        let ask = KeyedAsk { limit: id(&self.name), key: &key, ask: ask(1) };
        self.memory.look(&ask, at(now)).remaining
    }
}

#[test]
fn memory_holds_at_most_max_keys() {
    for max_keys in [1, 2, 3, 7, 100, 5_000] {
        let table = Table::of(max_keys);
        for n in 0..3 * max_keys {
            assert!(table.take(&n.to_string(), ask(1), HOUR), "{max_keys}: new key {n}");
            assert!(table.memory.keys() <= max_keys, "{max_keys}");
        }
        assert_eq!(table.memory.keys(), max_keys);
    }
}

#[test]
fn a_drained_bucket_survives_a_flood_of_new_keys() {
    for (max_keys, drained) in [(3, 1), (20, 10), (2_000, 200), (2_000, 1_400)] {
        let table = Table::of(max_keys);
        for n in 0..drained {
            assert!(table.take(&format!("drained {n}"), ask(10), 0));
        }
        for n in 0..10 * max_keys {
            table.take(&format!("flood {n}"), ask(1), u64::try_from(n).unwrap());
        }
        let survivors = (0..drained).filter(|n| table.left(&format!("drained {n}"), 0) == 0);
        assert_eq!(survivors.count(), drained, "{drained} of {max_keys}");
    }
}

#[test]
fn full_buckets_go_before_others_and_the_fullest_before_the_rest() {
    let table = Table::of(3);
    for (name, cost) in [("little", 1), ("much", 9), ("some", 5)] {
        assert!(table.take(name, ask(cost), 0));
    }
    assert!(table.take("new", ask(7), 0));
    let left = ["little", "some", "much"].map(|name| table.left(name, 0));
    assert_eq!(left, [10, 5, 1]);
    // By now `some` is full, `new` lacks one token and `much` lacks three.
    assert!(table.take("newer", ask(9), 6 * HOUR));
    let left = ["some", "new", "much"].map(|name| table.left(name, 6 * HOUR));
    assert_eq!(left, [10, 9, 7]);
}

#[test]
fn a_bucket_that_was_used_meanwhile_is_judged_anew() {
    let table = Table::of(2);
    table.take("a", ask(1), 0);
    table.take("b", ask(2), 0);
    table.take("c", ask(3), 0);
    table.take("b", ask(8), 0);
    table.take("d", ask(1), 0);
    assert_eq!(table.left("b", 0), 0);
    assert_eq!(table.left("c", 0), 10);
}

#[test]
fn a_bucket_in_debt_is_never_evicted_and_new_keys_share_one_then() {
    let table = Table::of(2);
    for name in ["a", "b"] {
        assert!(table.take(name, ask_of(20, 20), HOUR));
        // After a reload to a burst of ten the bucket owes ten tokens.
        assert!(!table.take(name, ask(1), HOUR));
    }
    let passed = (0..30).filter(|n| table.take(&format!("new {n}"), ask(1), HOUR)).count();
    assert_eq!(passed, 10, "thirty new keys share one bucket of ten");
    assert_eq!(table.memory.full.shared.load(Ordering::Relaxed), 30);
    assert_eq!(table.memory.keys(), 2);
    for name in ["a", "b"] {
        assert_eq!(table.left(name, HOUR), 0);
    }
}

#[test]
fn a_request_never_evicts_its_own_buckets() {
    let memory = Memory::new(2);
    let specs = ["one", "two", "three"].map(limit);
    let key = key("client");
    let asks: Vec<_> =
        specs.iter().map(|spec| KeyedAsk { limit: id(spec), key: &key, ask: ask(1) }).collect();
    let asks: Vec<_> = asks.iter().collect();
    for left in (0..10).rev() {
        let decided = memory.decide(&asks, at(0));
        let remaining: Vec<_> = decided.decisions.iter().map(|d| d.remaining).collect();
        assert_eq!(remaining, [left; 3]);
    }
    assert_ne!(memory.decide(&asks, at(0)).verdict, Verdict::PASS);
    assert!(memory.keys() <= 2);
}

#[test]
fn a_refused_request_leaves_no_bucket_behind() {
    let memory = Memory::new(100);
    let specs = ["one", "two"].map(limit);
    for n in 0..10 {
        let key = key(&n.to_string());
        let one = KeyedAsk { limit: id(&specs[0]), key: &key, ask: ask(1) };
        let two = KeyedAsk { limit: id(&specs[1]), key: &key, ask: ask(11) };
        let decided = memory.decide(&[&one, &two], at(0));
        assert_eq!(decided.verdict, Verdict::Refuse { by: 1, retry_after: None });
    }
    assert_eq!(memory.keys(), 0);
}

#[test]
fn memory_is_given_back() {
    let table = Table::of(10_000);
    for n in 0..10_000 {
        table.take(&n.to_string(), ask(1), 0);
    }
    table.take("long", ask(9), 0);
    assert_eq!(table.memory.keys(), 10_000);
    let capacity = |table: &Table| -> usize {
        table.memory.shards.iter().map(|shard| shard.lock().bytes()).sum()
    };
    let full = capacity(&table);
    for _ in 0..SWEEP_STEPS {
        table.memory.sweep(at(HOUR));
    }
    assert_eq!(table.memory.keys(), 1);
    assert_eq!(table.left("long", HOUR), 2);
    assert!(capacity(&table) < full / 20, "{} of {full}", capacity(&table));
}

#[test]
fn a_lowered_bound_holds_after_a_while() {
    let table = Table::of(2_000);
    for n in 0..2_000 {
        table.take(&n.to_string(), ask(1 + n % 5), 0);
    }
    table.memory.set_max_keys(100);
    for _ in 0..50 * SWEEP_STEPS {
        table.memory.sweep(at(0));
    }
    assert_eq!(table.memory.keys(), 100);
}

/// A regression: two of five new clients were rejected at once, because their shards had no bucket to
/// evict.
#[test]
fn no_lock_holds_the_whole_table_after_the_bound_was_raised() {
    let table = Table::of(1_000);
    table.memory.set_max_keys(100_000);
    for n in 0..100_000 {
        table.take(&n.to_string(), ask(1), HOUR);
    }
    let largest = table.memory.shards.iter().map(|shard| shard.lock().len()).max();
    assert!(largest < Some(20_000), "{largest:?} of 100000");
}

#[test]
fn new_keys_have_buckets_of_their_own_after_the_bound_was_lowered() {
    let table = Table::of(1_000_000);
    for n in 0..1_000 {
        table.take(&n.to_string(), ask(1), 0);
    }
    table.memory.set_max_keys(1_000);
    let passed = (0..500).filter(|n| table.take(&format!("new {n}"), ask(10), 0)).count();
    assert_eq!((passed, table.memory.full.shared.load(Ordering::Relaxed)), (500, 0));
    assert_eq!(table.memory.keys(), 1_000);
}

#[test]
fn a_bucket_is_named_by_limit_and_key() {
    let memory = Memory::new(100);
    let (name, other_name) = (limit("per-client"), limit("per-cliens"));
    let (ip, other_ip) = (key("192.0.2.1"), key("192.0.2.2"));
    let left = |limit: LimitId<'_>, key: &Key, ask: Ask| {
        memory.decide(&[&KeyedAsk { limit, key, ask }], at(0)).decisions[0].remaining
    };
    assert_eq!(left(id(&name), &ip, ask(4)), 6);
    assert_eq!(left(id(&name), &other_ip, ask(1)), 9, "another key");
    assert_eq!(left(id(&other_name), &ip, ask(1)), 9, "another name");
    let by_host = LimitId { fingerprint: 8, ..id(&name) };
    assert_eq!(left(by_host, &ip, ask(1)), 9, "other sources");
    let moded = Ask { mode: Mode::Shadow, ..ask_of(100, 1) };
    assert_eq!(left(id(&name), &ip, moded), 95, "other figures go on");
}

#[test]
fn two_threads_never_take_the_same_token() {
    let memory = Memory::new(4_000);
    let specs = ["one", "two", "three"].map(limit);
    let passed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for turn in 0..4 {
            let (memory, specs, passed) = (&memory, &specs, &passed);
            scope.spawn(move || {
                for n in 0..200 {
                    let keys: Vec<Key> = (0..3).map(|k| key(&(n * 3 + k).to_string())).collect();
                    let mut asks: Vec<_> = specs
                        .iter()
                        .zip(&keys)
                        .map(|(spec, key)| KeyedAsk { limit: id(spec), key, ask: ask(3) })
                        .collect();
                    asks.rotate_left(turn % 3);
                    let asks: Vec<_> = asks.iter().collect();
                    let decided = memory.decide(&asks, at(0));
                    if decided.decisions.iter().all(|d| d.outcome == Outcome::Allow) {
                        passed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(passed.load(Ordering::Relaxed), 200 * 3);
}

impl Table {
    /// What the ask took, if it took anything.
    fn taken(&self, name: &str, ask: Ask) -> Option<(Key, Ask, BucketReceipt)> {
        let key = key(name);
        let one = KeyedAsk { limit: id(&self.name), key: &key, ask };
        let taken = self.memory.decide(&[&one], at(HOUR)).taken[0]?;
        Some((key, ask, taken))
    }

    fn give_back(&self, (key, ask, taken): &(Key, Ask, BucketReceipt)) {
        let used = Difference::Less(ask.cost.get());
        let settled = Settlement { used, receipt: taken.receipt, max_wait: ask.max_wait };
        let ask = KeyedAsk { limit: id(&self.name), key, ask: *ask };
        self.memory.settle(&ask, &settled, *taken, at(HOUR));
    }
}

/// These buckets gain nothing before their window ends. A bucket that is used up must stay. Later buckets
/// of which little is used must make room.
#[test]
fn a_used_up_window_survives_a_flood_of_buckets_of_which_little_was_used() {
    let five = Burst::new(5).unwrap();
    let length = Interval::from_micros(300_000_000).unwrap();
    let rate = Rate::new(5, 300_000_000).unwrap();
    let window = fixed_window::Params { count: five, windows: Windows::Rolling(length) };
    for (name, algorithm) in [
        ("fixed window", Algorithm::FixedWindow(window)),
        ("sliding log", Algorithm::SlidingLog(sliding_log::Params::new(rate).unwrap())),
        ("sliding window", Algorithm::SlidingWindow(sliding_window::Params::new(five, length))),
    ] {
        let table = Table::of(1_000);
        // The time is not at a window's edge.
        let begin = 10 * 300_000_000 + 1_000;
        let drained =
            (0..5).filter(|_| table.take("login", Ask::for_one(algorithm), begin)).count();
        assert_eq!(drained, 5, "{name}");
        for n in 0..20_000_u64 {
            assert!(table.take(&n.to_string(), Ask::for_one(algorithm), begin + n), "{name}");
        }
        assert!(!table.take("login", Ask::for_one(algorithm), begin + 20_000), "{name}");
    }
}

/// A regression: buckets of a daily limit, on a key that clients invent, evicted the used-up login buckets
/// of a limit by the minute.
#[test]
fn a_used_up_bucket_survives_fresh_ones_that_take_longer_to_refill() {
    let table = Table::of(500);
    let bucket = |burst: u64, interval: u64| {
        let rate = Rate::new(burst, interval).unwrap();
        let algorithm = Algorithm::TokenBucket(Params { rate, burst: Burst::new(burst).unwrap() });
        Ask { algorithm, ..ask(1) }
    };
    let (minute, day) = (bucket(10, 60_000_000), bucket(1_000, 24 * HOUR));
    let taken = (0..10).filter(|_| table.take("login", minute, 0)).count();
    assert_eq!(taken, 10);
    for n in 0..5_000_u64 {
        assert!(table.take(&n.to_string(), day, 1 + n));
    }
    assert!(!table.take("login", minute, 5_001));
}

/// A regression: a settlement went to the wrong bucket after its request had taken from the shared bucket.
#[test]
fn tokens_of_a_shared_bucket_go_back_to_it() {
    let table = Table::of(1);
    assert!(table.take("old", ask_of(20, 20), HOUR));
    // The bucket owes ten tokens, so it is not evicted, and the next keys share a bucket.
    assert!(!table.take("old", ask(1), HOUR));
    let first = table.taken("a", ask(10)).unwrap();
    assert!(table.taken("b", ask(1)).is_none(), "they share ten");
    table.memory.forget(&KeyedAsk { limit: id(&table.name), key: &key("old"), ask: ask(1) });
    let own = table.taken("a", ask(4)).unwrap();
    assert!(!own.2.from_shared);
    table.give_back(&first);
    assert_eq!(table.left("a", HOUR), 6, "what it took of its own bucket stays taken");
    assert_eq!(table.memory.shared.lock().len(), 0);
}
