use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

use super::*;
use crate::admin::testing;
use crate::limit::Mode;
use crate::limit::decision::Outcome;
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::observe::metrics::{DecisionKind, RouteCounter, UpstreamFailure, WorkerMetrics};
use crate::observe::throttled::ThrottleEvent;
use crate::settings::testing::{limit, settings};

const FILE: &str = r#"
[upstreams.api]
servers = ["http://10.0.0.1:3000", "http://10.0.0.2:3000"]
[limits.per-client]
key = ["ip"]
rate = "5/2s"
burst = 9
[limits.off]
rate = "unlimited"
[limits.slots]
algorithm = "concurrency"
limit = 4
[[routes]]
path = "/users/{id}"
upstream = "api"
limits = ["per-client", "off", "slots"]
"#;

/// The page of a process with two workers. What `count` returns lives until the page is made.
fn page_of<T>(count: impl FnOnce(&Process) -> T) -> String {
    let (process, published) = testing::process(settings(FILE));
    process.adopted.store(1_800_000_000_500_000, Ordering::Relaxed);
    let _kept = count(&process);
    page(&Scrape {
        reading: process.metrics.reading(),
        store: Counters {
            processes: 1,
            known_refusals: 17,
            keys: 3,
            shared_uses: 6,
            forgotten: 10,
            unsettled: 7,
            decided_without: 8,
            refused_without: 9,
            redis_up: None,
        },
        servers: Vec::new(),
        log_dropped: 4,
        panics: 2,
        now: Timestamp::MIN.into(),
        process: &process,
        published: &published,
    })
}

#[test]
fn the_whole_page() {
    let page = page_of(|process| {
        let (one, two) = (process.metrics.worker(0), process.metrics.worker(1));
        let users = |worker: &WorkerMetrics| worker.route(&"/users/{id}".into());
        let (ok, limited) = (StatusCode::OK, StatusCode::TOO_MANY_REQUESTS);
        let [api, per_client, everyone] =
            ["api", "per-client", "everyone"].map(|name| Name::new(name).unwrap());
        one.request(users(&one), ok, DecisionKind::Allowed, Duration::from_millis(3), None);
        let upstream = Some((&api, Duration::from_millis(30)));
        two.request(users(&two), ok, DecisionKind::Allowed, Duration::from_millis(40), upstream);
        two.upstream_failed(&api, UpstreamFailure::Timeout);
        one.upstream_failed(&api, UpstreamFailure::Timeout);
        one.received(100);
        two.received(10);
        two.sent(7);
        drop(one.http2_connection());
        two.request(users(&two), limited, DecisionKind::Allowed, Duration::from_micros(400), None);
        let none = RouteCounter::NO_ROUTE;
        one.request(
            none,
            StatusCode::NOT_FOUND,
            DecisionKind::Allowed,
            Duration::from_secs(70),
            None,
        );
        one.decision(&per_client, DecisionKind::Allowed);
        two.decision(&per_client, DecisionKind::Allowed);
        two.decision(&per_client, DecisionKind::Rejected);
        two.decision(&everyone, DecisionKind::Shadow);
        two.decision(&everyone, DecisionKind::Error);
        one.decided(Some(Duration::from_micros(600)), std::iter::empty());
        let client = [203, 0, 113, 7].into();
        process.error_log.malformed.count("no head".into(), client, Instant::now());
        process.is_config_valid.store(false, Ordering::Relaxed);
        let event = ThrottleEvent {
            limit: &per_client,
            key: 0,
            shown: &"203.0.113.7",
            route: "/users/{id}",
            client: [203, 0, 113, 7].into(),
            method: "GET",
            path: "/users/42",
            request_id: None,
            id: None,
            name: None,
            plan: None,
            figures: Algorithm::Closed,
            outcome: Outcome::Reject { retry_after: None },
            reason: None,
            mode: Mode::Enforce,
        };
        process.throttled.record(&event, Timestamp::MIN);
        process.throttled.tick(Timestamp::MIN.plus_micros(60_000_000));
        two.http2_connection()
    });
    let (ours, system) = page.split_once("# HELP process_").unwrap();
    let ours = ours.replace(env!("CARGO_PKG_VERSION"), "1.2.3");
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        std::fs::write("src/admin/expected.txt", &ours).unwrap();
    }
    assert_eq!(ours, include_str!("../expected.txt"));
    assert!(system.contains("process_open_fds"));
}

#[test]
fn a_scrape_before_the_first_request_has_every_family() {
    let page = page_of(|_| {});
    assert_eq!(page.matches("# TYPE tidegate_").count(), 49);
    assert!(page.contains("tidegate_request_duration_seconds_count{route=\"none\"} 0\n"));
}

#[test]
fn a_redisson_limiter_without_figures_has_no_burst() {
    let text = "[store]\nurl = \"redis://127.0.0.1\"\n[limits.a]\nalgorithm = \"redisson\"\n\
                name = \"orders\"\n[[routes]]\npath = \"/\"\nrespond = { status = 200 }\nlimits = [\"a\"]\n";
    let figures = settings(text).limits[0].figures.at(Timestamp::MIN);
    assert_eq!((super::rate(figures), super::burst(figures)), (None, None));
}

#[test]
fn a_limits_rate_is_the_files_also_below_a_second_and_by_the_present_month() {
    const MONTHLY: &str =
        "algorithm = \"fixed-window\"\nalign = \"clock\"\nrate = \"2592000/month\"";
    // 23 November 2026.
    let november = Now::from(Timestamp::MIN.plus_micros(1_795_392_000_000_000));
    for (lines, rate, burst) in [
        ("rate = \"5/500ms\"\nburst = 7", Some(10.0), Some(7.0)),
        ("rate = \"5/500ms\"\nalgorithm = \"leaky-bucket\"", Some(10.0), None),
        ("rate = \"5/500ms\"\nalgorithm = \"fixed-window\"", Some(10.0), Some(5.0)),
        ("rate = \"5/500ms\"\nalgorithm = \"sliding-window\"", Some(10.0), Some(5.0)),
        ("rate = \"5/500ms\"\nalgorithm = \"sliding-log\"", Some(10.0), Some(5.0)),
        ("limit = 3\nalgorithm = \"concurrency\"", None, Some(3.0)),
        ("rate = \"unlimited\"", Some(f64::INFINITY), Some(f64::INFINITY)),
        ("rate = \"0/s\"", Some(0.0), Some(0.0)),
        (MONTHLY, Some(1.0), Some(2_592_000.0)),
    ] {
        let figures = limit(lines).figures.at(november);
        assert_eq!(super::rate(figures), rate, "{lines}");
        if let Some(burst) = burst {
            assert_eq!(super::burst(figures), Some(burst), "{lines}");
        }
    }
}
