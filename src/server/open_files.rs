//! The limit on file descriptors, and the number of connections that this limit allows.

use crate::observe::events;
use crate::plan::Plan;

/// Descriptors for other purposes than client connections and upstream connections.
const OTHER_FILES: u64 = 256;

/// How many descriptors the process may have. `None` if the number is enough, or unknown.
pub(super) struct OpenFiles(Option<u64>);

impl OpenFiles {
    /// Raises the limit for this number of connections. Each connection needs two descriptors: one to the
    /// client, one to the upstream.
    pub(super) fn raise(max_connections: usize) -> Self {
        let wanted =
            u64::try_from(max_connections).unwrap_or(u64::MAX).saturating_mul(2) + OTHER_FILES;
        match rlimit::increase_nofile_limit(wanted) {
            Ok(limit) if limit >= wanted => Self(None),
            Ok(limit) => {
                events::few_open_files(limit, wanted);
                Self(Some(limit))
            }
            Err(error) => {
                events::open_files_unchanged(&error);
                Self(None)
            }
        }
    }

    /// How many connections to accept at once. This is less than `max_connections` if there are too few
    /// descriptors: each client connection needs another descriptor, for the upstream.
    pub(super) fn connections(&self, plan: &Plan) -> usize {
        let most = plan.server.max_connections;
        let Self(Some(limit)) = self else { return most };
        let others = OTHER_FILES.min(limit / 2);
        usize::try_from((limit - others) / 2).map_or(most, |fit| most.min(fit.max(1)))
    }
}
