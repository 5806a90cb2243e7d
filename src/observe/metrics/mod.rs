//! The counters of the workers. `admin` lists the metrics and renders them from these counters.
//!
//! Each worker has its own counters, so workers never wait for each other. A scrape adds the counters
//! up. Labels come from the configuration and never from a client: their number does not grow with traffic.

mod histogram;
mod reading;
mod routes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use http::StatusCode;
use parking_lot::Mutex;

pub(crate) use self::histogram::Histogram;
pub(crate) use self::reading::Reading;
use self::routes::Requests;
pub(crate) use self::routes::{RouteCounter, RouteCounters, RouteCounts};
use super::top_keys::{self, KeyCount, TopKeys};
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::settings::NO_ROUTE;

/// The process's counters. They live as long as the process: a reload keeps them, by name.
#[derive(Debug)]
pub struct Metrics {
    workers: Vec<Arc<WorkerMetrics>>,
}

/// One worker's counters. Only the worker and a scrape take the lock of the counters. A call allocates memory only
/// for new labels.
#[derive(Debug, Default)]
pub struct WorkerMetrics {
    counts: Mutex<Counts>,
    /// Bytes that clients sent (`received`), and bytes that were sent to clients (`sent`).
    received: AtomicU64,
    sent: AtomicU64,
    /// Connections that speak HTTP/2 now.
    http2: AtomicU64,
    /// The keys that this worker has rejected.
    pub(crate) top_keys: TopKeys,
}

/// Why an exchange with an upstream failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum UpstreamFailure {
    /// No server could be connected to.
    Connect,
    /// Nothing came in time: no connection, no head, or no more of the body.
    Timeout,
    /// The exchange broke, before the head or within the body.
    Broken,
    /// The proxy does not pass this answer on.
    Refused,
    /// The request was sent to no server: all servers asked for a pause.
    Busy,
}

impl UpstreamFailure {
    /// The label's value.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Broken => "broken",
            Self::Refused => "refused",
            Self::Busy => "busy",
        }
    }
}

/// The decision of a limit about a request, or of all its limits together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DecisionKind {
    /// The request may go.
    #[default]
    Allowed,
    /// The request may go after a wait.
    Delayed,
    /// The store could not decide.
    Error,
    /// The request was rejected.
    Rejected,
    /// A limit in shadow would have rejected the request.
    Shadow,
    /// A limit that marks would have rejected the request.
    Marked,
    /// The request was refused with 4xx for another reason than a limit that is used up.
    Refused,
}

impl Metrics {
    /// The counters of `workers` workers, at least one.
    pub fn new(workers: usize) -> Arc<Self> {
        let workers = (0..workers.max(1)).map(|_| {
            let worker = Arc::<WorkerMetrics>::default();
            // The first counter is that of requests without a route.
            worker.route(&NO_ROUTE.into());
            worker
        });
        Arc::new(Self { workers: workers.collect() })
    }

    /// The counters of a worker, by its number from 0. A number beyond the last worker gets the counters of
    /// another worker.
    pub fn worker(&self, number: usize) -> Arc<WorkerMetrics> {
        let own = self.workers.get(number % self.workers.len());
        own.map(Arc::clone).unwrap_or_default()
    }

    /// How long the requests of each route took.
    pub(crate) fn request_seconds(&self) -> BTreeMap<Arc<str>, Histogram> {
        let mut all = BTreeMap::<_, Histogram>::new();
        for worker in &self.workers {
            for Requests { route, seconds, .. } in &worker.counts.lock().requests {
                all.entry(route.clone()).or_default().add(seconds);
            }
        }
        all
    }

    /// The present counts, without the routes' histograms. No worker has to wait for long.
    pub(crate) fn reading(&self) -> Reading {
        let mut reading = Reading::default();
        self.workers.iter().for_each(|worker| reading.add(worker));
        reading
    }

    /// The keys of this limit that are rejected most, at most `most` of them.
    pub(crate) fn top_keys(&self, limit: &Name, now: Timestamp, most: usize) -> Vec<KeyCount> {
        let workers = self.workers.iter().map(|worker| &worker.top_keys);
        top_keys::read(workers, limit, now, most)
    }
}

impl WorkerMetrics {
    /// The counter for requests of the route with this name. The same name always has the same counter.
    pub(crate) fn route(&self, name: &Arc<str>) -> RouteCounter {
        let mut counts = self.counts.lock();
        let Counts { routes, requests, .. } = &mut *counts;
        if let Some(known) = routes.get(name) {
            return *known;
        }
        // After 2³² names, a new name is counted with the requests without a route.
        let Ok(new) = u32::try_from(requests.len()) else { return RouteCounter::NO_ROUTE };
        requests.push(Requests::of(name.clone()));
        routes.insert(name.clone(), RouteCounter(new));
        RouteCounter(new)
    }

