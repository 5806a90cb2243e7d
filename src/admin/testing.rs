//! A process for the tests of this module.

use std::sync::Arc;

use tokio::sync::watch;

use super::Admin;
use crate::clock::Clock;
use crate::settings::Settings;
use crate::settings::testing::settings;
use crate::upstream::health::UpstreamState;
use crate::worker::{Process, Published};

/// A process with two workers.
pub(super) fn process(settings: Settings) -> (Process, Published) {
    let process = Process::new(&settings, Clock::new(), 2, 10);
    let upstreams = settings.upstreams.iter();
    let upstreams = upstreams.map(|spec| Arc::new(UpstreamState::new(spec, None))).collect();
    (
        process,
        Published {
            settings: Arc::new(settings),
            upstreams,
            keys: Vec::new(),
            certificates: [None, None],
        },
    )
}

/// The endpoint of such a process.
pub(super) fn admin(text: &str) -> Arc<Admin> {
    let (process, published) = process(settings(text));
    // What was published stays, even though the sender is dropped.
    let (_, published) = watch::channel(Arc::new(published));
    Arc::new(Admin::new(Arc::new(process), published, Arc::default()))
}
