//! Tests of what is known of a limit while clients send many keys.

use super::super::testing;
use super::table::OWN_ENTRIES;
use super::tests::{OTHER, PER_CLIENT, at, counts, lines_of, rejected, summary};
use super::*;

/// Rejects so many keys of `per-client`.
fn flood(throttled: &Throttled, keys: u64, millis: u64) {
    for key in 0..keys {
        throttled.record(&rejected(&key.to_string().as_str()), at(millis));
    }
}

/// A client that sends many keys to one limit must not hide what the other limits do.
#[test]
fn a_flood_of_one_limit_hides_no_other_limit() {
    let throttled = summary();
    let other = ThrottleEvent { limit: &OTHER, ..rejected(&"a") };
    let lines = testing::lines(|| {
        for interval in 0..3 {
            flood(&throttled, 50_000, interval * 10_000 + 1);
            (0..9).for_each(|_| throttled.record(&other, at(interval * 10_000 + 2)));
            throttled.tick(at((interval + 1) * 10_000 + 1));
            assert_eq!(throttled.throttled_keys(&OTHER), 1);
        }
        (4..6).for_each(|interval| throttled.tick(at(interval * 10_000 + 1)));
    });
    let of_other: Vec<_> = lines.iter().filter(|line| line["limit"] == "other").collect();
    let told: Vec<_> = of_other.iter().map(|line| line["count"].as_u64().unwrap()).collect();
    assert_eq!(told, [1, 8, 9, 9, 27], "at once, each interval, and the end");
    let end = of_other.last().unwrap();
    assert_eq!((&end["message"], &end["keys"]), (&"throttling ended".into(), &1.into()));
}

#[test]
fn a_full_table_takes_a_few_keys_of_each_limit_and_no_more() {
    let throttled = summary();
    let lines = lines_of(|| {
        flood(&throttled, 50_000, 0);
        for key in 0..500 {
            let key = format!("k{key}");
            throttled.record(&ThrottleEvent { limit: &OTHER, ..rejected(&key.as_str()) }, at(1));
        }
        throttled.tick(at(10_000));
    });
    assert_eq!(throttled.throttled_keys(&OTHER), OWN_ENTRIES as u64);
    assert!(throttled.throttled_keys(&PER_CLIENT) <= ENTRIES as u64);
    let (of_other, others): (Vec<_>, Vec<_>) =
        lines.into_iter().partition(|line| line["limit"] == "other");
    assert_eq!((counts(&of_other), counts(&others)), (500, 50_000));
    let single = of_other.iter().filter(|line| line["key"] != "others").count() as u64;
    let shared: u64 = of_other.iter().filter_map(|line| line["keys"].as_u64()).sum();
    assert!(single >= 1 && shared <= OWN_ENTRIES as u64, "{single} {shared}");
}
