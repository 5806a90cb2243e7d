use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{key_hash, testing};
use super::*;
use crate::limit::algorithm::token_bucket;
use crate::limit::rate::{Burst, Rate};

pub(super) const TEN: Duration = Duration::from_secs(10);

pub(super) fn at(millis: u64) -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000 + millis * 1000).unwrap()
}

pub(super) static PER_CLIENT: LazyLock<Name> = LazyLock::new(|| Name::new("per-client").unwrap());
pub(super) static OTHER: LazyLock<Name> = LazyLock::new(|| Name::new("other").unwrap());

pub(super) fn figures(rate: &str) -> Algorithm {
    let rate: Rate = rate.parse().unwrap();
    let burst = Burst::new(rate.count()).unwrap();
    Algorithm::TokenBucket(token_bucket::Params { rate, burst })
}

pub(super) fn rejected<'e>(key: &'e &'e str) -> ThrottleEvent<'e> {
    ThrottleEvent {
        limit: &PER_CLIENT,
        key: key_hash(key.as_bytes()),
        shown: key,
        route: "/users/{id}",
        client: [203, 0, 113, 7].into(),
        method: "GET",
        path: "/users/42",
        request_id: None,
        id: None,
        name: None,
        plan: None,
        figures: figures("100/s"),
        outcome: Outcome::Reject { retry_after: Some(Duration::from_micros(1500)) },
        mode: Mode::Enforce,
        reason: None,
    }
}

pub(super) fn summary() -> Throttled {
    Throttled::new(ThrottleLog::Summary, TEN)
}

/// The throttle lines.
pub(super) fn lines_of(run: impl FnOnce()) -> Vec<Value> {
    let lines = testing::lines(run);
    lines.into_iter().filter(|line| line["message"] == "throttled").collect()
}

pub(super) fn counts(lines: &[Value]) -> u64 {
    lines.iter().map(|line| line["count"].as_u64().unwrap()).sum()
}

pub(super) fn without_time(mut line: Value) -> Value {
    line.as_object_mut().unwrap().remove("timestamp");
    line
}

#[test]
fn the_first_comes_at_once_and_the_rest_at_the_end_of_the_interval() {
    let throttled = summary();
    let first = lines_of(|| throttled.record(&rejected(&"a"), at(0)));
    let mut expected = json!({
        "level": "WARN", "target": "tidegate::throttle", "message": "throttled",
        "limit": "per-client", "key": "a", "route": "/users/{id}", "client": "203.0.113.7",
        "method": "GET", "path": "/users/42", "decision": "rejected", "retry_after_ms": 2,
        "rate": "100/s", "count": 1,
    });
    assert_eq!(first.into_iter().map(without_time).collect::<Vec<_>>(), [expected.clone()]);

    let last = ThrottleEvent {
        route: "/other",
        client: [10, 0, 0, 1].into(),
        method: "POST",
        path: "/other/path",
        outcome: Outcome::Reject { retry_after: None },
        ..rejected(&"a")
    };
    let silent = lines_of(|| {
        throttled.record(&rejected(&"a"), at(10));
        throttled.record(&last, at(20));
        throttled.tick(at(9_999));
    });
    assert_eq!(silent, Vec::<Value>::new());

    let line = expected.as_object_mut().unwrap();
    line.remove("retry_after_ms");
    for (field, value) in [
        ("route", json!("/other")),
        ("client", json!("10.0.0.1")),
        ("method", json!("POST")),
        ("path", json!("/other/path")),
        ("count", json!(2)),
        ("interval_ms", json!(10_000)),
    ] {
        line.insert(field.into(), value);
    }
    let lines = lines_of(|| throttled.tick(at(10_003)));
    assert_eq!(lines.into_iter().map(without_time).collect::<Vec<_>>(), [expected]);
}

#[test]
fn limits_keys_and_decisions_are_counted_apart() {
    let throttled = summary();
    let events = [
        rejected(&"a"),
        ThrottleEvent { limit: &OTHER, ..rejected(&"a") },
        ThrottleEvent {
            outcome: Outcome::Reject { retry_after: None },
            mode: Mode::Shadow,
            ..rejected(&"a")
        },
        rejected(&"b"),
        ThrottleEvent { outcome: Outcome::Delay(Duration::from_micros(1500)), ..rejected(&"a") },
        ThrottleEvent { outcome: Outcome::Delay(TEN), mode: Mode::Shadow, ..rejected(&"c") },
        ThrottleEvent { mode: Mode::Mark, ..rejected(&"a") },
        ThrottleEvent { outcome: Outcome::Delay(TEN), mode: Mode::Mark, ..rejected(&"d") },
    ];
    let lines = lines_of(|| {
        for event in events.iter().chain(&events) {
            throttled.record(event, at(0));
        }
    });
    assert_eq!(lines.len(), events.len());
    assert_eq!(lines[2]["decision"], "shadow");
    assert_eq!(
        (&lines[6]["decision"], &lines[7]["decision"]),
        (&"marked".into(), &"shadow".into())
    );
    assert_eq!(lines[2].get("retry_after_ms"), None);
    for (line, decision, delay) in [(&lines[4], "delayed", 2), (&lines[5], "shadow", 10_000)] {
        assert_eq!((&line["decision"], &line["delay_ms"]), (&decision.into(), &delay.into()));
        assert_eq!(line.get("retry_after_ms"), None);
    }
}

