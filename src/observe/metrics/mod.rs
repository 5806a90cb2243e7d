//! What Prometheus reads.
//!
//! Each worker counts by itself, so workers never wait for each other; a scrape adds them up.
//! Labels come from the configuration, never from a client, so they do not grow with traffic.

mod histogram;
mod process;
mod routes;
mod snapshot;
mod text;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use http::StatusCode;
use parking_lot::Mutex;

use self::histogram::{Histogram, REQUEST_BOUNDS, STORE_BOUNDS};
use self::routes::{Requests, increment};
pub use self::routes::{RouteCounter, RouteCounters};
pub use self::snapshot::{LimitFigures, ServerGauge, Snapshot};
use self::text::{FamilyKind, Page};
use super::hashed::AsItIs;
use crate::limit::name::Name;
use crate::plan::NO_ROUTE;

/// The media type of what [`Metrics::render`] writes.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

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
    /// Bytes that clients sent, and that they were sent.
    received: AtomicU64,
    sent: AtomicU64,
    /// Connections that speak HTTP/2 now.
    http2: AtomicU64,
}

/// Why an exchange with an upstream failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UpstreamFailure {
    /// No server could be connected to.
    Connect,
    /// Nothing came in time: no connection, no head, or no more of the body.
    Timeout,
    /// The exchange broke, before the head or within the body.
    Broken,
    /// The answer is one that this proxy does not pass on.
    Refused,
}

impl UpstreamFailure {
    /// The label's value.
    fn reason(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Broken => "broken",
            Self::Refused => "refused",
        }
    }
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
        let (mut total, mut traffic) = (Total::default(), Traffic::default());
        for worker in &self.workers {
            total.add(&worker.counts.lock());
            traffic.add(worker);
        }
        let mut page = Page::default();
        total.write(&mut page);
        traffic.write(&mut page, snapshot.connections);
        snapshot.write(&mut page);
        process::write(&mut page);
        page.finish()
    }
}

impl WorkerMetrics {
    /// Where the requests of the route with this name are counted; it stays so.
    pub fn route(&self, name: &Arc<str>) -> RouteCounter {
        let mut counts = self.counts.lock();
        let Counts { routes, requests, .. } = &mut *counts;
        if let Some(known) = routes.get(name) {
            return *known;
        }
        // With four billion names that were ever there, one more counts with those without a route.
        let Ok(new) = u32::try_from(requests.len()) else { return RouteCounter::NO_ROUTE };
        requests.push(Requests::default());
        routes.insert(name.clone(), RouteCounter(new));
        RouteCounter(new)
    }

    /// Counts a request that is over. `duration` is from the request's head to the response's end.
    /// `upstream` is the one that answered, and how long it took to the answer's head.
    pub fn request(
        &self,
        route: RouteCounter,
        status: StatusCode,
        duration: Duration,
        upstream: Option<(&Name, Duration)>,
    ) {
        let mut counts = self.counts.lock();
        let requests = usize::try_from(route.0).ok().and_then(|at| counts.requests.get_mut(at));
        if let Some(requests) = requests {
            requests.seconds.observe(duration);
            increment(&mut requests.statuses, status.as_u16());
        }
        if let Some((name, duration)) = upstream {
            counts.upstream(name).seconds.observe(duration);
        }
    }

    /// Counts an exchange with this upstream that failed.
    pub fn upstream_failed(&self, upstream: &Name, failure: UpstreamFailure) {
        *self.counts.lock().upstream(upstream).failures.entry(failure).or_default() += 1;
    }

    /// Counts bytes that a client sent.
    pub fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes that a client was sent.
    pub fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts a connection as one that speaks HTTP/2, until what is returned is dropped.
    pub fn http2_connection(self: &Arc<Self>) -> Http2Counted {
        self.http2.fetch_add(1, Ordering::Relaxed);
        Http2Counted(Arc::clone(self))
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
        let mut counts = self.counts.lock();
        if let Some(duration) = store {
            counts.store_seconds.observe(duration);
        }
        for (limit, kind) in said {
            let of_limit = counts.decisions.entry(limit.fingerprint());
            let (_, decisions) = of_limit.or_insert_with(|| (limit.clone(), Decisions::default()));
            decisions.add(kind);
        }
    }
}

/// Counts as a connection that speaks HTTP/2.
#[derive(Debug)]
pub struct Http2Counted(Arc<WorkerMetrics>);

