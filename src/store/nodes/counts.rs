//! What is counted of the calls to one server, for metrics.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::observe::metrics::SharedHistogram;
use crate::store::StoreError;

/// The calls of all workers to one server.
#[derive(Default)]
pub(in crate::store) struct CallCounts {
    pub(in crate::store) seconds: SharedHistogram,
    /// By the error's kind.
    errors: Mutex<BTreeMap<&'static str, u64>>,
}

impl CallCounts {
    pub(in crate::store) fn failed(&self, error: &StoreError) {
        if let Some(kind) = error.kind() {
            *self.errors.lock().entry(kind).or_default() += 1;
        }
    }

    /// Failed calls since the start, by the error's kind.
    pub(in crate::store) fn errors(&self) -> Vec<(&'static str, u64)> {
        self.errors.lock().iter().map(|(kind, count)| (*kind, *count)).collect()
    }
}
