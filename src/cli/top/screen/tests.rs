use proptest::prelude::*;
use serde_json::json;

use super::super::paint::plain;
use super::*;

fn limit(name: &str, rejected: f64) -> Value {
    json!({
        "name": name, "rate": "100/s", "allowed_per_second": 95.0, "delayed_per_second": 0.0,
        "rejected_per_second": rejected, "shadow_per_second": 0.0,
        "rejected_keys": [
            { "key": "203.0.113.7", "count": 1_234, "at_most_over": 5 },
            { "key": "198.51.100.9", "count": 40, "at_most_over": 0 },
        ],
        "near_keys": [{ "key": "192.0.2.1", "remaining": 3, "burst": 100, "share": 0.03 }],
    })
}

fn route(name: &str, requests: u32) -> Value {
    let per_second = f64::from(requests);
    json!({
        "name": name, "total": requests, "per_second": per_second, "delayed_per_second": 0.0,
        "rejected_per_second": per_second / 10.0, "shadow_per_second": 1.0,
        "statuses_per_second": { "2xx": per_second, "4xx": per_second / 10.0, "5xx": 0.0 },
    })
}

fn status() -> Value {
    json!({
        "version": "1.2.3", "uptime_ms": 7_200_000, "draining": false,
        "config": { "version": 2, "since": "2026-01-02T03:04:05Z", "errors": [] },
        "requests": { "per_second": 123.4, "waiting": 2 },
        "connections": { "open": 12 },
        "store": {
            "location": "redis://10.0.0.1:6379", "up": true, "since_ms": 60_000, "p50_ms": 0.4,
            "p99_ms": null, "errors": { "timeout": 1, "other": 2 }, "memory_keys": 7, "servers": [],
        },
        "routes": [route("/quiet", 0), route("/slow", 3), route("/users/{id}", 120)],
        "rejected_keys_window_ms": 300_000,
        "limits": [limit("per-client", 12.0), limit("everyone", 0.0)],
        "upstreams": [{ "name": "api", "servers": [
            { "url": "http://10.0.0.2:3000", "up": true, "in_flight": 4, "retries_total": 1 },
            { "url": "http://10.0.0.3:3000", "up": false, "in_flight": 0, "retries_total": 9 },
        ] }],
    })
}

fn shown(status: &Value, away: Option<&str>, width: usize, height: usize) -> Vec<String> {
    let mut trends = Trends::default();
    trends.add(status);
    let screen = Screen { at: "127.0.0.1:9090", status, trends: &trends, away };
    screen.lines(Size { width, height }).iter().map(plain).collect()
}

#[test]
fn a_usual_terminal_shows_everything() {
    let lines = shown(&status(), None, 100, 30).join("\n");
    let expected = "\
tidegate 1.2.3 at 127.0.0.1:9090, up 2h  configuration 2 since 2026-01-02T03:04:05Z
123 requests/s  2xx 123  4xx 12.3  5xx 0.0  held 2  connections 12
store redis://10.0.0.1:6379 up 1m  p50 0.40 ms  p99 -  errors 3  keys in memory 7

limit       rate         allowed/s  delayed/s rejected/s   shadow/s  the last minute
per-client  100/s             95.0        0.0       12.0        0.0  █
everyone    100/s             95.0        0.0        0.0        0.0  █

limit          rejected  key, in the last 5m
per-client         1234  203.0.113.7 (at most 5 too many)
everyone           1234  203.0.113.7 (at most 5 too many)
per-client           40  198.51.100.9
everyone             40  198.51.100.9

limit              left  key near its limit
per-client     3 of 100  192.0.2.1
everyone       3 of 100  192.0.2.1

route         requests/s  delayed/s rejected/s   shadow/s
/users/{id}          120        0.0       12.0        1.0
/slow                3.0        0.0        0.3        1.0

upstream    under way    retries  server
api                 4          1  up   http://10.0.0.2:3000
api                 0          9  down http://10.0.0.3:3000";
    assert_eq!(lines, expected, "\n{lines}");
}

#[test]
fn a_candidate_says_what_it_would_have_rejected() {
    let mut status = status();
    status["limits"][1]["candidate"] = json!({
        "figures": "9/s, burst 9", "since_ms": 60_000, "requests": 200,
        "rejected": 3, "rejected_percent": 1.5, "keys": 40, "keys_rejected": 2,
        "limit_rejected": 1, "limit_rejected_percent": 0.5, "limit_keys_rejected": 1,
    });
    let lines = shown(&status, None, 140, 40).join("\n");
    let expected = "
limit     its candidate
everyone  would have rejected 1.5 % of requests, 2 of 40 keys (the limit 0.5 %, 1 key) with 9/s, burst 9 in 1m

limit          rejected  key, in the last 5m\n";
    assert!(lines.contains(expected), "{lines}");
}

#[test]
fn what_somebody_must_see_is_said() {
    let mut status = status();
    status["draining"] = true.into();
    status["store"]["up"] = false.into();
    status["config"]["errors"] = json!(["line 1: nonsense", "line 2: more"]);
    status["config"]["rejected_since"] = "2026-01-02T03:05:00Z".into();
    let lines = shown(&status, Some("127.0.0.1:9090 does not answer"), 120, 40).join("\n");
    for words in [
        "  draining",
        "redis://10.0.0.1:6379 away 1m",
        "the file is wrong since 2026-01-02T03:05:00Z: line 1: nonsense (and 1 more)",
        "127.0.0.1:9090 does not answer; trying again",
    ] {
        assert!(lines.contains(words), "{words} in\n{lines}");
    }
}

#[test]
fn a_low_terminal_shows_a_little_of_each_part() {
    let mut status = status();
    status["limits"] = (0..20).map(|n| limit(&format!("limit-{n}"), 1.0)).collect();
    let lines = shown(&status, None, 80, 24);
    assert_eq!(lines.len(), 24);
    let text = lines.join("\n");
    for words in ["limit-0 ", " more", "rejected  key", "near its limit", "under way"] {
        assert!(text.contains(words), "{words} in\n{text}");
    }
}

#[test]
fn a_narrow_terminal_drops_figures_and_keeps_rejections() {
    let lines = shown(&status(), None, 34, 40);
    let head = lines.iter().find(|line| line.starts_with("limit")).unwrap();
    assert!(head.contains("rejected/s") && head.contains("allowed/s"), "{head}");
    assert!(!head.contains("delayed/s") && !head.contains("minute"), "{head}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_line_is_too_wide_and_none_too_many(
        width in 0..200_usize,
        height in 0..80_usize,
        name in "\\PC{0,40}",
        limits in 0..30_usize,
    ) {
        let mut status = status();
        status["limits"] = (0..limits).map(|n| limit(&format!("{name}{n}"), 1.0)).collect();
        let trends = Trends::default();
        let screen = Screen { at: &name, status: &status, trends: &trends, away: Some(&name) };
        let lines = screen.lines(Size { width, height });
        prop_assert!(lines.len() <= height);
        prop_assert!(lines.iter().all(|line| line.width() <= width));
        let nothing = Screen { status: &Value::Null, ..screen };
        let lines = nothing.lines(Size { width, height });
        prop_assert!(lines.len() <= height);
    }
}
