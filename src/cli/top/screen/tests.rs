use proptest::prelude::*;
use serde_json::json;

use super::super::paint::plain;
use super::*;

fn limit(name: &str, rejected: f64) -> Value {
    json!({
        "name": name, "rate": "100/s", "allowed_per_second": 95.0, "delayed_per_second": 0.0,
        "rejected_per_second": rejected, "shadow_per_second": 0.0,
        "rejected_keys": [
            { "key": "203.0.113.7", "count": 1_234, "at_most_over": 5, "per_second": 0.0 },
            { "key": "198.51.100.9", "count": 40, "at_most_over": 0, "per_second": 8.5 },
        ],
        "near_keys": [
            { "key": "192.0.2.1", "remaining": 3, "burst": 100, "share": 0.03, "next": true },
            { "key": "203.0.113.7", "remaining": 0, "burst": 100, "share": 0.0, "next": false },
        ],
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
        "version": "1.2.3", "host": "edge-1", "uptime_ms": 7_200_000, "alarms": [],
        "summary": "Rejecting now: per-client.",
        "config": { "version": 2, "since": "2026-01-02T03:04:05Z", "errors": [] },
        "requests": { "per_second": 123.4, "waiting": 2, "failed_per_second": 0.0 },
        "connections": { "open": 12 },
        "store": {
            "location": "redis://10.0.0.1:6379", "up": true, "since_ms": 60_000, "p50_ms": 0.4,
            "p99_ms": null, "errors": { "timeout": 1, "other": 2 }, "memory_keys": 7, "servers": [],
        },
        "routes": [route("/quiet", 0), route("/slow", 3), route("/users/{id}", 120)],
        "rejected_keys_window_ms": 300_000,
        "limits": [limit("per-client", 12.0), limit("everyone", 0.0)],
        "upstreams": [{ "name": "api", "servers": [
            { "url": "http://10.0.0.2:3000", "up": true, "in_flight": 4, "retries_total": 1,
              "requests_total": 900, "answers_5xx_total": 0, "since": "2026-01-02T03:04:05Z",
              "errors": {}, "last_check": null },
            { "url": "http://10.0.0.3:3000", "up": false, "in_flight": 0, "retries_total": 9,
              "requests_total": 80, "answers_5xx_total": 7, "since": "2026-01-02T04:04:05Z",
              "errors": { "connect": 9, "timeout": 1 },
              "last_check": { "passed": false, "time": "2026-01-02T05:04:05Z" } },
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
    let lines = shown(&status(), None, 200, 40).join("\n");
    let expected = "\
tidegate 1.2.3 on edge-1 at 127.0.0.1:9090, up 2h  configuration 2 since 2026-01-02T03:04:05Z
Rejecting now: per-client.
123 requests/s  2xx 123  4xx 12.3  5xx 0.0  failed 0.0  waiting 2  connections 12
store redis://10.0.0.1:6379 up 1m  p50 0.40 ms  p99 -  errors 3  keys in this process 7

limit        rejected/s  allowed/s     held/s shadowed/s  rate         rejected, last minute
per-client         12.0       95.0        0.0        0.0  100/s        █
everyone            0.0       95.0        0.0        0.0  100/s

limit        rejected/s   rejected  key rejected most, in the last 5m
per-client          8.5         40  198.51.100.9
everyone            8.5         40  198.51.100.9
per-client          0.0       1234  203.0.113.7 (at most 5 too many)
everyone            0.0       1234  203.0.113.7 (at most 5 too many)

limit              left         of  key nearest to its limit
per-client            3        100  192.0.2.1
everyone              3        100  192.0.2.1

route         requests/s     held/s rejected/s shadowed/s
/users/{id}          120        0.0       12.0        1.0
/slow                3.0        0.0        0.3        1.0

upstream     requests        5xx  in flight    retries  server
api               900          0          4          1  http://10.0.0.2:3000  up since 2026-01-02T03:04:05Z
api                80          7          0          9  http://10.0.0.3:3000  set aside since 2026-01-02T04:04:05Z  errors 9 connect, 1 timeout  last check failed 2026-01-02T05:04:05Z";
    assert_eq!(lines, expected, "\n{lines}");
}

/// A terminal has no room for a column that is always empty.
#[test]
fn marked_requests_have_a_column_where_a_limit_marks() {
    let mut status = status();
    status["limits"][1]["mode"] = "mark".into();
    status["limits"][1]["marked_per_second"] = json!(7.0);
    status["routes"][2]["marked_per_second"] = json!(6.0);
    let lines = shown(&status, None, 200, 40).join("\n");
    for line in [
        "rejected/s  allowed/s     held/s shadowed/s   marked/s  rate",
        "everyone            0.0       95.0        0.0        0.0        7.0  100/s",
        "requests/s     held/s rejected/s shadowed/s   marked/s",
        "/users/{id}          120        0.0       12.0        1.0        6.0",
    ] {
        assert!(lines.contains(line), "{line}\n{lines}");
    }
}

#[test]
fn plans_stand_beside_their_limit() {
    let mut status = status();
    status["limits"][1]["plans"] = json!({ "pro": "5/h", "team": "9/h" });
    let lines = shown(&status, None, 140, 40).join("\n");
    assert!(lines.contains("\nlimit     its plans\neveryone  pro 5/h, team 9/h\n"), "{lines}");
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

limit        rejected/s   rejected  key rejected most, in the last 5m\n";
    assert!(lines.contains(expected), "{lines}");
}

#[test]
fn alarms_are_shown() {
    let mut status = status();
    status["store"]["up"] = false.into();
    let todo = "Mend it. ".repeat(40);
    let alarm = |what: &str, since: Option<&str>| json!({ "what": what, "since": since, "means": "It is bad.", "do": todo });
    status["alarms"] = json!([
        alarm("API down: requests to it get 502", Some("2026-01-02T03:05:00Z")),
        alarm("This process is ending", None),
    ]);
    let lines = shown(&status, Some("127.0.0.1:9090 does not answer"), 80, 40);
    let is_what = |line: &&String| !line.is_empty() && !line.starts_with("  ");
    assert_eq!(
        lines.iter().filter(is_what).skip(1).take(4).collect::<Vec<_>>(),
        [
            "127.0.0.1:9090 does not answer; trying again",
            "API down: requests to it get 502 since 2026-01-02T03:05:00Z.",
            "This process is ending.",
            "Rejecting now: per-client.",
        ]
    );
    assert_eq!(lines.join(" ").matches("Mend").count(), 80, "what to do is not cut: {lines:?}");
    assert!(lines.iter().any(|line| line.contains("redis://10.0.0.1:6379 away 1m")), "{lines:?}");
}

/// A regression: if there was too little room, only one table had its rows.
#[test]
fn no_table_has_all_the_room() {
    let mut status = status();
    let keys = |name: &str| -> Vec<Value> {
        let key = |n: u32| {
            json!({ "key": format!("{name}{n}"), "count": n, "per_second": 1.0, "share": 0.1,
                    "remaining": 1, "burst": 10, "next": true })
        };
        (0..20).map(key).collect()
    };
    status["limits"] = (0..20).map(|n| limit(&format!("limit-{n}"), 1.0)).collect();
    status["limits"][0]["rejected_keys"] = keys("rejected-").into();
    status["limits"][0]["near_keys"] = keys("near-").into();
    status["routes"] = (1..20).map(|n| route(&format!("/{n}"), n)).collect();
    let lines = shown(&status, None, 100, 60);
    let (mut rows, mut table) = (Vec::new(), 0);
    for line in &lines[5..] {
        match line.is_empty() {
            true => rows.push(std::mem::take(&mut table)),
            false => table += 1,
        }
    }
    assert_eq!(lines.len(), 60);
    assert!(rows.iter().all(|rows| (11..=13).contains(rows)), "{rows:?}\n{}", lines.join("\n"));
}

#[test]
fn a_low_terminal_shows_a_little_of_each_part() {
    let mut status = status();
    status["limits"] = (0..20).map(|n| limit(&format!("limit-{n}"), 1.0)).collect();
    let lines = shown(&status, None, 80, 24);
    assert_eq!(lines.len(), 24);
    let text = lines.join("\n");
    for words in ["limit-0 ", " more", "rejected most", "nearest to its limit", "in flight"] {
        assert!(text.contains(words), "{words} in\n{text}");
    }
}

#[test]
fn a_narrow_terminal_drops_figures_and_keeps_rejections() {
    let lines = shown(&status(), None, 36, 40);
    let head = lines.iter().find(|line| line.starts_with("limit")).unwrap();
    assert!(head.contains("rejected/s") && head.contains("allowed/s"), "{head}");
    assert!(!head.contains("held/s") && !head.contains("minute"), "{head}");
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
