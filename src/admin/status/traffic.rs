//! Connections, requests, routes, and upstreams with their servers.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{StatusFacts, busiest, latency};
use crate::config::Spelled as _;
use crate::limit::key::write_shown;
use crate::observe::metrics::{Reading, RouteCounts, UpstreamCounts, UpstreamFailure};
use crate::observe::millis;
use crate::settings::{MaxRequests, RouteSpec, Settings, UpstreamSpec};
use crate::upstream::health::{ServerState, UpstreamState};
use crate::upstream::overload::report::QueueFacts;
use crate::worker::Published;

const CLASSES: [(u16, &str); 5] = [(1, "1xx"), (2, "2xx"), (3, "3xx"), (4, "4xx"), (5, "5xx")];

/// The most keys that are shown of those that an upstream's queue refused.
const MOST_KEYS: usize = 10;

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
        let upstream = |spec: &UpstreamSpec, state: &UpstreamState| {
            let (name, servers) = (state.name(), state.servers());
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
                "overload": spec.max_requests.map(|it| self.overload(it, &state.queue().facts())),
                "retries_total": servers.iter().map(|server| server.notes().retries).sum::<u64>(),
                "servers": servers.iter().map(|state| self.upstream_server(state)).collect::<Vec<_>>(),
            })
        };
        let states = published.settings.upstreams.iter().zip(&published.upstreams);
        states.map(|(spec, state)| upstream(spec, state)).collect()
    }

    /// The requests that wait for an upstream, and the limit that holds them.
    fn overload(&self, max_requests: MaxRequests, facts: &QueueFacts) -> Value {
        let by_key = facts.report.overload.iter().flat_map(|overload| &overload.by_key);
        let mut by_key: Vec<_> = by_key.collect();
        by_key.sort_by_key(|(_, counts)| Reverse(counts.iter().sum::<u64>()));
        let refused = by_key.into_iter().take(MOST_KEYS).map(|(key, counts)| {
            let mut shown = String::new();
            _ = write_shown(key.as_str(), &mut shown);
            let mut refused = by_priority(*counts);
            refused["key"] = shown.into();
            refused
        });
        let goal = max_requests.goal();
        let slow = (facts.slow_share * 1_000.0).round() / 10.0;
        json!({
            "limit": facts.limit,
            "in_flight": facts.in_flight,
            "waiting": by_priority(facts.waiting),
            "refused_per_second": facts.report.refused_per_second,
            "refused": refused.collect::<Vec<_>>(),
            "slow_percent": goal.map(|_| slow),
            "goal_ms": goal.map(|goal| millis(goal.slower_than)),
            "goal_times": goal.map(|_| facts.goal_times),
            "mode": goal.map(|goal| goal.mode.spelling()),
            "since": facts.lasts.map(|lasts| self.ago(lasts)),
        })
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

fn by_priority([high, normal, low]: [impl Serialize; 3]) -> Value {
    json!({ "high": high, "normal": normal, "low": low })
}

fn by_reason(failures: &BTreeMap<UpstreamFailure, u64>) -> BTreeMap<&'static str, u64> {
    failures.iter().map(|(failure, count)| (failure.reason(), *count)).collect()
}
