//! Buckets that were reset while requests held something of them.

use super::*;

impl Table {
    fn make_new(&self, name: &str, ask: Ask) {
        self.memory.forget(&KeyedAsk { limit: id(&self.name), key: &key(name), ask });
    }
}

/// A regression: the requests of the old bucket gave their slots back to the new bucket, and after each reset more
/// requests passed at once than before.
#[test]
fn a_slot_of_a_bucket_that_was_made_new_does_not_go_back_to_the_new_one() {
    let limit =
        concurrency::Params::new(Burst::new(2).unwrap(), std::time::Duration::from_secs(60));
    let slot = Ask::for_one(Algorithm::Concurrency(limit));
    let table = Table::of(100);
    let mut held: Vec<_> = (0..2).filter_map(|_| table.taken("a", slot)).collect();
    for _ in 0..3 {
        table.make_new("a", slot);
        let later: Vec<_> = (0..3).filter_map(|_| table.taken("a", slot)).collect();
        assert_eq!(later.len(), 2);
        held.iter().for_each(|old| table.give_back(old));
        assert!(table.taken("a", slot).is_none(), "both slots are held");
        held = later;
    }
    table.make_new("b", slot);
    held.iter().for_each(|own| table.give_back(own));
    assert!(table.taken("a", slot).is_some(), "another key was reset, and slots are free");
}

/// A regression: a request that had begun before the reset gave its estimate back to the new bucket, with most
/// algorithms.
#[test]
fn an_estimate_from_before_a_bucket_was_made_new_stays_out_of_the_new_one() {
    let (ten, hour) = (Burst::new(10).unwrap(), Interval::from_micros(HOUR).unwrap());
    let rate = Rate::new(10, HOUR).unwrap();
    let window = |windows| fixed_window::Params { count: ten, windows };
    for algorithm in [
        Algorithm::TokenBucket(Params { rate, burst: ten }),
        Algorithm::FixedWindow(window(Windows::Rolling(hour))),
        Algorithm::FixedWindow(window(Windows::Clock(hour))),
        Algorithm::SlidingWindow(sliding_window::Params::new(ten, hour)),
        Algorithm::SlidingLog(sliding_log::Params::new(rate).unwrap()),
    ] {
        let (table, five) = (Table::of(100), Ask { algorithm, ..ask(5) });
        let old = table.taken("a", five).unwrap();
        table.make_new("a", five);
        let later = [table.taken("a", five).unwrap(), table.taken("a", five).unwrap()];
        table.give_back(&old);
        assert!(table.taken("a", Ask { algorithm, ..ask(1) }).is_none(), "{algorithm:?}");
        table.give_back(&later[1]);
        assert!(table.taken("a", five).is_some(), "{algorithm:?}: its own go back");
    }
}

/// What is used beyond the estimate is used now, as it is in Redis.
#[test]
fn use_beyond_the_estimate_counts_in_the_new_bucket() {
    let table = Table::of(100);
    let (key, ask, taken) = table.taken("a", ask(1)).unwrap();
    table.make_new("a", ask);
    let used = Difference::More(4);
    let settled = Settlement { used, receipt: taken.receipt, max_wait: ask.max_wait };
    table.memory.settle(
        &KeyedAsk { limit: id(&table.name), key: &key, ask },
        &settled,
        taken,
        at(HOUR),
    );
    assert_eq!(table.left("a", HOUR), 6);
}

#[test]
fn the_note_of_resets_is_bounded() {
    let table = Table::of(100);
    let first = table.taken("a", ask(5)).unwrap();
    table.make_new("a", ask(1));
    (0..5_000).for_each(|_| table.make_new("b", ask(1)));
    assert!(table.taken("a", ask(10)).is_some());
    table.give_back(&first);
    assert_eq!(table.left("a", HOUR), 5, "the reset of its bucket is no longer known");
}