#[test]
fn a_key_that_rests_for_an_interval_is_new_again() {
    let throttled = summary();
    let lines = lines_of(|| {
        throttled.record(&rejected(&"a"), at(9_000));
        throttled.tick(at(19_000));
        throttled.record(&rejected(&"a"), at(28_000));
        throttled.tick(at(29_000));
        throttled.tick(at(39_000));
        throttled.record(&rejected(&"a"), at(40_000));
    });
    let intervals: Vec<_> = lines.iter().map(|line| line.get("interval_ms").is_some()).collect();
    assert_eq!(intervals, [false, true, false]);
    assert_eq!(counts(&lines), 3);
}

#[test]
fn an_interval_begins_with_the_first_rejection_after_silence() {
    let throttled = summary();
    let lines = lines_of(|| {
        throttled.record(&rejected(&"a"), at(0));
        throttled.tick(at(10_000));
        throttled.tick(at(20_000));
        throttled.record(&rejected(&"b"), at(27_000));
        throttled.record(&rejected(&"b"), at(27_000));
        throttled.tick(at(36_999));
    });
    assert_eq!(lines.len(), 2);
    assert_eq!(lines_of(|| throttled.tick(at(37_000)))[0]["interval_ms"], 10_000);
}

#[test]
fn a_late_tick_says_how_long_it_was() {
    let throttled = summary();
    let lines = lines_of(|| {
        throttled.record(&rejected(&"a"), at(0));
        throttled.record(&rejected(&"a"), at(1));
        throttled.tick(at(31_000));
        throttled.record(&rejected(&"a"), at(32_000));
        throttled.flush(at(32_500));
    });
    let intervals: Vec<_> = lines.iter().map(|line| line["interval_ms"].as_u64()).collect();
    assert_eq!(intervals, [None, Some(30_000), Some(2_500)]);
}

#[test]
fn the_end_of_throttling_is_told_once_a_limit_rejects_nobody_any_more() {
    let throttled = summary();
    let shadow = ThrottleEvent {
        limit: &OTHER,
        outcome: Outcome::Reject { retry_after: None },
        mode: Mode::Shadow,
        ..rejected(&"a")
    };
    let lines = testing::lines(|| {
        for second in 0..25 {
            throttled.record(&rejected(&"a"), at(second * 1_000));
            throttled.record(&rejected(&"b"), at(second * 1_000));
            throttled.record(&shadow, at(second * 1_000));
            throttled.tick(at(second * 1_000));
        }
        (25..70).for_each(|second| throttled.tick(at(second * 1_000)));
        throttled.record(&rejected(&"a"), at(70_000));
        throttled.flush(at(71_000));
    });
    let ended: Vec<_> =
        lines.into_iter().filter(|line| line["message"] == "throttling ended").collect();
    let expected = json!({
        "level": "INFO", "target": "tidegate::throttle", "message": "throttling ended",
        "limit": "per-client", "keys": 2, "count": 50, "lasted_ms": 24_000,
    });
    assert_eq!(ended.into_iter().map(without_time).collect::<Vec<_>>(), [expected]);
}

#[test]
fn only_a_rejection_is_a_warning() {
    let delay = Duration::from_secs(1);
    for (outcome, mode, level) in [
        (Outcome::Reject { retry_after: None }, Mode::Enforce, "WARN"),
        (Outcome::Delay(delay), Mode::Enforce, "INFO"),
        (Outcome::Reject { retry_after: None }, Mode::Shadow, "INFO"),
        (Outcome::Delay(delay), Mode::Shadow, "INFO"),
        (Outcome::Reject { retry_after: None }, Mode::Mark, "INFO"),
    ] {
        let event = ThrottleEvent { outcome, mode, ..rejected(&"a") };
        assert_eq!(lines_of(|| summary().record(&event, at(0)))[0]["level"], level);
    }
}

