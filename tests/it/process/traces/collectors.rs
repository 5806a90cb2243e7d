//! Collectors that are away, slow, or answer nonsense, and the end of the process.

use std::time::Duration;

use crate::support::client::{Connection, get};
use crate::support::collector::{Collector, Does};
use crate::support::metrics::Metrics;
use crate::support::port::Port;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::{Upstream, nobody_accepts, ok};
use crate::support::{now, wait_until};

fn dropped(proxy: &Tidegate) -> f64 {
    Metrics::of(proxy.admin()).value("tidegate_spans_dropped_total")
}

#[test]
fn a_collector_that_is_away_costs_the_spans_alone() {
    let (port, api) = (Port::hold(), Upstream::echoing());
    let section = format!("[trace]\notlp = \"http://{}\"\nsample = 1", port.address);
    let mut proxy = Proxy::to(&api).admin().section(&section).start();
    for _ in 0..20 {
        assert_eq!(get(proxy.address, "/away", &[]).status, 200);
    }
    let line = proxy.log.wait("spans dropped", |_| true);
    assert_eq!((&line["level"], &line["target"]), (&"WARN".into(), &"tidegate".into()));
    assert_eq!(line["collector"], format!("http://{}", port.address));
    assert!(line["error"].as_str().unwrap().contains("refused"), "{line}");
    wait_until("all of them are counted", || dropped(&proxy) == 20.0);
    let collector = Collector::at(port.address);
    // What was tried before the collector came is lost.
    wait_until("spans come", || {
        get(proxy.address, "/back", &[]);
        !collector.spans().is_empty()
    });
    let line = proxy.log.wait("collector recovered", |_| true);
    assert!(line["away_ms"].as_u64().is_some(), "{line}");
    assert!(proxy.stop().success());
    let lines = proxy.log.with("spans dropped");
    let told: u64 = lines.iter().map(|line| line["count"].as_u64().unwrap()).sum();
    let lost = api.requests().len() - collector.spans().len();
    assert_eq!(told, u64::try_from(lost).unwrap());
    assert!(lines.len() < 20, "a span has no line of its own: {lines:#?}");
    assert_eq!(collector.connections(), 1);
}

#[test]
fn a_collector_that_is_slow_delays_nobody() {
    let deaf = nobody_accepts();
    let sleeping = Collector::that(Does::Sleeps);
    for url in [format!("http://{}", deaf.address), sleeping.url()] {
        let api = Upstream::echoing();
        let section = format!("[trace]\notlp = \"{url}\"\nsample = 1");
        let mut proxy = Proxy::to(&api).admin().section(&section).start();
        let begin = now();
        let mut connection = Connection::open(proxy.address);
        // More than wait for a collector, while the first batch is on its way.
        for _ in 0..6_000 {
            assert_eq!(connection.get("/slow", &[]).status, 200);
        }
        drop(connection);
        wait_until("spans are dropped", || dropped(&proxy) >= 512.0);
        let asked = begin.elapsed();
        let begin = now();
        assert!(proxy.stop().success());
        // A second for the last spans, and a machine that has other things to do.
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}, {asked:?}", begin.elapsed());
        let lines = proxy.log.with("spans dropped");
        let told: u64 = lines.iter().map(|line| line["count"].as_u64().unwrap()).sum();
        assert_eq!(told, 6_000, "{lines:#?}");
    }
}

#[test]
fn a_collector_that_answers_nonsense_is_told_of() {
    let web = Upstream::answering(|_| ok("I am a web server"));
    for (does, error) in [
        (Some(Does::Refuses { alone: true }), "it answered with the gRPC status 8: too much"),
        (Some(Does::Refuses { alone: false }), "it answered with the gRPC status 8: too much"),
        (Some(Does::Babbles), "its answer is no answer of OTLP"),
        (Some(Does::SaysNothing), "its answer is no gRPC: it has no grpc-status"),
        (
            Some(Does::FindsNothing),
            "it answered with the HTTP status 404 Not Found, which is no gRPC",
        ),
        (Some(Does::Leaves(2)), "it did not take all: too old"),
        (None, "the exchange broke off: "),
    ] {
        let collector = does.map(Collector::that);
        let url = collector.as_ref().map_or_else(|| web.url(), Collector::url);
        let section = format!("[trace]\notlp = \"{url}\"\nsample = 1");
        let api = Upstream::echoing();
        let mut proxy = Proxy::to(&api).admin().section(&section).start();
        for _ in 0..3 {
            assert_eq!(get(proxy.address, "/", &[]).status, 200);
        }
        let line = proxy.log.wait("spans dropped", |_| true);
        assert!(line["error"].as_str().unwrap().starts_with(error), "{line}");
        assert!(proxy.stop().success());
        let lines = proxy.log.with("spans dropped");
        let told: u64 = lines.iter().map(|line| line["count"].as_u64().unwrap()).sum();
        // Each batch of the last one is refused but for the spans above two.
        assert!(if does == Some(Does::Leaves(2)) { told >= 2 } else { told == 3 }, "{lines:#?}");
    }
}

#[test]
fn the_last_spans_are_sent_at_the_end() {
    let (collector, api) = (Collector::start(), Upstream::echoing());
    let mut proxy = Proxy::to(&api).section(&collector.section()).start();
    let mut connection = Connection::open(proxy.address);
    for _ in 0..1_300 {
        assert_eq!(connection.get("/a", &[]).status, 200);
    }
    drop(connection);
    assert!(proxy.stop().success());
    assert_eq!(collector.spans().len(), 1_300);
    assert_eq!(proxy.log.count("spans dropped"), 0);
    let largest =
        collector.exports().into_iter().map(|it| it.resource_spans[0].scope_spans[0].spans.len());
    assert!(largest.max().unwrap() <= 512);
}
