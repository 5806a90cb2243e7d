use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::candidate_log::CandidateLog;
use super::super::metrics::Metrics;
use super::super::testing;
use super::*;
use crate::settings::Settings;
use crate::settings::testing::settings_with as settings;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000 + millis * 1_000).unwrap()
}

const LINES: &str = "rate = \"100/s\"\ncandidate = { rate = \"50/s\", burst = 60 }";
const PASSES: RejectedBy = RejectedBy { candidate: false, limit: false };
const NEWLY: RejectedBy = RejectedBy { candidate: true, limit: false };
const BOTH: RejectedBy = RejectedBy { candidate: true, limit: true };

/// The counters of two workers that have these settings since `now`.
fn two_workers(settings: &Settings, now: Timestamp) -> Arc<Metrics> {
    let metrics = Metrics::new(2);
    put_in_force(&metrics, settings, now);
    metrics
}

fn put_in_force(metrics: &Metrics, settings: &Settings, now: Timestamp) {
    for worker in 0..2 {
        metrics.worker(worker).candidates.put_in_force(&settings.limits, now);
    }
}

fn note(metrics: &Metrics, worker: usize, settings: &Settings, key: &str, by: RejectedBy) {
    let candidate = settings.limits[0].candidate.as_ref().unwrap();
    metrics.worker(worker).candidates.count(candidate, key.as_bytes(), by);
}

/// The requests, the requests that the candidate rejects, and the requests that the limit rejects.
fn requests(metrics: &Metrics, settings: &Settings) -> [u64; 3] {
    let tally = metrics.candidate(&settings.limits[0]).unwrap();
    [&tally.all, &tally.rejected, &tally.limit_rejected].map(|count| count.requests)
}

#[test]
fn the_workers_add_up_and_a_key_of_both_is_one_key() {
    let settings = settings(LINES);
    let metrics = two_workers(&settings, at(0));
    for worker in 0..2 {
        for (key, by) in [("a", PASSES), ("a", NEWLY), ("b", BOTH), ("c", PASSES)] {
            note(&metrics, worker, &settings, key, by);
        }
    }
    note(&metrics, 1, &settings, "d", NEWLY);
    let tally = metrics.candidate(&settings.limits[0]).unwrap();
    assert_eq!(requests(&metrics, &settings), [9, 5, 2]);
    let keys = [&tally.all, &tally.rejected, &tally.limit_rejected].map(CandidateCount::keys);
    assert_eq!(keys, [4, 3, 1]);
    let none = tally.percent(&CandidateCount::default());
    assert_eq!((tally.percent(&tally.rejected), none, tally.since), (55.556, 0.0, at(0)));
}

#[test]
fn counts_restart_with_other_figures_and_stay_over_other_reloads() {
    let before = settings(LINES);
    let metrics = two_workers(&before, at(0));
    note(&metrics, 0, &before, "a", NEWLY);
    for (name, lines, expected) in [
        (
            "another option",
            "rate = \"100/s\"\ncandidate = { burst = 60, rate = \"50/s\" }\nmode = \"shadow\"",
            1,
        ),
        (
            "the candidate's burst",
            "rate = \"100/s\"\ncandidate = { rate = \"50/s\", burst = 61 }",
            0,
        ),
        ("the limit's rate", "rate = \"99/s\"\ncandidate = { rate = \"50/s\", burst = 60 }", 0),
        ("the cost", &format!("cost = 2\n{LINES}"), 0),
    ] {
        let after = settings(lines);
        let metrics = two_workers(&before, at(0));
        note(&metrics, 0, &before, "a", NEWLY);
        put_in_force(&metrics, &after, at(5));
        assert_eq!(requests(&metrics, &after), [expected, expected, 0], "{name}");
        let since = metrics.candidate(&after.limits[0]).unwrap().since;
        assert_eq!(since, at(if expected == 1 { 0 } else { 5 }), "{name}");
    }
    put_in_force(&metrics, &settings("rate = \"100/s\""), at(5));
    assert!(metrics.candidate(&before.limits[0]).is_none(), "it is gone");
    assert!(metrics.candidate(&settings("rate = \"100/s\"").limits[0]).is_none());
}

