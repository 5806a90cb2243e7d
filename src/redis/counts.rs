//! What is counted of the calls to one server, for metrics.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::observe::metrics::SharedHistogram;
use crate::store::StoreError;

/// The calls of all workers to one server.
#[derive(Default)]
pub(in crate::store) struct CallCounts {
    pub(in crate::store) seconds: SharedHistogram,
    errors: Mutex<ErrorCounts>,
}

#[derive(Default)]
struct ErrorCounts {
    by_kind: BTreeMap<&'static str, u64>,
    /// The last error for which Redis did not decide, until a log line names it.
    last: Option<StoreError>,
}

impl CallCounts {
    /// Counts a call that failed, or an attempt to connect.
    pub(in crate::store) fn failed(&self, error: &StoreError) {
        let Some(kind) = error.kind() else { return };
        let mut errors = self.errors.lock();
        *errors.by_kind.entry(kind).or_default() += 1;
        // These are told of their limit, and say nothing about other requests.
        if !matches!(error, StoreError::WrongType | StoreError::Unset | StoreError::Older) {
            errors.last = Some(error.clone());
        }
    }

    /// The last error since this was called before.
    pub(super) fn take_last(&self) -> Option<StoreError> {
        self.errors.lock().last.take()
    }

    /// Failed calls since the start, by the error's kind.
    pub(in crate::store) fn errors(&self) -> Vec<(&'static str, u64)> {
        self.errors.lock().by_kind.iter().map(|(kind, count)| (*kind, *count)).collect()
    }
}
