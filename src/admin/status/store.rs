//! The store, and the servers of a Redis cluster.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Scene, latency, millis};
use crate::observe::metrics::Histogram;
use crate::plan::StoreLocation;
use crate::redis::ClusterServer;

impl Scene<'_> {
    pub(super) fn store(&self) -> Value {
        let shared = &self.admin.process.store;
        let spec = &self.admin.first_store;
        let counters = shared.counters();
        let uptime =
            || std::time::Duration::from_micros(self.now.at.micros_since(self.admin.started));
        let age = shared.redis_phase_age().unwrap_or_else(uptime);
        let [before, last] = self.readings().map(|reading| &reading.store_seconds);
        let [p50, p99] = latency(before, last);
        let servers: Vec<_> = self.now.servers.iter().map(|server| self.server(server)).collect();
        let kind = match spec.location {
            StoreLocation::Memory => "memory",
            StoreLocation::Redis(_) => "redis",
        };
        json!({
            "kind": kind,
            "location": spec.location.to_string(),
            "up": counters.redis_up.unwrap_or(true),
            "since": self.ago(age),
            "since_ms": millis(age),
            "questions_total": self.now.reading.store_seconds.count(),
            "questions_per_second": self.per_second(before.count(), last.count()),
            "p50_ms": p50,
            "p99_ms": p99,
            "errors": errors(self.errors()),
            "servers": servers,
            "processes": counters.processes,
            "memory_keys": counters.keys,
            "known_refusals_total": counters.known_refusals,
            "decided_without_total": counters.decided_without,
            "refused_without_total": counters.refused_without,
            "unsettled_total": counters.unsettled,
        })
    }

    /// Errors since the start, of all servers together.
    fn errors(&self) -> Vec<(&'static str, u64)> {
        let servers = self.now.servers.iter().flat_map(|server| server.errors.iter().copied());
        servers.chain(self.admin.process.store.errors()).collect()
    }

    fn server(&self, server: &ClusterServer) -> Value {
        let none = Histogram::default();
        let of = |servers: &'_ [ClusterServer]| {
            servers.iter().find(|it| it.name == server.name).map(|it| it.seconds.clone())
        };
        let later = of(&self.later.servers).unwrap_or_else(|| none.clone());
        let earlier = of(&self.earlier.servers).unwrap_or(none);
        let [p50, p99] = latency(&earlier, &later);
        json!({
            "name": server.name,
            "up": server.is_up,
            "since": self.ago(server.phase_age),
            "since_ms": millis(server.phase_age),
            "questions_total": server.seconds.count(),
            "questions_per_second": self.per_second(earlier.count(), later.count()),
            "p50_ms": p50,
            "p99_ms": p99,
            "errors": errors(server.errors.iter().copied()),
        })
    }
}

fn errors(counts: impl IntoIterator<Item = (&'static str, u64)>) -> Value {
    let mut sum = BTreeMap::<_, u64>::new();
    for (kind, count) in counts {
        *sum.entry(kind).or_default() += count;
    }
    json!(sum)
}
