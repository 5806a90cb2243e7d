use super::*;

fn snapshot() -> Snapshot<'static> {
    Snapshot {
        version: "1.2.3",
        store_up: true,
        waiting: 1,
        connections: 2,
        memory_keys: 3,
        shared_decisions: 6,
        unsettled: 7,
        log_dropped: 4,
        config_generation: 5,
        config_valid: false,
        servers: vec![
            ServerState { upstream: "api", server: "http://10.0.0.1:3000", up: true },
            ServerState { upstream: "api", server: "http://10.0.0.2:3000", up: false },
        ],
    }
}

#[test]
fn the_whole_page() {
    let metrics = Metrics::new(2);
    let (one, two) = (metrics.worker(0), metrics.worker(1));
    one.request(Some(&"/users/{id}".into()), StatusCode::OK, Duration::from_millis(3));
    two.request(Some(&"/users/{id}".into()), StatusCode::OK, Duration::from_millis(40));
    two.request(
        Some(&"/users/{id}".into()),
        StatusCode::TOO_MANY_REQUESTS,
        Duration::from_micros(400),
    );
    one.request(None, StatusCode::NOT_FOUND, Duration::from_secs(70));
    one.decision("per-client", DecisionKind::Allowed);
    two.decision("per-client", DecisionKind::Allowed);
    two.decision("per-client", DecisionKind::Rejected);
    two.decision("everyone", DecisionKind::Shadow);
    two.decision("everyone", DecisionKind::Error);
    one.decided(Some(Duration::from_micros(600)), std::iter::empty());
    assert_eq!(metrics.render(&snapshot()), include_str!("expected.txt"));
}

#[test]
fn a_scrape_before_the_first_request_has_every_family() {
    let page = Metrics::new(1).render(&Snapshot { servers: Vec::new(), ..snapshot() });
    assert_eq!(page.matches("# TYPE ").count(), 15);
    assert!(page.contains("tidegate_request_seconds_count 0\n"));
}

#[test]
fn workers_add_up_while_a_scrape_reads() {
    let metrics = Metrics::new(3);
    let threads: Vec<_> = (0..6)
        .map(|number| {
            let worker = metrics.worker(number);
            std::thread::spawn(move || {
                for _ in 0..10_000 {
                    worker.request(Some(&"/".into()), StatusCode::OK, Duration::from_millis(1));
                    worker.decision("all", DecisionKind::Allowed);
                }
            })
        })
        .collect();
    let mut last = 0;
    while !threads.iter().all(std::thread::JoinHandle::is_finished) {
        let page = metrics.render(&snapshot());
        let count = value(&page, "tidegate_request_seconds_count");
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
    assert_eq!(value(&page, "tidegate_request_seconds_bucket{le=\"0.001\"}"), 60_000);
}

fn value(page: &str, sample: &str) -> u64 {
    let line = page.lines().find_map(|line| line.strip_prefix(sample));
    line.map_or(0, |value| value.trim().parse().unwrap())
}
