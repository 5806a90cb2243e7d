//! How many descriptors the process may have, and so how many connections it takes.

use crate::observe::events;
use crate::plan::Plan;

/// Descriptors for all that is no client's connection nor its upstream's.
const OTHER_FILES: u64 = 256;

/// How many descriptors the process may have; `None` where that is enough or unknown.
pub(super) struct OpenFiles(Option<u64>);

impl OpenFiles {
    /// Asks for as many as so many connections need: a connection takes one here and one upstream.
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

    /// The connections to take at once: where there are too few descriptors for `max_connections`
    /// no client may hold the one with which its request, or another's, would go upstream.
    pub(super) fn connections(&self, plan: &Plan) -> usize {
        let most = plan.server.max_connections;
        let Self(Some(limit)) = self else { return most };
        let others = OTHER_FILES.min(limit / 2);
        usize::try_from((limit - others) / 2).map_or(most, |fit| most.min(fit.max(1)))
    }
}
