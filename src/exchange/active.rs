//! The state that a worker's requests share while the same settings are in force.

use std::rc::Rc;
use std::sync::Arc;

use crate::answer::Answers;
use crate::jwt::Tokens;
use crate::observe::error_log::ErrorLog;
use crate::observe::metrics::{RouteCounter, RouteCounters, WorkerMetrics};
use crate::observe::trace::SpanQueue;
use crate::settings::Settings;
use crate::upstream::Upstream;

/// The settings in force, and this worker's connections to its upstreams, in the settings' order.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) settings: Arc<Settings>,
    /// The settings' upstreams.
    pub(crate) upstreams: Vec<Rc<Upstream>>,
    /// What verifies the tokens of the settings' clients.
    pub(crate) tokens: Tokens,
    /// Where this worker counts the requests of each route.
    counters: RouteCounters,
    /// All counts of this worker.
    pub(crate) metrics: Arc<WorkerMetrics>,
    /// What tidegate says by itself. It refers to the settings' limits, so it ends with them.
    pub(crate) answers: Answers,
    /// Where the process counts errors.
    pub(crate) error_log: Arc<ErrorLog>,
    /// The process's spans that wait to be sent.
    pub(crate) spans: Arc<SpanQueue>,
}

impl Active {
    /// Settings with this worker's connections to its upstreams, before the settings' first request.
    pub(crate) fn new(
        settings: Arc<Settings>,
        upstreams: Vec<Rc<Upstream>>,
        tokens: Tokens,
        error_log: Arc<ErrorLog>,
        spans: Arc<SpanQueue>,
        metrics: Arc<WorkerMetrics>,
    ) -> Self {
        let counters = RouteCounters::new(settings.routes.len());
        let answers = Answers::new(settings.clone());
        Self { settings, upstreams, tokens, counters, metrics, answers, error_log, spans }
    }

    /// The counter of the route with this index in the settings, or of requests without a route.
    pub(crate) fn counter(&self, route: Option<usize>) -> RouteCounter {
        route.map_or(RouteCounter::NO_ROUTE, |route| {
            self.counters.of(route, &self.settings.routes[route].name, &self.metrics)
        })
    }

    /// The upstream that an `Action::Forward` of the settings names.
    pub(crate) fn upstream(&self, index: u32) -> &Rc<Upstream> {
        &self.upstreams[usize::try_from(index).unwrap_or(usize::MAX)]
    }
}
