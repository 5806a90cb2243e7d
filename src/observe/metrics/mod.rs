//! What Prometheus reads.
//!
//! Each worker counts by itself, so workers never wait for each other; a scrape adds them up.
//! Labels come from the configuration, never from a client, so they do not grow with traffic.

mod histogram;
mod routes;
mod text;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use http::StatusCode;

use self::histogram::{Histogram, REQUEST_BOUNDS, STORE_BOUNDS};
pub use self::routes::{RouteCounter, RouteCounters};
use self::routes::{Statuses, increment};
use self::text::{Kind, Page};
use super::hashed::AsItIs;
use crate::limit::name::Name;

/// The media type of what [`Metrics::render`] writes.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The route's name for requests without one.
pub const NO_ROUTE: &str = "none";

/// The process's counters. They live as long as the process: a reload keeps them, by name.
#[derive(Debug)]
pub struct Metrics {
    workers: Vec<Arc<WorkerMetrics>>,
}

/// One worker's counters. Each call takes a lock that only a scrape ever contends for, and
/// allocates nothing once it has seen the labels.
#[derive(Debug, Default)]
pub struct WorkerMetrics {
    counts: Mutex<Counts>,
}

/// What a limit said to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionKind {
    /// It may go.
    Allowed,
    /// It may go after a wait.
    Delayed,
    /// It was rejected.
    Rejected,
    /// It would have been rejected.
    Shadow,
    /// The store could not say.
    Error,
}

/// What others know at the moment of a scrape.
#[derive(Clone, Debug)]
pub struct Snapshot<'s> {
    /// tidegate's version.
    pub version: &'s str,
    /// Whether the store answers; the one in memory always does.
    pub store_up: bool,
    /// Requests that are held by a limit.
    pub waiting: u64,
    /// Client connections.
    pub connections: u64,
    /// Connections since the start that said what is no request.
    pub malformed: u64,
    /// Buckets in this process's memory.
    pub memory_keys: u64,
    /// Decisions since the start that a limit's shared bucket made, because no room could be made.
    pub shared_decisions: u64,
    /// Buckets since the start that were forgotten, for want of room, before they were full.
    pub forgotten: u64,
    /// Requests since the start on which Redis should have decided and `on_store_error` did.
    pub decided_without: u64,
    /// Those since the start that it refused.
    pub refused_without: u64,
    /// Settlements since the start that did not reach Redis.
    pub unsettled: u64,
    /// Log lines that were dropped since the start.
    pub log_dropped: u64,
    /// Configurations that came in force since the start, the first included.
    pub config_generation: u64,
    /// Whether the file, when it was last read, was right.
    pub config_valid: bool,
    /// Every server of every upstream.
    pub servers: Vec<ServerState<'s>>,
}

/// A server of an upstream at the moment of a scrape.
#[derive(Clone, Copy, Debug)]
pub struct ServerState<'s> {
    /// The upstream's name.
    pub upstream: &'s str,
    /// The server's URL.
    pub server: &'s str,
    /// Whether requests are sent to it.
    pub up: bool,
}

impl Metrics {
    /// Counters for so many workers, at least one.
    pub fn new(workers: usize) -> Arc<Self> {
        let workers = (0..workers.max(1)).map(|_| Arc::default()).collect();
        Arc::new(Self { workers })
    }

    /// The counters of a worker, by its number from 0; beyond the last they are shared.
    pub fn worker(&self, number: usize) -> Arc<WorkerMetrics> {
        let own = self.workers.get(number % self.workers.len());
        own.map(Arc::clone).unwrap_or_default()
    }

    /// All of it in Prometheus's text format, version 0.0.4.
    pub fn render(&self, snapshot: &Snapshot<'_>) -> String {
        let mut total = Total::default();
        for worker in &self.workers {
            total.add(&worker.counts());
        }
        let mut page = Page::default();
        total.write(&mut page);
        snapshot.write(&mut page);
        page.finish()
    }
}

