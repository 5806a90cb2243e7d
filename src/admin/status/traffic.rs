//! Connections, requests, routes, and upstreams with their servers.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{StatusFacts, busiest, latency};
use crate::limit::name::Name;
use crate::observe::metrics::{Reading, RouteCounts, UpstreamCounts, UpstreamFailure};
use crate::settings::{RouteSpec, Settings};
use crate::upstream::health::ServerState;
use crate::worker::Published;

const CLASSES: [(u16, &str); 5] = [(1, "1xx"), (2, "2xx"), (3, "3xx"), (4, "4xx"), (5, "5xx")];

impl StatusFacts<'_> {
    pub(super) fn connections(&self, settings: &Settings) -> Value {
        let open = self.admin.process.connections.open() as u64;
        let http2 = self.now.reading.http2;
        json!({
            "open": open,
            "http1": open.saturating_sub(http2),
            "http2": http2,
            "max": settings.server.max_connections,
        })
    }

    pub(super) fn requests(&self) -> Value {
        let readings @ [before, last, now] = self.readings();
        let mut requests = self.counted(readings.map(Reading::total).each_ref());
        requests["refused"] = json!(now.refused);
        requests["waiting"] = self.admin.process.waiting.held().into();
        requests["received_bytes_total"] = now.received.into();
        let received = self.per_second(before.received, last.received);
        requests["received_bytes_per_second"] = received.into();
        requests["sent_bytes_total"] = now.sent.into();
        requests["sent_bytes_per_second"] = self.per_second(before.sent, last.sent).into();
        requests
    }

    pub(super) fn routes(&self, settings: &Settings) -> Vec<Value> {
        let none = &RouteCounts::default();
        let of = |route: &RouteSpec| {
            self.readings().map(|it| it.routes.get(&route.name).unwrap_or(none))
        };
        let routes: Vec<_> = settings.routes.iter().chain([&settings.no_route]).collect();
        let busy = |route: &&RouteSpec| {
            let [before, last, _] = of(route).map(RouteCounts::requests);
            (last.saturating_sub(before), last)
        };
        let write = |route: &&RouteSpec| {
            let counts = of(route);
            let (mut by_class, mut per_second) = (Map::new(), Map::new());
            for (class, name) in CLASSES {
                let [before, last, now] = counts.map(|it| it.statuses.of_class(class));
                by_class.insert(name.to_owned(), now.into());
                per_second.insert(name.to_owned(), self.per_second(before, last).into());
            }
            let mut route_counts = self.counted(counts);
            route_counts["name"] = Value::from(&*route.name);
            route_counts["statuses_total"] = by_class.into();
            route_counts["statuses_per_second"] = per_second.into();
            route_counts
        };
        busiest(&routes, busy, write)
    }

    /// The fields of a route, or of all routes together. `counts` are the counts at the last two readings, and the
    /// present counts.
    fn counted(&self, counts: [&RouteCounts; 3]) -> Value {
        let [before, last, now] = counts;
        let mut counted = json!({
            "total": now.requests(),
            "per_second": self.per_second(before.requests(), last.requests()),
        });
        self.write_outcomes(&mut counted, counts.map(|it| it.outcomes));
        counted
    }

    pub(super) fn upstreams(&self, published: &Published) -> Vec<Value> {
        let none = &UpstreamCounts::default();
        let upstream = |name: &Name, servers: &[Arc<ServerState>]| {
            let [before, last, now] =
                self.readings().map(|it| it.upstreams.get(name).unwrap_or(none));
            let [p50, p99] = latency(&before.seconds, &last.seconds);
            let [before, last, count] = [before, last, now].map(|it| it.seconds.count());
            json!({
                "name": name.as_str(),
                "answers_total": count,
                "answers_per_second": self.per_second(before, last),
                "p50_ms": p50,
                "p99_ms": p99,
                "errors": by_reason(&now.failures),
                "retries_total": servers.iter().map(|server| server.notes().retries).sum::<u64>(),
                "servers": servers.iter().map(|state| self.upstream_server(state)).collect::<Vec<_>>(),
            })
        };
        let states = published.upstreams.iter();
        states.map(|state| upstream(state.name(), state.servers())).collect()
    }

    fn upstream_server(&self, state: &ServerState) -> Value {
        let notes = state.notes();
        let check = notes.last_check.map(|(at, error)| {
            json!({ "time": self.moment(at), "passed": error.is_none(), "error": error })
        });
        json!({
            "url": &**state.url(),
            "up": state.is_up(),
            "since": self.moment(notes.changed),
            "reason": Some(notes.reason).filter(|it| !it.is_empty()),
            "requests_total": state.requests(),
            "answers_5xx_total": notes.answers_5xx,
            "in_flight": state.in_flight(),
            "errors": by_reason(&notes.failures),
            "retries_total": notes.retries,
            "last_check": check,
        })
    }
}

fn by_reason(failures: &BTreeMap<UpstreamFailure, u64>) -> BTreeMap<&'static str, u64> {
    failures.iter().map(|(failure, count)| (failure.reason(), *count)).collect()
}
