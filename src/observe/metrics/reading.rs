//! The counts of one moment. `admin` reads them for the status and for the history.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{DecisionCounts, Histogram, UpstreamCounts, WorkerMetrics};
use crate::limit::name::Name;

/// This many routes are read under one lock. Then the worker may count again.
const ROUTES_AT_ONCE: usize = 256;

/// Requests by the class of their answer: 1xx, 2xx, 3xx, 4xx, 5xx.
type StatusClasses = [u64; 5];

/// The requests of one route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteReading {
    pub(crate) statuses: StatusClasses,
    /// What the limits of each request decided together.
    pub(crate) decisions: DecisionCounts,
    /// Requests that no limit rejected, and that were answered with a 5xx status.
    pub(crate) failed: u64,
}

/// All workers' counts at one moment. Each is counted since the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    /// By route. A route without a request is left out.
    pub(crate) routes: BTreeMap<Arc<str>, RouteReading>,
    /// By limit.
    pub(crate) limits: BTreeMap<Name, DecisionCounts>,
    pub(crate) upstreams: BTreeMap<Name, UpstreamCounts>,
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
        self.store_seconds.add(&counts.store_seconds);
        self.received += worker.received.load(Ordering::Relaxed);
        self.sent += worker.sent.load(Ordering::Relaxed);
        self.http2 += worker.http2.load(Ordering::Relaxed);
    }

    /// Adds the routes from this place. Returns the place of the first route that is left.
    fn add_routes(&mut self, worker: &WorkerMetrics, from: usize) -> Option<usize> {
        let counts = worker.counts.lock();
        let next = from + ROUTES_AT_ONCE;
        for requests in counts.requests.iter().take(next).skip(from) {
            if requests.statuses.is_empty() {
                continue;
            }
            let route = self.routes.entry(requests.route.clone()).or_default();
            add(&mut route.decisions, &requests.decisions);
            route.failed += requests.failed;
            for (status, count) in &requests.statuses {
                let class = usize::from(status / 100).saturating_sub(1);
                if let Some(total) = route.statuses.get_mut(class) {
                    *total += count;
                }
            }
        }
        (next < counts.requests.len()).then_some(next)
    }

    /// What the limits of each request decided together, for all requests since the start.
    pub(crate) fn decisions(&self) -> DecisionCounts {
        let mut all = DecisionCounts::default();
        self.routes.values().for_each(|route| add(&mut all, &route.decisions));
        all
    }

    /// Failed requests of all routes since the start.
    pub(crate) fn failed(&self) -> u64 {
        self.routes.values().map(|route| route.failed).sum()
    }
}

impl RouteReading {
    /// The decisions, then the requests that failed.
    pub(crate) fn outcomes(&self) -> [u64; 6] {
        let [allowed, delayed, error, rejected, shadow] = self.decisions;
        [allowed, delayed, error, rejected, shadow, self.failed]
    }
}

fn add(total: &mut DecisionCounts, counts: &DecisionCounts) {
    total.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
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
        let route =
            RouteReading { statuses: [0, 4, 0, 2, 2], decisions: [6, 0, 0, 2, 0], failed: 2 };
        assert!(reading.routes.values().all(|it| *it == route));
        let routes = ROUTES_AT_ONCE as u64 * 2 + 1;
        assert_eq!(reading.decisions(), [6 * routes, 0, 0, 2 * routes, 0]);
        assert_eq!(reading.failed(), 2 * routes);
        assert_eq!(reading.limits[&Name::new("a").unwrap()], [0, 0, 0, 2, 0]);
    }
}