impl WorkerMetrics {
    /// Where the requests of the route with this name are counted; it stays so.
    pub fn route(&self, name: &Arc<str>) -> RouteCounter {
        let mut counts = self.counts();
        let Counts { routes, requests, .. } = &mut *counts;
        if let Some(known) = routes.get(name) {
            return *known;
        }
        // With four billion names that were ever there, one more counts with those without a route.
        let Ok(new) = u32::try_from(requests.len()) else { return RouteCounter::NO_ROUTE };
        requests.push(Statuses::new());
        routes.insert(name.clone(), RouteCounter(new));
        RouteCounter(new)
    }

    /// Counts a request that is over. `duration` is from the request's head to the response's end.
    pub fn request(&self, route: RouteCounter, status: StatusCode, duration: Duration) {
        let mut counts = self.counts();
        counts.request_seconds.observe(duration);
        let statuses = usize::try_from(route.0).ok().and_then(|at| counts.requests.get_mut(at));
        if let Some(statuses) = statuses {
            increment(statuses, status.as_u16());
        }
    }

    /// Counts what a limit said. `limit` is its name.
    pub fn decision(&self, limit: &Name, kind: DecisionKind) {
        self.decided(None, std::iter::once((limit, kind)));
    }

    /// Counts what limits said together, each by its name, and how long the store took for it where it
    /// was asked.
    pub fn decided<'l>(
        &self,
        store: Option<Duration>,
        said: impl Iterator<Item = (&'l Name, DecisionKind)>,
    ) {
        let mut counts = self.counts();
        if let Some(duration) = store {
            counts.store_seconds.observe(duration);
        }
        for (limit, kind) in said {
            let of_limit = counts.decisions.entry(limit.fingerprint());
            let (_, decisions) = of_limit.or_insert_with(|| (limit.clone(), Decisions::default()));
            decisions.add(kind);
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Names come from the configuration, so a fast hash that nobody outside can aim at is enough.
#[derive(Debug)]
struct Counts {
    /// By [`RouteCounter`].
    requests: Vec<Statuses>,
    routes: HashMap<Arc<str>, RouteCounter>,
    /// By the fingerprint of the limit's name.
    decisions: HashMap<u64, (Name, Decisions), AsItIs>,
    store_seconds: Histogram,
    request_seconds: Histogram,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            requests: vec![Statuses::new()],
            routes: HashMap::from_iter([(NO_ROUTE.into(), RouteCounter::NO_ROUTE)]),
            decisions: HashMap::default(),
            store_seconds: Histogram::new(&STORE_BOUNDS),
            request_seconds: Histogram::new(&REQUEST_BOUNDS),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Decisions {
    allowed: u64,
    delayed: u64,
    rejected: u64,
    shadow: u64,
    error: u64,
}

impl Decisions {
    fn add(&mut self, kind: DecisionKind) {
        match kind {
            DecisionKind::Allowed => self.allowed += 1,
            DecisionKind::Delayed => self.delayed += 1,
            DecisionKind::Rejected => self.rejected += 1,
            DecisionKind::Shadow => self.shadow += 1,
            DecisionKind::Error => self.error += 1,
        }
    }
}

/// All workers' counts, in the order in which they are shown.
#[derive(Default)]
struct Total {
    requests: BTreeMap<(Arc<str>, u16), u64>,
    decisions: BTreeMap<Name, Decisions>,
    seconds: Counts,
}

impl Total {
    fn add(&mut self, counts: &Counts) {
        for (route, number) in &counts.routes {
            let statuses = usize::try_from(number.0).ok().and_then(|at| counts.requests.get(at));
            for answered in statuses.into_iter().flatten() {
                let total = self.requests.entry((route.clone(), answered.status())).or_default();
                *total += answered.count();
            }
        }
        for (limit, decisions) in counts.decisions.values() {
            let total = self.decisions.entry(limit.clone()).or_default();
            total.allowed += decisions.allowed;
            total.delayed += decisions.delayed;
            total.rejected += decisions.rejected;
            total.shadow += decisions.shadow;
            total.error += decisions.error;
        }
        self.seconds.store_seconds.add(&counts.store_seconds);
        self.seconds.request_seconds.add(&counts.request_seconds);
    }

    fn write(&self, page: &mut Page) {
        page.family(Kind::Counter, "tidegate_requests_total", "Requests by route and status.");
        for ((route, status), count) in &self.requests {
            let status = status.to_string();
            page.sample(&[("route", route.as_ref()), ("status", &status)], count);
        }
        page.family(Kind::Counter, "tidegate_decisions_total", "What limits said to requests.");
        for (limit, decisions) in &self.decisions {
            for (decision, count) in [
                ("allowed", decisions.allowed),
                ("delayed", decisions.delayed),
                ("error", decisions.error),
                ("rejected", decisions.rejected),
                ("shadow", decisions.shadow),
            ] {
                page.sample(&[("limit", limit.as_str()), ("decision", decision)], &count);
            }
        }
        let help = "Time from a request's head to the end of its response.";
        page.histogram("tidegate_request_seconds", help, &self.seconds.request_seconds);
        let help = "Time of a question to the store.";
        page.histogram("tidegate_store_seconds", help, &self.seconds.store_seconds);
    }
}

impl Snapshot<'_> {
    fn write(&self, page: &mut Page) {
        use Kind::{Counter, Gauge};
        page.family(Gauge, "tidegate_store_up", "Whether the store answers.");
        page.sample(&[], &u8::from(self.store_up));
        page.family(Gauge, "tidegate_waiting", "Requests that are held by a limit.");
        page.sample(&[], &self.waiting);
        page.family(Gauge, "tidegate_upstream_up", "Whether requests are sent to a server.");
        for ServerState { upstream, server, up } in &self.servers {
            page.sample(&[("upstream", upstream), ("server", server)], &u8::from(*up));
        }
        page.family(Gauge, "tidegate_connections", "Client connections.");
        page.sample(&[], &self.connections);
        let help = "Connections that said what is no request.";
        page.family(Counter, "tidegate_malformed_requests_total", help);
        page.sample(&[], &self.malformed);
        page.family(Gauge, "tidegate_memory_keys", "Buckets in this process's memory.");
        page.sample(&[], &self.memory_keys);
        let help = "Decisions by a bucket that new keys share, the memory being full.";
        page.family(Counter, "tidegate_shared_decisions_total", help);
        page.sample(&[], &self.shared_decisions);
        let help = "Buckets that were forgotten before they were full, the memory being full.";
        page.family(Counter, "tidegate_forgotten_total", help);
        page.sample(&[], &self.forgotten);
        let help = "Requests that Redis did not decide on.";
        page.family(Counter, "tidegate_without_redis_total", help);
        page.sample(&[("answer", "decided")], &self.decided_without);
        page.sample(&[("answer", "refused")], &self.refused_without);
        let help = "Settlements of costs that did not reach Redis.";
        page.family(Counter, "tidegate_unsettled_total", help);
        page.sample(&[], &self.unsettled);
        page.family(Counter, "tidegate_log_dropped_total", "Log lines that were dropped.");
        page.sample(&[], &self.log_dropped);
        let help = "Configurations that came in force since the start.";
        page.family(Gauge, "tidegate_config_generation", help);
        page.sample(&[], &self.config_generation);
        let help = "Whether the configuration file was right when it was last read.";
        page.family(Gauge, "tidegate_config_valid", help);
        page.sample(&[], &u8::from(self.config_valid));
        page.family(Gauge, "tidegate_info", "The version that runs.");
        page.sample(&[("version", self.version)], &1);
    }
}

#[cfg(test)]
mod tests;
