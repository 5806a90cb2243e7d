use super::super::metrics::Metrics;
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
