use super::*;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn snapshot() -> Snapshot<'static> {
    Snapshot {
        version: "1.2.3",
        store_up: true,
        waiting: 1,
        connections: 2,
        malformed: 9,
        memory_keys: 3,
        shared_decisions: 6,
        forgotten: 10,
        decided_without: 8,
        refused_without: 9,
        unsettled: 7,
        log_dropped: 4,
        reload_successful: false,
        reload_success_time: 1_800_000_000.5,
        limits: vec![
            LimitFigures {
                limit: "per-client",
                rate: Some(2.5),
                burst: Some(9),
                throttled_keys: 3,
            },
            LimitFigures {
                limit: "off",
                rate: Some(f64::INFINITY),
                burst: None,
                throttled_keys: 0,
            },
            LimitFigures { limit: "slots", rate: None, burst: Some(4), throttled_keys: 0 },
        ],
        retries: vec![("api", 11)],
        store_errors: vec![("timeout", 12)],
        servers: vec![
            ServerGauge { upstream: "api", server: "http://10.0.0.1:3000", up: true },
            ServerGauge { upstream: "api", server: "http://10.0.0.2:3000", up: false },
        ],
    }
}

#[test]
fn the_whole_page() {
    let metrics = Metrics::new(2);
    let (one, two) = (metrics.worker(0), metrics.worker(1));
    one.request(one.route(&"/users/{id}".into()), StatusCode::OK, Duration::from_millis(3), None);
    let api = name("api");
    two.request(
        two.route(&"/users/{id}".into()),
        StatusCode::OK,
        Duration::from_millis(40),
        Some((&api, Duration::from_millis(30))),
    );
    two.upstream_failed(&api, UpstreamFailure::Timeout);
    one.upstream_failed(&api, UpstreamFailure::Timeout);
    one.received(100);
    two.received(10);
    two.sent(7);
    let _http2 = two.http2_connection();
    drop(one.http2_connection());
    two.request(
        two.route(&"/users/{id}".into()),
        StatusCode::TOO_MANY_REQUESTS,
        Duration::from_micros(400),
        None,
    );
    one.request(RouteCounter::NO_ROUTE, StatusCode::NOT_FOUND, Duration::from_secs(70), None);
    one.decision(&name("per-client"), DecisionKind::Allowed);
    two.decision(&name("per-client"), DecisionKind::Allowed);
    two.decision(&name("per-client"), DecisionKind::Rejected);
    two.decision(&name("everyone"), DecisionKind::Shadow);
    two.decision(&name("everyone"), DecisionKind::Error);
    one.decided(Some(Duration::from_micros(600)), std::iter::empty());
    let page = metrics.render(&snapshot());
    let (ours, process) = page.split_once("# HELP process_").unwrap();
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        std::fs::write("src/observe/metrics/expected.txt", ours).unwrap();
    }
    assert_eq!(ours, include_str!("expected.txt"));
    assert!(process.contains("process_open_fds"));
}

/// A route keeps its counter by its name, also if the route has another index in the new plan.
#[test]
fn a_reload_keeps_what_was_counted() {
    let metrics = Metrics::new(1);
    let worker = metrics.worker(0);
    let [a, b, c]: [Arc<str>; 3] = ["a", "b", "c"].map(Into::into);
    for plan in [[&a, &b], [&b, &c], [&c, &a]] {
        let counters = RouteCounters::new(plan.len());
        for (place, name) in plan.into_iter().enumerate() {
            for status in [StatusCode::OK, StatusCode::OK, StatusCode::NOT_FOUND] {
                let route = counters.of(place, name, &worker);
                worker.request(route, status, Duration::ZERO, None);
            }
        }
    }
    let page = metrics.render(&snapshot());
    for name in ["a", "b", "c"] {
        for (status, count) in [(200, 4), (404, 2)] {
            let sample = format!("tidegate_requests_total{{route=\"{name}\",status=\"{status}\"}}");
            assert_eq!(value(&page, &sample), count, "{sample}");
        }
    }
}

#[test]
fn a_scrape_before_the_first_request_has_every_family() {
    let page = Metrics::new(1).render(&Snapshot { servers: Vec::new(), ..snapshot() });
    assert_eq!(page.matches("# TYPE tidegate_").count(), 27);
    assert!(page.contains("tidegate_request_duration_seconds_count{route=\"none\"} 0\n"));
}

#[test]
fn workers_add_up_while_a_scrape_reads() {
    let metrics = Metrics::new(3);
    let threads: Vec<_> = (0..6)
        .map(|number| {
            let worker = metrics.worker(number);
            std::thread::spawn(move || {
                for _ in 0..10_000 {
                    worker.request(
                        worker.route(&"/".into()),
                        StatusCode::OK,
                        Duration::from_millis(1),
                        None,
                    );
                    worker.decision(&name("all"), DecisionKind::Allowed);
                }
            })
        })
        .collect();
    let mut last = 0;
    while !threads.iter().all(std::thread::JoinHandle::is_finished) {
        let page = metrics.render(&snapshot());
        let count = value(&page, "tidegate_request_duration_seconds_count{route=\"/\"}");
        assert!(count >= last, "a counter never goes back");
        last = count;
    }
    for thread in threads {
        thread.join().unwrap();
    }
    let page = metrics.render(&snapshot());
    assert_eq!(value(&page, "tidegate_requests_total{route=\"/\",status=\"200\"}"), 60_000);
    assert_eq!(
        value(&page, "tidegate_decisions_total{limit=\"all\",decision=\"allowed\"}"),
        60_000
    );
    assert_eq!(
        value(&page, "tidegate_request_duration_seconds_bucket{route=\"/\",le=\"0.001\"}"),
        60_000
    );
}

fn value(page: &str, sample: &str) -> u64 {
    let line = page.lines().find_map(|line| line.strip_prefix(sample));
    line.map_or(0, |value| value.trim().parse().unwrap())
}
