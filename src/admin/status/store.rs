//! The store, and the servers of a Redis cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::{StatusFacts, latency};
use crate::observe::metrics::Histogram;
use crate::observe::millis;
use crate::redis::ClusterServer;
use crate::settings::StoreLocation;

impl StatusFacts<'_> {
    pub(super) fn store(&self) -> Value {
        let shared = &self.admin.process.store;
        let location = &self.admin.first_store.location;
        let counters = shared.counters();
        let uptime = || Duration::from_micros(self.now.at.micros_since(self.admin.started));
        let age = shared.redis_phase_age().unwrap_or_else(uptime);
        let readings = self.readings().map(|reading| &reading.store_seconds);
        let of_servers = self.now.servers.iter().flat_map(|server| server.errors.iter().copied());
        let errors = of_servers.chain(shared.errors());
        let kind = match location {
            StoreLocation::Memory => "memory",
            StoreLocation::Redis(_) => "redis",
        };
        let mut store = self.answers(counters.redis_up.unwrap_or(true), age, readings, errors);
        store["kind"] = kind.into();
        store["location"] = location.to_string().into();
        store["servers"] = self.now.servers.iter().map(|server| self.server(server)).collect();
        store["processes"] = counters.processes.into();
        store["memory_keys"] = counters.keys.into();
        store["known_refusals_total"] = counters.known_refusals.into();
        store["decided_without_total"] = counters.decided_without.into();
        store["refused_without_total"] = counters.refused_without.into();
        store["unsettled_total"] = counters.unsettled.into();
        store
    }

    fn server(&self, server: &ClusterServer) -> Value {
        let none = Histogram::default();
        let readings = [self.earlier, self.later, self.now].map(|reading| {
            let known = reading.servers.iter().find(|it| it.name == server.name);
            known.map_or(&none, |it| &it.seconds)
        });
        let errors = server.errors.iter().copied();
        let mut answers = self.answers(server.is_up, server.phase_age, readings, errors);
        answers["name"] = server.name.as_str().into();
        answers
    }

    /// The fields that the store and each server of a cluster have. The histograms count the answer times: at the last
    /// two readings, and now.
    fn answers(
        &self,
        is_up: bool,
        age: Duration,
        [earlier, later, now]: [&Histogram; 3],
        errors: impl Iterator<Item = (&'static str, u64)>,
    ) -> Value {
        let [p50, p99] = latency(earlier, later);
        let mut by_kind = BTreeMap::<_, u64>::new();
        errors.for_each(|(kind, count)| *by_kind.entry(kind).or_default() += count);
        json!({
            "up": is_up,
            "since": self.ago(age),
            "since_ms": millis(age),
            "questions_total": now.count(),
            "questions_per_second": self.per_second(earlier.count(), later.count()),
            "p50_ms": p50,
            "p99_ms": p99,
            "errors": by_kind,
        })
    }
}
