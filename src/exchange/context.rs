//! What one worker needs to serve requests, whatever service answers them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::client::ClientConnection;
use super::record::RequestRecord;
use super::{Active, Exchange, WorkerTasks};
use crate::clock::Clock;
use crate::observe::metrics::WorkerMetrics;
use crate::throttle::Throttle;
use crate::upstream::times::ClientTimes;

/// What the services of one worker share.
pub(crate) struct WorkerContext {
    active: RefCell<Rc<Active>>,
    times: Rc<Cell<ClientTimes>>,
    /// The limits and their store.
    pub(crate) throttle: Throttle,
    pub(crate) clock: Clock,
    /// Clients' connections, and requests whose clients have left.
    pub(crate) tasks: Rc<WorkerTasks>,
}

impl WorkerContext {
    /// A worker with its first settings.
    pub(crate) fn new(
        active: Rc<Active>,
        throttle: Throttle,
        clock: Clock,
        tasks: WorkerTasks,
    ) -> Self {
        let times = Rc::new(Cell::new(ClientTimes::of(&active.settings.server)));
        Self { active: RefCell::new(active), times, throttle, clock, tasks: Rc::new(tasks) }
    }

    /// The settings in force.
    pub(crate) fn active(&self) -> Rc<Active> {
        self.active.borrow().clone()
    }

    /// The time-outs in force for clients.
    pub(crate) fn times(&self) -> &Rc<Cell<ClientTimes>> {
        &self.times
    }

    /// The most bytes of a request's head.
    pub(crate) fn max_header_size(&self) -> usize {
        self.active.borrow().settings.server.max_header_size
    }

    /// Puts other settings in force, for requests that begin from now on. Its time-outs for clients hold at once.
    pub(crate) fn activate(&self, active: Rc<Active>) {
        self.times.set(ClientTimes::of(&active.settings.server));
        self.active.replace(active);
    }

    /// All counts of this worker.
    pub(crate) fn metrics(&self) -> Arc<WorkerMetrics> {
        self.active().metrics.clone()
    }

    /// Begins the record of a request, and names the request. If another proxy forwards the request, `via` is the form
    /// of its call. Such a proxy is trusted. The record counts the request even if the client leaves now.
    pub(crate) fn begin(
        &self,
        exchange: &mut Exchange,
        client: &Rc<ClientConnection>,
        via: Option<&'static str>,
    ) -> RequestRecord {
        exchange.is_second = client.begin(exchange.began);
        RequestRecord::begin(self.active(), client, exchange, via, &self.clock)
    }
}
