//! What a worker's requests share as long as one plan is in force.

use std::sync::Arc;

use super::headers::quotas::QuotaFields;
use super::rejection::Rejections;
use crate::observe::metrics::{RouteCounter, RouteCounters, WorkerMetrics};
use crate::observe::repeated::FailedExchanges;
use crate::observe::trace::SpanQueue;
use crate::plan::Plan;
use crate::upstream::Upstream;

/// The plan in force, and this worker's connections to its upstreams, in the plan's order.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) plan: Arc<Plan>,
    /// The plan's upstreams.
    pub(crate) upstreams: Vec<Arc<Upstream>>,
    /// Where this worker counts the requests of each route.
    counters: RouteCounters,
    /// All counts of this worker.
    pub(super) metrics: Arc<WorkerMetrics>,
    /// Cached answers to throttled clients. They refer to the plan's limits, so they end with the plan.
    pub(super) rejections: Rejections,
    /// Cached `ratelimit` fields of the answers to all other clients.
    pub(super) fields: QuotaFields,
    /// The process's count of failed exchanges.
    pub(super) failed: Arc<FailedExchanges>,
    /// The process's spans that wait to be sent.
    pub(super) spans: Arc<SpanQueue>,
}

impl Active {
    /// A plan with this worker's connections to its upstreams, before the plan's first request.
    pub(crate) fn new(
        plan: Arc<Plan>,
        upstreams: Vec<Arc<Upstream>>,
        failed: Arc<FailedExchanges>,
        spans: Arc<SpanQueue>,
        metrics: Arc<WorkerMetrics>,
    ) -> Self {
        let counters = RouteCounters::new(plan.routes.len());
        let (rejections, fields) = (Rejections::new(), QuotaFields::new());
        Self { plan, upstreams, counters, metrics, rejections, fields, failed, spans }
    }

    /// The counter of the route at this place in the plan, or of requests without a route.
    pub(super) fn counter(&self, route: Option<usize>) -> RouteCounter {
        route.map_or(RouteCounter::NO_ROUTE, |route| {
            self.counters.of(route, &self.plan.routes[route].name, &self.metrics)
        })
    }

    /// The upstream that an `Action::Forward` of the plan names.
    pub(super) fn upstream(&self, place: u32) -> &Arc<Upstream> {
        &self.upstreams[usize::try_from(place).unwrap_or(usize::MAX)]
    }
}
