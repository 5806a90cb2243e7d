//! The limit on file descriptors, and the number of connections that this limit allows.

use crate::observe::events;
use crate::plan::Plan;

/// Descriptors for other purposes than client connections and upstream connections.
const OTHER_FILES: u64 = 256;

/// How many descriptors the process may have. `None` if the number is enough, or unknown.
pub(super) struct OpenFiles(Option<u64>);

impl OpenFiles {
    /// Raises the limit for the connections of this plan.
    pub(super) fn raise(plan: &Plan) -> Self {
        let most = u64::try_from(plan.server.max_connections).unwrap_or(u64::MAX);
        let wanted = most.saturating_mul(descriptors(plan)).saturating_add(OTHER_FILES);
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

    /// How many connections to accept at once. This is less than `max_connections` if there are too few descriptors.
    pub(super) fn connections(&self, plan: &Plan) -> usize {
        let most = plan.server.max_connections;
        let Self(Some(limit)) = self else { return most };
        let others = OTHER_FILES.min(limit / 2);
        let fit = (limit - others) / descriptors(plan);
        usize::try_from(fit).map_or(most, |fit| most.min(fit.max(1)))
    }
}

/// The descriptors for each of `max_connections`: one to the client, one to the upstream, and one to a proxy that asks.
fn descriptors(plan: &Plan) -> u64 {
    2 + u64::from(plan.decide.listen.is_some())
}
