//! Connections, requests, routes, and upstreams with their servers.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{Scene, busiest, latency};
use crate::limit::name::Name;
use crate::observe::metrics::{Reading, RouteCounts, UpstreamCounts, UpstreamFailure};
use crate::plan::{Plan, RouteSpec};
use crate::upstream::health::ServerState;
use crate::worker::Published;

const CLASSES: [(u16, &str); 5] = [(1, "1xx"), (2, "2xx"), (3, "3xx"), (4, "4xx"), (5, "5xx")];

impl Scene<'_> {
    pub(super) fn connections(&self, plan: &Plan) -> Value {
        let open = self.admin.process.connections.open() as u64;
        let http2 = self.now.reading.http2;
        json!({
            "open": open,
            "http1": open.saturating_sub(http2),
            "http2": http2,
            "max": plan.server.max_connections,
        })
    }

    pub(super) fn requests(&self) -> Value {
        let ([before, last], now) = (self.readings(), &self.now.reading);
        let sum = |reading: &Reading| reading.decisions().iter().sum();
        let mut requests = json!({
            "total": sum(now),
            "per_second": self.per_second(sum(before), sum(last)),
            "failed_total": now.failed(),
            "failed_per_second": self.per_second(before.failed(), last.failed()),
            "waiting": self.admin.process.waiting.held(),
            "received_bytes_total": now.received,
            "received_bytes_per_second": self.per_second(before.received, last.received),
            "sent_bytes_total": now.sent,
            "sent_bytes_per_second": self.per_second(before.sent, last.sent),
        });
        self.write_decisions(&mut requests, Reading::decisions);
        requests
    }

    pub(super) fn routes(&self, plan: &Plan) -> Vec<Value> {
        let none = &RouteCounts::default();
        let sum = |route: &RouteCounts| route.decisions.iter().sum::<u64>();
        let routes: Vec<_> = plan.routes.iter().chain([&plan.no_route]).collect();
        let busy = |route: &&RouteSpec| {
            let [before, last] =
                self.readings().map(|it| it.routes.get(&route.name).map_or(0, sum));
            (last.saturating_sub(before), last)
        };
        let write = |route: &&RouteSpec| {
            let name = &route.name;
            let [earlier, later] = self.readings();
            let [earlier, later, total] = [earlier, later, &self.now.reading]
                .map(|reading| reading.routes.get(name).unwrap_or(none));
            let (mut by_class, mut per_second) = (Map::new(), Map::new());
            for (class, text) in CLASSES {
                let count = |route: &RouteCounts| route.statuses.of_class(class);
                by_class.insert(text.to_owned(), count(total).into());
                let last = self.per_second(count(earlier), count(later));
                per_second.insert(text.to_owned(), last.into());
            }
            let mut route = json!({
                "name": &**name,
                "total": sum(total),
                "per_second": self.per_second(sum(earlier), sum(later)),
                "statuses_total": by_class,
                "statuses_per_second": per_second,
                "failed_total": total.failed,
                "failed_per_second": self.per_second(earlier.failed, later.failed),
            });
            self.write_decisions(&mut route, |reading| {
                reading.routes.get(name).unwrap_or(none).decisions
            });
            route
        };
        busiest(&routes, busy, write)
    }

    pub(super) fn upstreams(&self, published: &Published) -> Vec<Value> {
        let of = |reading: &Reading, name: &Name| -> UpstreamCounts {
            reading.upstreams.get(name).cloned().unwrap_or_default()
        };
        let upstream = |name: &Name, servers: &[Arc<ServerState>]| {
            let now = of(&self.now.reading, name);
            let [before, last] = self.readings().map(|it| of(it, name).seconds);
            let [p50, p99] = latency(&before, &last);
            json!({
                "name": name.as_str(),
                "answers_total": now.seconds.count(),
                "answers_per_second": self.per_second(before.count(), last.count()),
                "p50_ms": p50,
                "p99_ms": p99,
                "errors": by_reason(&now.failures),
                "retries_total": servers.iter().map(|server| server.retries()).sum::<u64>(),
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
            "answers_5xx_total": state.answers_5xx(),
            "in_flight": state.in_flight(),
            "errors": by_reason(&notes.failures),
            "retries_total": state.retries(),
            "last_check": check,
        })
    }
}

fn by_reason(failures: &BTreeMap<UpstreamFailure, u64>) -> BTreeMap<&'static str, u64> {
    failures.iter().map(|(failure, count)| (failure.reason(), *count)).collect()
}