#[test]
fn one_hundred_lines_in_an_interval_and_no_more() {
    let throttled = summary();
    let keys: Vec<_> = (0..300).map(|key| key.to_string()).collect();
    let mut total = 0;
    let mut before = lines_of(|| throttled.record(&rejected(&"x"), at(0)));
    for interval in 0..4 {
        before.extend(lines_of(|| {
            for key in &keys {
                throttled.record(&rejected(&key.as_str()), at(interval * 10_000 + 5_000));
            }
        }));
        assert!(before.len() <= LINES, "interval {interval}: {}", before.len());
        total += counts(&before);
        before = lines_of(|| throttled.tick(at((interval + 1) * 10_000)));
    }
    assert_eq!(total + counts(&before), 1 + 4 * 300);
}

#[test]
fn a_change_of_mode_writes_the_open_summary() {
    let throttled = summary();
    let lines = lines_of(|| {
        throttled.record(&rejected(&"a"), at(0));
        throttled.record(&rejected(&"a"), at(1));
        throttled.configure(ThrottleLog::Off, TEN, at(2));
        throttled.record(&rejected(&"a"), at(3));
        throttled.configure(ThrottleLog::Summary, Duration::from_secs(1), at(4));
        throttled.record(&rejected(&"b"), at(5));
        throttled.record(&rejected(&"b"), at(6));
        throttled.tick(at(2_000));
    });
    let counts: Vec<_> = lines.iter().map(|l| (l["key"].as_str().unwrap(), &l["count"])).collect();
    assert_eq!(counts, [("a", &json!(1)), ("a", &json!(1)), ("b", &json!(1)), ("b", &json!(1))]);
}

#[test]
fn long_texts_are_cut_between_characters() {
    let throttled = summary();
    let long = format!("/{}", "ä".repeat(5_000));
    let event = ThrottleEvent { path: &long, shown: &long, ..rejected(&"a") };
    let lines = lines_of(|| {
        throttled.record(&event, at(0));
        throttled.record(&event, at(0));
        throttled.flush(at(1));
    });
    let (path, key) = (lines[1]["path"].as_str().unwrap(), lines[1]["key"].as_str().unwrap());
    assert!(long.starts_with(path) && path.len() == 511, "{}", path.len());
    assert!(long.starts_with(key) && key.len() == 511, "{}", key.len());
}

#[test]
fn threads_lose_no_event() {
    let throttled = Arc::new(summary());
    let events = 4 * 20_000;
    let lines = lines_of(|| {
        // Each key has its first line here: the threads have no subscriber.
        for key in 0..50 {
            throttled.record(&rejected(&key.to_string().as_str()), at(0));
        }
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let throttled = Arc::clone(&throttled);
                std::thread::spawn(move || {
                    let keys: Vec<_> = (0..50).map(|key| key.to_string()).collect();
                    for event in 0..20_000 {
                        throttled.record(&rejected(&keys[event % 50].as_str()), at(1));
                    }
                })
            })
            .collect();
        // Flushed only once: after a second flush, a key could have its first line in a thread.
        throttled.flush(at(2));
        for thread in threads {
            thread.join().unwrap();
        }
        throttled.flush(at(3));
    });
    assert_eq!(counts(&lines), events + 50);
}

#[derive(Clone, Debug)]
enum ThrottleStep {
    Record(u16),
    Tick,
    Flush,
    Configure(ThrottleLog),
}

fn steps() -> impl Strategy<Value = Vec<(u64, ThrottleStep)>> {
    let step = prop_oneof![
        60 => (0..250_u16).prop_map(ThrottleStep::Record),
        6 => Just(ThrottleStep::Tick),
        1 => Just(ThrottleStep::Flush),
        1 => prop_oneof![Just(ThrottleLog::Summary), Just(ThrottleLog::Each)]
            .prop_map(ThrottleStep::Configure),
    ];
    prop::collection::vec((0..900_u64, step), 0..600)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn counts_always_add_up(steps in steps()) {
        let throttled = summary();
        let (mut now, mut recorded) = (0, 0);
        let lines = lines_of(|| {
            for (gap, step) in &steps {
                now += gap;
                match step {
                    ThrottleStep::Record(key) => {
                        recorded += 1;
                        throttled.record(&rejected(&key.to_string().as_str()), at(now));
                    }
                    ThrottleStep::Tick => throttled.tick(at(now)),
                    ThrottleStep::Flush => throttled.flush(at(now)),
                    ThrottleStep::Configure(mode) => throttled.configure(*mode, TEN, at(now)),
                }
            }
            throttled.flush(at(now));
        });
        prop_assert_eq!(counts(&lines), recorded);
    }
}
