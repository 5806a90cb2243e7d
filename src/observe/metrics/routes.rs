//! The counters of routes.

use std::cell::Cell;
use std::sync::Arc;

use smallvec::SmallVec;

use super::histogram::Histogram;
use super::{DecisionCounts, WorkerMetrics};

/// Identifies the counters of a route within a worker. Stays valid after a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteCounter(pub(super) u32);

impl RouteCounter {
    /// For requests without a route.
    pub(crate) const NO_ROUTE: Self = Self(0);
}

/// A worker's counters of a plan's routes. Each counter is looked up by its route's name when it is first
/// needed: a reload does not wait for ten thousand look-ups.
#[derive(Debug)]
pub(crate) struct RouteCounters(Box<[Cell<RouteCounter>]>);

impl RouteCounters {
    /// The counters of this number of routes.
    pub(crate) fn new(routes: usize) -> Self {
        Self(vec![Cell::new(RouteCounter::NO_ROUTE); routes].into())
    }

    /// The counter of the route with this index and this name. `metrics` are the worker's.
    pub(crate) fn of(
        &self,
        route: usize,
        name: &Arc<str>,
        metrics: &WorkerMetrics,
    ) -> RouteCounter {
        let Some(known) = self.0.get(route) else { return RouteCounter::NO_ROUTE };
        if known.get() == RouteCounter::NO_ROUTE {
            known.set(metrics.route(name));
        }
        known.get()
    }
}

/// The counts of a route.
#[derive(Debug)]
pub(super) struct Requests {
    pub(super) route: Arc<str>,
    pub(super) statuses: StatusCounts,
    pub(super) decisions: DecisionCounts,
    /// Requests that no limit rejected, and that were answered with a 5xx status.
    pub(super) failed: u64,
    pub(super) seconds: Histogram,
}

impl Requests {
    pub(super) fn of(route: Arc<str>) -> Self {
        let (statuses, decisions) = (StatusCounts::default(), DecisionCounts::default());
        Self { route, statuses, decisions, failed: 0, seconds: Histogram::default() }
    }
}

/// How often each status was answered. A route answers with few statuses: a list is searched faster than a
/// table. Two statuses fit into the list without an allocation.
pub(super) type StatusCounts = SmallVec<[(u16, u64); 2]>;

pub(super) fn increment(statuses: &mut StatusCounts, status: u16) {
    match statuses.iter_mut().find(|(answered, _)| *answered == status) {
        Some((_, count)) => *count += 1,
        None => statuses.push((status, 1)),
    }
}
