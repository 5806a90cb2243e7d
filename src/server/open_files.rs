//! The limit on file descriptors, and the number of connections that this limit allows.

use crate::observe::events;
use crate::settings::Settings;

/// Descriptors for other purposes than client connections and upstream connections.
const OTHER_FILES: u64 = 256;

/// Raises the limit for the connections of these settings. Returns how many connections to accept at once: less than
/// `max_connections` if there are too few descriptors.
pub(super) fn connections(settings: &Settings) -> usize {
    let most = settings.server.max_connections;
    // Each connection has one to the client, one to the upstream, and one to a proxy that asks.
    let each = 2 + u64::from(settings.decide.listen.is_some());
    let all = u64::try_from(most).unwrap_or(u64::MAX).saturating_mul(each);
    let wanted = all.saturating_add(OTHER_FILES);
    match rlimit::increase_nofile_limit(wanted) {
        Ok(limit) if limit < wanted => {
            events::few_open_files(limit, wanted);
            let fit = (limit - OTHER_FILES.min(limit / 2)) / each;
            usize::try_from(fit).map_or(most, |fit| most.min(fit.max(1)))
        }
        Ok(_) => most,
        Err(error) => {
            events::open_files_unchanged(&error);
            most
        }
    }
}
