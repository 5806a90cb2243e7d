//! Buckets that are lists, and slots.

use super::*;

/// An ask of a sliding log of ten permits in an hour.
fn log(cost: u64) -> Ask {
    let params = sliding_log::Params::new(Rate::new(10, HOUR).unwrap()).unwrap();
    Ask { algorithm: Algorithm::SlidingLog(params), ..ask(cost) }
}

#[test]
fn lists_count_as_keys_and_give_memory_back() {
    let table = Table::of(100);
    let lists = |table: &Table| -> usize {
        table.memory.shards.iter().map(|shard| shard.lock().lists()).sum()
    };
    for n in 0..300 {
        assert!(table.take(&n.to_string(), log(3), HOUR));
        assert!(table.memory.keys() <= 100);
    }
    assert_eq!(lists(&table), 100, "a list goes with its bucket");
    assert!(!table.take("299", log(8), HOUR + 5), "the newest are there");
    for _ in 0..SWEEP_STEPS {
        table.memory.sweep(at(2 * HOUR));
    }
    assert_eq!((table.memory.keys(), lists(&table)), (0, 0));
}

#[test]
fn a_list_that_others_share_is_a_list() {
    let table = Table::of(1);
    assert!(table.take("old", ask_of(20, 20), HOUR));
    // The bucket owes ten tokens, so it is not evicted.
    assert!(!table.take("old", ask(1), HOUR));
    let passed = (0..30).filter(|n| table.take(&format!("new {n}"), log(1), HOUR)).count();
    assert_eq!(passed, 10);
    assert!(table.take("later", log(1), 2 * HOUR));
}

fn slot(limit: u64) -> Ask {
    let lease = std::time::Duration::from_secs(60);
    let params = concurrency::Params::new(Burst::new(limit).unwrap(), lease);
    Ask { algorithm: Algorithm::Concurrency(params), ..ask(1) }
}

#[test]
fn slots_that_are_held_are_never_forgotten_and_free_ones_at_once() {
    let table = Table::of(2);
    let hold = |name| table.taken(name, slot(2));
    let held = ["a", "a", "b"].map(|name| hold(name).unwrap());
    assert!(hold("a").is_none());
    table.memory.sweep(at(Timestamp::MAX.as_micros() - 1));
    assert_eq!(table.memory.keys(), 2);
    // There is no room for other keys. They share two slots.
    let shared = ["c", "d"].map(|name| hold(name).unwrap());
    assert!(hold("e").is_none());
    held.iter().for_each(|slot| table.give_back(slot));
    assert_eq!(table.memory.keys(), 0);
    // Now there is room. Slots from the shared bucket still go back to the shared bucket.
    let own = hold("c").unwrap();
    shared.iter().for_each(|slot| table.give_back(slot));
    assert_eq!(table.memory.shared.lock().len(), 0);
    assert_eq!(table.memory.keys(), 1);
    table.give_back(&own);
    assert_eq!(table.memory.keys(), 0);
}