impl Drop for Http2Counted {
    fn drop(&mut self) {
        self.0.http2.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Names come from the configuration, so a fast hash that nobody outside can aim at is enough.
#[derive(Debug)]
struct Counts {
    /// By [`RouteCounter`].
    requests: Vec<Requests>,
    routes: HashMap<Arc<str>, RouteCounter>,
    /// By the fingerprint of the limit's name.
    decisions: HashMap<u64, (Name, Decisions), AsItIs>,
    /// By the fingerprint of the upstream's name.
    upstreams: HashMap<u64, (Name, UpstreamCounts), AsItIs>,
    store_seconds: Histogram,
}

/// What is counted of an upstream.
#[derive(Debug)]
struct UpstreamCounts {
    seconds: Histogram,
    failures: BTreeMap<UpstreamFailure, u64>,
}

impl Default for UpstreamCounts {
    fn default() -> Self {
        Self { seconds: Histogram::new(&REQUEST_BOUNDS), failures: BTreeMap::new() }
    }
}

impl UpstreamCounts {
    fn add(&mut self, other: &Self) {
        self.seconds.add(&other.seconds);
        for (failure, count) in &other.failures {
            *self.failures.entry(*failure).or_default() += count;
        }
    }
}

impl Counts {
    fn upstream(&mut self, name: &Name) -> &mut UpstreamCounts {
        let known = self.upstreams.entry(name.fingerprint());
        &mut known.or_insert_with(|| (name.clone(), UpstreamCounts::default())).1
    }
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            requests: vec![Requests::default()],
            routes: HashMap::from_iter([(NO_ROUTE.into(), RouteCounter::NO_ROUTE)]),
            decisions: HashMap::default(),
            upstreams: HashMap::default(),
            store_seconds: Histogram::new(&STORE_BOUNDS),
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
    request_seconds: BTreeMap<Arc<str>, Histogram>,
    decisions: BTreeMap<Name, Decisions>,
    upstreams: BTreeMap<Name, UpstreamCounts>,
    others: Counts,
}

impl Total {
    fn add(&mut self, counts: &Counts) {
        for (route, number) in &counts.routes {
            let Some(requests) =
                usize::try_from(number.0).ok().and_then(|at| counts.requests.get(at))
            else {
                continue;
            };
            let seconds = self.request_seconds.entry(route.clone());
            seconds.or_insert_with(|| Histogram::new(&REQUEST_BOUNDS)).add(&requests.seconds);
            for answered in &requests.statuses {
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
        for (name, upstream) in counts.upstreams.values() {
            self.upstreams.entry(name.clone()).or_default().add(upstream);
        }
        self.others.store_seconds.add(&counts.store_seconds);
    }

    fn write(&self, page: &mut Page) {
        page.family(
            FamilyKind::Counter,
            "tidegate_requests_total",
            "Requests by route and status.",
        );
        for ((route, status), count) in &self.requests {
            let status = status.to_string();
            page.sample(&[("route", route.as_ref()), ("status", &status)], count);
        }
        page.family(
            FamilyKind::Counter,
            "tidegate_decisions_total",
            "What limits said to requests.",
        );
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
        page.family(FamilyKind::Histogram, "tidegate_request_duration_seconds", help);
        for (route, seconds) in &self.request_seconds {
            page.histogram(&[("route", route.as_ref())], seconds);
        }
        let help = "Time from a request's way upstream to the head of the answer.";
        page.family(FamilyKind::Histogram, "tidegate_upstream_duration_seconds", help);
        for (upstream, UpstreamCounts { seconds, .. }) in &self.upstreams {
            page.histogram(&[("upstream", upstream.as_str())], seconds);
        }
        page.family(
            FamilyKind::Counter,
            "tidegate_upstream_errors_total",
            "Exchanges that failed.",
        );
        for (upstream, UpstreamCounts { failures, .. }) in &self.upstreams {
            for (failure, count) in failures {
                let labels = [("upstream", upstream.as_str()), ("reason", failure.reason())];
                page.sample(&labels, count);
            }
        }
        let help = "Time of a question to the store.";
        page.family(FamilyKind::Histogram, "tidegate_store_duration_seconds", help);
        page.histogram(&[], &self.others.store_seconds);
    }
}

/// What all workers' clients sent and were sent, and how many of them speak HTTP/2.
#[derive(Default)]
struct Traffic {
    received: u64,
    sent: u64,
    http2: u64,
}

impl Traffic {
    fn add(&mut self, worker: &WorkerMetrics) {
        self.received += worker.received.load(Ordering::Relaxed);
        self.sent += worker.sent.load(Ordering::Relaxed);
        self.http2 += worker.http2.load(Ordering::Relaxed);
    }

    fn write(&self, page: &mut Page, connections: u64) {
        use FamilyKind::{Counter, Gauge};
        page.family(Gauge, "tidegate_connections", "Client connections.");
        page.sample(&[("protocol", "http1")], &connections.saturating_sub(self.http2));
        page.sample(&[("protocol", "http2")], &self.http2);
        page.family(Counter, "tidegate_received_bytes_total", "Bytes that clients sent.");
        page.sample(&[], &self.received);
        page.family(Counter, "tidegate_sent_bytes_total", "Bytes that clients were sent.");
        page.sample(&[], &self.sent);
    }
}

#[cfg(test)]
mod tests;
