use super::*;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// A route keeps its counter by its name, also if the route has another index in the new settings.
#[test]
fn a_reload_keeps_the_counters() {
    let metrics = Metrics::new(1);
    let worker = metrics.worker(0);
    let [a, b, c]: [Arc<str>; 3] = ["a", "b", "c"].map(Into::into);
    for plan in [[&a, &b], [&b, &c], [&c, &a]] {
        let counters = RouteCounters::new(plan.len());
        for (index, name) in plan.into_iter().enumerate() {
            for status in [StatusCode::OK, StatusCode::OK, StatusCode::NOT_FOUND] {
                let route = counters.of(index, name, &worker);
                let decision = DecisionKind::Allowed;
                worker.request(route, status, decision, Duration::ZERO, None);
            }
        }
    }
    let reading = metrics.reading();
    for name in [a, b, c] {
        assert_eq!(reading.routes[&name].statuses.0[..], [(200, 4), (404, 2)], "{name}");
    }
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
                        DecisionKind::Allowed,
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
        let count = metrics.request_seconds().get("/").map_or(0, Histogram::count);
        assert!(count >= last, "a counter never goes back");
        last = count;
    }
    for thread in threads {
        thread.join().unwrap();
    }
    let reading = metrics.reading();
    assert_eq!(reading.routes["/"].statuses.0[..], [(200, 60_000)]);
    assert_eq!(reading.limits[&name("all")][DecisionKind::Allowed as usize], 60_000);
    let below = metrics.request_seconds()["/"].cumulative().find(|(bound, _)| *bound == 0.001);
    assert_eq!(below, Some((0.001, 60_000)));
}
