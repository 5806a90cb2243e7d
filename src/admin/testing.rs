//! A process for the tests of this module.

use std::sync::Arc;

use tokio::sync::watch;

use super::Admin;
use crate::clock::Clock;
use crate::plan::Plan;
use crate::plan::testing::plan;
use crate::upstream::health::UpstreamState;
use crate::worker::{Process, Published};

/// A process with two workers.
pub(super) fn process(plan: Plan) -> (Process, Published) {
    let process = Process::new(&plan, Clock::new(), 2, 10);
    let upstreams = plan.upstreams.iter();
    let upstreams = upstreams.map(|spec| Arc::new(UpstreamState::new(spec, None))).collect();
    (
        process,
        Published { plan: Arc::new(plan), upstreams, keys: Vec::new(), certificates: [None, None] },
    )
}

/// The endpoint of such a process.
pub(super) fn admin(text: &str) -> Arc<Admin> {
    let (process, published) = process(plan(text));
    // What was published stays, even though the sender is dropped.
    let (_, plan) = watch::channel(Arc::new(published));
    Arc::new(Admin::new(Arc::new(process), plan, Arc::default()))
}
