//! Tests of how the keys of a limit are counted.

use super::super::testing;
use super::table::OWN_ENTRIES;
use super::tests::{OTHER, PER_CLIENT, TEN, at, counts, lines_of, rejected, summary};
use super::*;

/// Rejects `keys` keys of `per-client`.
fn flood(throttled: &Throttled, keys: u64, millis: u64) {
    for key in 0..keys {
        throttled.record(&rejected(&key.to_string().as_str()), at(millis));
    }
}

#[test]
fn a_flood_of_keys_stays_bounded_and_adds_up() {
    let throttled = summary();
    let first = lines_of(|| {
        for key in 0..50_000 {
            throttled.record(&rejected(&key.to_string().as_str()), at(0));
        }
        for _ in 0..500 {
            throttled.record(&rejected(&"7"), at(1));
            throttled.record(&rejected(&"2000"), at(1));
        }
    });
    assert_eq!(first.len(), LINES - 1);
    let entries: usize = throttled.shards.iter().map(|shard| shard.lock().entries.len()).sum();
    assert!(entries <= ENTRIES, "{entries}");

    let second = lines_of(|| throttled.tick(at(10_000)));
    assert_eq!(second.len(), LINES);
    assert_eq!(counts(&first) + counts(&second), 51_000);
    let heavy: Vec<_> = second.iter().filter(|line| line["count"].as_u64() >= Some(500)).collect();
    let keys: Vec<_> = heavy.iter().map(|line| line["key"].as_str().unwrap()).collect();
    assert!(keys.contains(&"7") && keys.contains(&"2000"), "the most throttled have lines");
    let others = second.last().unwrap();
    assert_eq!(others["key"], "others");
    assert!(others["keys"].as_u64().unwrap() > 9_000);
    assert_eq!((&others["limit"], &others["decision"]), (&"per-client".into(), &"rejected".into()));
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

/// The end of the throttling by this limit.
fn end_of(lines: &[serde_json::Value], limit: &str) -> Option<(u64, u64)> {
    let mut ends = lines.iter().filter(|line| line["message"] == "throttling ended");
    let end = ends.find(|line| line["limit"] == limit)?;
    Some((end["keys"].as_u64()?, end["count"].as_u64()?))
}

#[test]
fn keys_are_counted_in_each_mode() {
    for (mode, throttle_lines, end) in [
        (ThrottleLog::Summary, 4, Some((2, 12))),
        (ThrottleLog::Each, 12, Some((2, 12))),
        (ThrottleLog::Off, 0, None),
    ] {
        let throttled = Throttled::new(mode, Duration::from_secs(10));
        let lines = testing::lines(|| {
            for second in 0..6 {
                throttled.record(&rejected(&"a"), at(second * 1_000));
                throttled.record(&rejected(&"b"), at(second * 1_000));
            }
            throttled.tick(at(10_000));
            assert_eq!(throttled.throttled_keys(&PER_CLIENT), 2, "{mode:?}");
            throttled.tick(at(20_000));
            assert_eq!(throttled.throttled_keys(&PER_CLIENT), 0, "{mode:?}");
        });
        let told = lines.iter().filter(|line| line["message"] == "throttled").count();
        assert_eq!((told, end_of(&lines, "per-client")), (throttle_lines, end), "{mode:?}");
    }
}

/// If two limits refuse a request, its line names one of them. The other one has rejected the key, too.
#[test]
fn a_rejection_beside_another_one_counts_without_a_line() {
    let throttled = summary();
    let other = ThrottleEvent { limit: &OTHER, ..rejected(&"a") };
    let lines = testing::lines(|| {
        for second in 0..6 {
            throttled.record(&rejected(&"a"), at(second * 1_000));
            throttled.record_beside(&other, at(second * 1_000));
        }
        throttled.tick(at(10_000));
        assert_eq!(throttled.throttled_keys(&OTHER), 1);
        throttled.record_beside(&other, at(11_000));
        throttled.record(&other, at(12_000));
        throttled.tick(at(20_000));
        throttled.tick(at(30_000));
    });
    let told = lines.iter().filter(|line| line["message"] == "throttled");
    let told: Vec<_> = told.map(|line| (line["limit"].as_str(), line["count"].as_u64())).collect();
    let expected = [("per-client", 1), ("per-client", 5), ("other", 1)];
    assert_eq!(told, expected.map(|(limit, count)| (Some(limit), Some(count))));
    assert_eq!(end_of(&lines, "other"), Some((1, 8)));
}

#[test]
fn a_key_that_goes_on_counts_once() {
    let throttled = summary();
    let lines = testing::lines(|| {
        for interval in 0..6 {
            flood(&throttled, 200, interval * 10_000);
            throttled.tick(at((interval + 1) * 10_000));
            assert_eq!(throttled.throttled_keys(&PER_CLIENT), 200);
        }
        throttled.tick(at(80_000));
    });
    assert_eq!(end_of(&lines, "per-client"), Some((200, 1_200)));
}

/// The second rejection comes after a summary has left its shard, and before the summary closes the interval.
#[test]
fn a_rejection_during_a_summary_does_not_end_the_throttling() {
    let (mut window, event) = (Window::new(ThrottleLog::Summary, TEN), rejected(&"a"));
    window.enter(&event, false, true, at(0));
    window.group(&event).add(1, 1, at(0));
    window.close(0, true);
    window.group(&event).remove(true, 0);
    window.enter(&event, false, true, at(20_000));
    window.close(0, true);
    window.group(&event).add(1, 1, at(20_000));
    window.close(0, true);
    assert_eq!(window.throttled_keys(&PER_CLIENT), 1);
}

#[test]
fn many_keys_of_an_episode_are_estimated() {
    let throttled = summary();
    let lines = testing::lines(|| {
        for interval in 0..3 {
            for key in 0..8_000 {
                let key = (interval * 8_000 + key).to_string();
                throttled.record(&rejected(&key.as_str()), at(interval * 10_000));
            }
            let other = ThrottleEvent { limit: &OTHER, ..rejected(&"a") };
            throttled.record(&other, at(interval * 10_000));
            throttled.tick(at((interval + 1) * 10_000));
        }
        throttled.tick(at(50_000));
    });
    let (keys, count) = end_of(&lines, "per-client").unwrap();
    assert_eq!(count, 24_000);
    assert!((20_000..28_000).contains(&keys), "an estimate of 24,000: {keys}");
    assert_eq!(end_of(&lines, "other"), Some((1, 3)));
}

/// A regression: if a limit in shadow would hold some requests and reject others, it had two lines with the same
/// fields.
#[test]
fn a_shadow_limit_has_one_line_for_a_key() {
    let throttled = summary();
    let delay = Duration::from_secs(1);
    let lines = lines_of(|| {
        for outcome in [
            Outcome::Delay(delay),
            Outcome::Delay(delay),
            Outcome::Reject { retry_after: Some(delay) },
        ] {
            let event = ThrottleEvent { outcome, mode: Mode::Shadow, ..rejected(&"a") };
            throttled.record(&event, at(0));
        }
        throttled.tick(at(10_000));
    });
    let told: Vec<_> = lines.iter().map(|line| line["count"].as_u64()).collect();
    assert_eq!(told, [Some(1), Some(2)]);
    // The last request's answer.
    assert_eq!((&lines[1]["retry_after_ms"], lines[1].get("delay_ms")), (&1_000.into(), None));
}
