//! A process for the tests of this module.

use std::sync::Arc;

use tokio::sync::watch;

use super::Admin;
use crate::clock::Clock;
use crate::config::{ConfigRecord, Overrides, parse};
use crate::downstream::accept::ConnectionSlots;
use crate::observe::metrics::Metrics;
use crate::observe::throttled::Throttled;
use crate::plan::Plan;
use crate::store;
use crate::upstream::health::UpstreamState;
use crate::worker::{Process, Published};

pub(super) fn plan(text: &str) -> Plan {
    parse("proxy.toml", text, &|_| None, &Overrides::default()).unwrap().plan
}

/// A process with two workers.
pub(super) fn process(plan: Plan) -> (Process, Published) {
    let process = Process {
        clock: Clock::new(),
        metrics: Metrics::new(2),
        throttled: Arc::new(Throttled::new(plan.log.throttle, plan.log.summary_interval)),
        failed: Arc::default(),
        malformed: Arc::default(),
        slow: Arc::default(),
        spans: Arc::default(),
        is_config_valid: true.into(),
        adopted: 0.into(),
        config: ConfigRecord::default(),
        draining: false.into(),
        store: store::Shared::new(&plan.store),
        waiting: Arc::default(),
        slots: Arc::new(ConnectionSlots::new(10)),
        keys: plan.log.keys,
    };
    let upstreams = plan.upstreams.iter();
    let upstreams = upstreams.map(|spec| Arc::new(UpstreamState::new(spec, None))).collect();
    (process, Published { plan: Arc::new(plan), upstreams })
}

/// The endpoint of such a process.
pub(super) fn admin(text: &str) -> Arc<Admin> {
    let (process, published) = process(plan(text));
    // What is published stays, also where nobody can publish more.
    let (_, plan) = watch::channel(Arc::new(published));
    Arc::new(Admin::new(Arc::new(process), plan, Arc::default()))
}