    /// Counts a finished request. `decision` is that of all its limits together. `duration` is from the request's
    /// head to the response's end. `upstream` is the upstream that answered, with the time to the answer's head.
    pub(crate) fn request(
        &self,
        route: RouteCounter,
        status: StatusCode,
        decision: DecisionKind,
        duration: Duration,
        upstream: Option<(&Name, Duration)>,
    ) {
        let mut counts = self.counts.lock();
        let requests = usize::try_from(route.0).ok().and_then(|at| counts.requests.get_mut(at));
        if let Some(requests) = requests {
            requests.seconds.observe(duration);
            let counts = &mut requests.counts;
            counts.statuses.add(status.as_u16(), 1);
            counts.outcomes[decision as usize] += 1;
            if status.is_server_error() && decision != DecisionKind::Rejected {
                counts.outcomes[FAILED] += 1;
            }
        }
        if let Some((name, duration)) = upstream {
            counts.upstream(name).seconds.observe(duration);
        }
    }

    /// Counts a request that was refused with 4xx, and that no limit rejected.
    pub(crate) fn refused(&self, reason: &'static str) {
        *self.counts.lock().refused.entry(reason).or_default() += 1;
    }

    /// Counts a request that a limit in shadow would refuse, because it cannot count the request. `why` is the answer in
    /// words.
    pub(crate) fn would_refuse(&self, why: String) {
        let counts = &mut self.counts.lock().shadow_refused;
        if counts.len() < MOST_WORDS || counts.contains_key(&why) {
            *counts.entry(why).or_default() += 1;
        }
    }

    /// Counts a call that asked for a decision. `via` is how it asked, `status` what the request's client gets.
    pub(crate) fn asked(&self, via: &'static str, status: StatusCode) {
        *self.counts.lock().asked.entry((via, status.as_u16())).or_default() += 1;
    }

    /// Counts an exchange with this upstream that failed.
    pub(crate) fn upstream_failed(&self, upstream: &Name, failure: UpstreamFailure) {
        *self.counts.lock().upstream(upstream).failures.entry(failure).or_default() += 1;
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts an HTTP/2 connection, until the returned value is dropped.
    pub(crate) fn http2_connection(self: &Arc<Self>) -> Http2Counted {
        self.http2.fetch_add(1, Ordering::Relaxed);
        Http2Counted(Arc::clone(self))
    }

    /// Counts a decision of the limit with this name.
    pub(crate) fn decision(&self, limit: &Name, kind: DecisionKind) {
        self.decided(None, std::iter::once((limit, kind)));
    }

    /// Counts the decisions of limits about one request, each with the limit's name. `store` is the time
    /// that the store took. `None` if the store did not answer.
    pub(crate) fn decided<'l>(
        &self,
        store: Option<Duration>,
        decisions: impl Iterator<Item = (&'l Name, DecisionKind)>,
    ) {
        let mut all = self.counts.lock();
        if let Some(duration) = store {
            all.store_seconds.observe(duration);
        }
        for (limit, kind) in decisions {
            let of_limit = all.decisions.entry(limit.fingerprint());
            let (_, counts) = of_limit.or_insert_with(|| (limit.clone(), Default::default()));
            counts[kind as usize] += 1;
        }
    }
}

/// Counts one HTTP/2 connection, until dropped.
#[derive(Debug)]
pub(crate) struct Http2Counted(Arc<WorkerMetrics>);

impl Drop for Http2Counted {
    fn drop(&mut self) {
        self.0.http2.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Names come from the configuration. Clients cannot choose them, so a fast hash is enough.
#[derive(Debug, Default)]
struct Counts {
    /// By [`RouteCounter`].
    requests: Vec<Requests>,
    routes: HashMap<Arc<str>, RouteCounter>,
    /// By the fingerprint of the limit's name.
    decisions: HashMap<u64, (Name, DecisionCounts)>,
    /// By the fingerprint of the upstream's name.
    upstreams: HashMap<u64, (Name, UpstreamCounts)>,
    asked: AskedCounts,
    refused: RefusedCounts,
    /// Requests that limits in shadow would refuse, because they cannot count them, by the answer in words.
    shadow_refused: BTreeMap<String, u64>,
    store_seconds: Histogram,
}

/// The most different answers in words that are counted.
const MOST_WORDS: usize = 1_000;

/// Requests that were refused with 4xx, and that no limit rejected, by the reason.
pub(crate) type RefusedCounts = BTreeMap<&'static str, u64>;

/// Calls that asked for a decision, by how they asked and by the status that the request's client gets.
pub(crate) type AskedCounts = BTreeMap<(&'static str, u16), u64>;

/// The counts of an upstream.
#[derive(Clone, Debug, Default)]
pub(crate) struct UpstreamCounts {
    pub(crate) seconds: Histogram,
    pub(crate) failures: BTreeMap<UpstreamFailure, u64>,
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

/// How often each [`DecisionKind`] occurred, in the order of its variants.
pub(crate) type DecisionCounts = [u64; 7];

/// How often each of the [`OUTCOMES`] occurred.
pub(crate) type OutcomeCounts = [u64; 8];

/// The labels of [`DecisionKind`], in the order of its variants. Then the label of failed requests: no limit
/// rejected them, and their answers had a 5xx status.
pub(crate) const OUTCOMES: [&str; 8] =
    ["allowed", "delayed", "error", "rejected", "shadow", "marked", "refused", "failed"];

/// The index of the failed requests.
pub(crate) const FAILED: usize = 7;

#[cfg(test)]
mod tests;