#[test]
fn a_request_that_began_with_other_figures_is_not_counted() {
    let (before, after) =
        (settings(LINES), settings("rate = \"100/s\"\ncandidate = { rate = \"9/s\" }"));
    let metrics = two_workers(&before, at(0));
    put_in_force(&metrics, &after, at(5));
    note(&metrics, 0, &before, "a", NEWLY);
    assert_eq!(requests(&metrics, &after), [0, 0, 0]);
    // While a worker has the former settings, what it counts is not of the new figures.
    metrics.worker(0).candidates.put_in_force(&before.limits, at(6));
    note(&metrics, 0, &before, "a", NEWLY);
    note(&metrics, 1, &after, "a", PASSES);
    assert_eq!(requests(&metrics, &after), [1, 0, 0]);
}

const TEN: Option<Duration> = Some(Duration::from_secs(10));

fn without_time(mut line: Value) -> Value {
    line.as_object_mut().unwrap().remove("timestamp");
    line
}

#[test]
fn a_line_comes_where_the_two_differ_and_has_all_since_the_figures_are_in_force() {
    let settings = settings(LINES);
    let metrics = two_workers(&settings, at(0));
    let start = Instant::now();
    let mut log = CandidateLog::new(metrics.clone(), start);
    let silent = testing::lines(|| {
        note(&metrics, 0, &settings, "a", BOTH);
        log.write(&settings, TEN, at(10_000), start + Duration::from_millis(10_000));
        note(&metrics, 1, &settings, "b", NEWLY);
        log.write(&settings, TEN, at(19_999), start + Duration::from_millis(19_999));
    });
    assert_eq!(silent, [] as [Value; 0], "both reject the same, and then the interval runs");
    let lines = testing::lines(|| {
        note(&metrics, 0, &settings, "c", PASSES);
        log.write(&settings, TEN, at(20_000), start + Duration::from_millis(20_000));
        note(&metrics, 0, &settings, "c", PASSES);
        log.write(&settings, TEN, at(30_000), start + Duration::from_millis(30_000));
        log.write(&settings, None, at(31_000), start);
    });
    let expected = json!({
        "level": "INFO", "target": "tidegate::throttle", "message": "candidate",
        "limit": "a", "candidate": "50/s, burst 60", "requests": 3,
        "rejected": 2, "rejected_percent": 66.667, "keys": 3, "keys_rejected": 2,
        "limit_rejected": 1, "limit_rejected_percent": 33.333, "limit_keys_rejected": 1,
        "since_ms": 20_000,
    });
    assert_eq!(lines.into_iter().map(without_time).collect::<Vec<_>>(), [expected]);
    let last = testing::lines(|| {
        note(&metrics, 0, &settings, "c", NEWLY);
        log.write(&settings, None, at(32_000), start);
    });
    assert_eq!(last[0]["requests"], 5);
}

#[test]
fn changed_figures_are_logged_anew_and_a_log_without_throttle_lines_has_none() {
    let (before, mut after) =
        (settings(LINES), settings("rate = \"1/s\"\ncandidate = { rate = \"9/s\" }"));
    let metrics = two_workers(&before, at(0));
    let start = Instant::now();
    let mut log = CandidateLog::new(metrics.clone(), start);
    let lines = testing::lines(|| {
        note(&metrics, 0, &before, "a", NEWLY);
        log.write(&before, TEN, at(10_000), start + Duration::from_millis(10_000));
        put_in_force(&metrics, &after, at(11_000));
        note(&metrics, 0, &after, "a", NEWLY);
        log.write(&after, TEN, at(20_000), start + Duration::from_millis(20_000));
        after.log.throttle = crate::settings::ThrottleLog::Off;
        note(&metrics, 0, &after, "a", NEWLY);
        log.write(&after, TEN, at(30_000), start + Duration::from_millis(30_000));
    });
    let told: Vec<_> = lines.iter().map(|line| (&line["candidate"], &line["requests"])).collect();
    assert_eq!(told, [(&json!("50/s, burst 60"), &json!(1)), (&json!("9/s, burst 9"), &json!(1))]);
}
