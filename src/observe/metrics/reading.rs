//! The counts of one moment. `admin` reads them for the status and for the history.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::routes::add;
use super::{
    AskedCounts, DecisionCounts, DecisionKind, Histogram, RefusedCounts, RouteCounts,
    UpstreamCounts, WorkerMetrics,
};
use crate::limit::name::Name;

/// The most routes that are read under one lock. Between two such reads the worker can count.
const ROUTES_AT_ONCE: usize = 256;

/// All workers' counts at one moment. Each is counted since the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    /// By route. A route without a request is left out.
    pub(crate) routes: BTreeMap<Arc<str>, RouteCounts>,
    /// By limit.
    pub(crate) limits: BTreeMap<Name, DecisionCounts>,
    pub(crate) upstreams: BTreeMap<Name, UpstreamCounts>,
    pub(crate) asked: AskedCounts,
    pub(crate) refused: RefusedCounts,
    /// Requests that limits in shadow would refuse, because they cannot count them, by the answer in words.
    pub(crate) shadow_refused: BTreeMap<String, u64>,
    pub(crate) store_seconds: Histogram,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) http2: u64,
}

impl Reading {
    pub(super) fn add(&mut self, worker: &WorkerMetrics) {
        let mut from = 0;
        while let Some(next) = self.add_routes(worker, from) {
            from = next;
        }
        let counts = worker.counts.lock();
        for (limit, decisions) in counts.decisions.values() {
            add(self.limits.entry(limit.clone()).or_default(), decisions);
        }
        for (name, upstream) in counts.upstreams.values() {
            self.upstreams.entry(name.clone()).or_default().add(upstream);
        }
        for (call, count) in &counts.asked {
            *self.asked.entry(*call).or_default() += count;
        }
        for (reason, count) in &counts.refused {
            *self.refused.entry(*reason).or_default() += count;
        }
        for (why, count) in &counts.shadow_refused {
            *self.shadow_refused.entry(why.clone()).or_default() += count;
        }
        self.store_seconds.add(&counts.store_seconds);
        self.received += worker.received.load(Ordering::Relaxed);
        self.sent += worker.sent.load(Ordering::Relaxed);
        self.http2 += worker.http2.load(Ordering::Relaxed);
    }

    /// Adds the routes from this index. Returns the index of the first route that is left.
    fn add_routes(&mut self, worker: &WorkerMetrics, from: usize) -> Option<usize> {
        let counts = worker.counts.lock();
        let next = from + ROUTES_AT_ONCE;
        for requests in counts.requests.iter().take(next).skip(from) {
            if !requests.counts.statuses.0.is_empty() {
                self.routes.entry(requests.route.clone()).or_default().add(&requests.counts);
            }
        }
        (next < counts.requests.len()).then_some(next)
    }

    /// All requests, also those about which other proxies have asked.
    pub(crate) fn requests(&self) -> u64 {
        self.total().requests() + self.asked.values().sum::<u64>()
    }

    /// The requests that limits rejected. Of those about which other proxies have asked, these are the ones that got 429.
    pub(crate) fn rejected(&self) -> u64 {
        let asked = self.asked.iter().filter(|((_, status), _)| *status == 429);
        let rejected = self.total().outcomes[DecisionKind::Rejected as usize];
        rejected + asked.map(|(_, count)| count).sum::<u64>()
    }

    /// The requests of all routes together.
    pub(crate) fn total(&self) -> RouteCounts {
        let mut total = RouteCounts::default();
        self.routes.values().for_each(|route| total.add(route));
        total
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::StatusCode;

    use super::super::{DecisionKind, Metrics};
    use super::*;

    #[test]
    fn all_workers_and_all_routes_are_read() {
        let metrics = Metrics::new(2);
        for number in 0..2 {
            let worker = metrics.worker(number);
            for route in 0..ROUTES_AT_ONCE * 2 + 1 {
                let counter = worker.route(&route.to_string().into());
                for status in [200, 204, 404, 503] {
                    let status = StatusCode::from_u16(status).unwrap();
                    let decision = match status {
                        StatusCode::NOT_FOUND => DecisionKind::Rejected,
                        _ => DecisionKind::Allowed,
                    };
                    worker.request(counter, status, decision, Duration::ZERO, None);
                }
            }
            worker.route(&"unused".into());
            worker.decision(&Name::new("a").unwrap(), DecisionKind::Rejected);
        }
        let reading = metrics.reading();
        assert_eq!(reading.routes.len(), ROUTES_AT_ONCE * 2 + 1);
        for route in reading.routes.values() {
            assert_eq!(route.statuses.0[..], [(200, 2), (204, 2), (404, 2), (503, 2)]);
            assert_eq!([2, 3, 4, 5].map(|class| route.statuses.of_class(class)), [4, 0, 2, 2]);
            assert_eq!(route.outcomes, [6, 0, 0, 2, 0, 0, 0, 2]);
        }
        let routes = ROUTES_AT_ONCE as u64 * 2 + 1;
        let outcomes = [6 * routes, 0, 0, 2 * routes, 0, 0, 0, 2 * routes];
        assert_eq!(reading.total().outcomes, outcomes);
        assert_eq!(reading.limits[&Name::new("a").unwrap()], [0, 0, 0, 2, 0, 0, 0]);
    }
}
