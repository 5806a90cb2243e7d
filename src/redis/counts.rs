//! Counts the calls to one server, for metrics.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::error::CallError;
use crate::observe::metrics::Histogram;

/// The calls of all workers to one server.
#[derive(Default)]
pub(crate) struct CallCounts {
    pub(crate) seconds: Mutex<Histogram>,
    errors: Mutex<BTreeMap<&'static str, u64>>,
    /// The last error that says something about the server, until a log line names it.
    last: Mutex<Option<CallError>>,
}

impl CallCounts {
    /// Counts a call that failed, or an attempt to connect.
    pub(crate) fn failed(&self, error: &CallError) {
        let Some(kind) = error.kind() else { return };
        *self.errors.lock().entry(kind).or_default() += 1;
        // The caller logs errors of single keys. They do not concern other calls.
        if !matches!(error, CallError::UnusableKey(_)) {
            *self.last.lock() = Some(error.clone());
        }
    }

    /// The last error since the last call of this function.
    pub(super) fn take_last(&self) -> Option<CallError> {
        self.last.lock().take()
    }

    /// Failed calls since the start, by the error's kind.
    pub(crate) fn errors(&self) -> Vec<(&'static str, u64)> {
        self.errors.lock().iter().map(|(kind, count)| (*kind, *count)).collect()
    }
}
