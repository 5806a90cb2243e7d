//! Tells a service manager what the process does (`sd_notify(3)`), if `NOTIFY_SOCKET` names one.

use sd_notify::{NotifyState, notify};

use crate::observe::events;

/// The process takes connections, or a reload is over.
pub(super) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// A reload begins.
pub(super) fn reloading() {
    // systemd compares this time with that of the reload for which it has asked.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => events::service_manager_not_told(&error),
    }
}

/// Another process is the service's main process from now on.
pub(super) fn main_process(pid: u32) {
    tell(&[NotifyState::MainPid(pid)]);
}

/// The process ends.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = notify(states) {
        events::service_manager_not_told(&error);
    }
}
