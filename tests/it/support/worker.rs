//! What a worker in this process needs.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tidegate::clock::Clock;
use tidegate::config::ConfigRecord;
use tidegate::downstream::accept::ConnectionSlots;
use tidegate::observe::metrics::Metrics;
use tidegate::observe::throttled::Throttled;
use tidegate::plan::Plan;
use tidegate::store::Shared;
use tidegate::worker::Process;

/// A process with one worker, which goes by this clock.
pub(crate) fn process(plan: &Plan, clock: Clock) -> Process {
    Process {
        metrics: Metrics::new(1),
        throttled: Arc::new(Throttled::new(plan.log.throttle, plan.log.summary_interval)),
        failed: Arc::default(),
        malformed: Arc::default(),
        slow: Arc::default(),
        spans: Arc::default(),
        adopted: 0.into(),
        is_config_valid: true.into(),
        config: ConfigRecord::default(),
        draining: AtomicBool::new(false),
        store: Shared::by(clock.wall().clone(), &plan.store),
        waiting: Arc::default(),
        slots: Arc::new(ConnectionSlots::new(1_000)),
        keys: plan.log.keys,
        clock,
    }
}
