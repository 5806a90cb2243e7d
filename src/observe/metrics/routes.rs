//! The counters of routes.

use std::cell::Cell;
use std::sync::Arc;

use smallvec::SmallVec;

use super::histogram::Histogram;
use super::{FAILED, OutcomeCounts, WorkerMetrics};

/// Identifies the counters of a route within a worker. Stays valid after a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteCounter(pub(super) u32);

impl RouteCounter {
    /// For requests without a route.
    pub(crate) const NO_ROUTE: Self = Self(0);
}

/// A worker's counters of the settings' routes. Each counter is looked up by its route's name when it is first
/// needed: a reload does not wait for ten thousand look-ups.
#[derive(Debug)]
pub(crate) struct RouteCounters(Box<[Cell<RouteCounter>]>);

impl RouteCounters {
    /// The counters of `routes` routes.
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

/// A worker's counts of a route.
#[derive(Debug)]
pub(super) struct Requests {
    pub(super) route: Arc<str>,
    pub(super) counts: RouteCounts,
    pub(super) seconds: Histogram,
}

impl Requests {
    pub(super) fn of(route: Arc<str>) -> Self {
        Self { route, counts: RouteCounts::default(), seconds: Histogram::default() }
    }
}

/// The requests of one route since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteCounts {
    pub(crate) statuses: StatusCounts,
    /// What the limits of each request decided together, and the failed requests.
    pub(crate) outcomes: OutcomeCounts,
}

impl RouteCounts {
    pub(super) fn add(&mut self, other: &Self) {
        add(&mut self.outcomes, &other.outcomes);
        other.statuses.0.iter().for_each(|(status, count)| self.statuses.add(*status, *count));
    }

    pub(crate) fn requests(&self) -> u64 {
        self.outcomes[..FAILED].iter().sum()
    }
}

pub(super) fn add<const K: usize>(total: &mut [u64; K], counts: &[u64; K]) {
    total.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
}

/// How often each status was answered. A route answers with few statuses: a list is searched faster than a
/// table. Two statuses fit into the list without an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StatusCounts(pub(crate) SmallVec<[(u16, u64); 2]>);

impl StatusCounts {
    pub(super) fn add(&mut self, status: u16, count: u64) {
        match self.0.iter_mut().find(|(answered, _)| *answered == status) {
            Some((_, sum)) => *sum += count,
            None => self.0.push((status, count)),
        }
    }

    /// The answers of a class, such as 4 for the statuses from 400 to 499.
    pub(crate) fn of_class(&self, class: u16) -> u64 {
        self.0.iter().filter(|(status, _)| status / 100 == class).map(|(_, count)| count).sum()
    }
}
