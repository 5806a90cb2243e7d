//! Measures the memory of a bucket. The measurements prove nothing right or wrong, so they are ignored by
//! default.

use super::*;
use crate::memory::packed::Packed;

#[test]
fn a_packed_bucket_has_32_bytes() {
    assert_eq!(size_of::<Packed>(), 32);
}

/// Measures the bytes of a bucket.
#[test]
#[ignore = "a measurement: run it alone, in release"]
fn a_million_keys() {
    let resident = || -> usize {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4_096
    };
    let before = resident();
    let table = Table::of(1_000_000);
    for n in 0..1_000_000 {
        table.take(&n.to_string(), ask(1), 0);
    }
    println!(
        "{} bytes for each of {} keys",
        (resident() - before) / 1_000_000,
        table.memory.keys()
    );
}

/// Measures the bytes of a permit in short and in long sliding logs.
#[test]
#[ignore = "a measurement: run it alone, in release"]
fn a_million_permits() {
    let params = sliding_log::Params::new(Rate::new(10_000, HOUR).unwrap()).unwrap();
    let ask = Ask { algorithm: Algorithm::SlidingLog(params), ..ask(1) };
    for (keys, permits) in [(1_000_000, 1), (100_000, 10), (10_000, 100), (100, 10_000)] {
        let table = Table::of(1_000_000);
        for n in 0..permits {
            (0..keys).for_each(|key| assert!(table.take(&key.to_string(), ask, HOUR + n)));
        }
        let bytes: usize = table.memory.shards.iter().map(|shard| shard.lock().bytes()).sum();
        println!("{} bytes for each permit of {keys} logs of {permits}", bytes / 1_000_000);
    }
}
