//! Tells the log when a limit's figures have come down.

use std::sync::Arc;

use crate::limit::time::Now;
use crate::observe::events;
use crate::plan::{LimitSpec, Plan};

/// The limits whose figures, or those of an override, still come down.
#[derive(Default)]
pub(super) struct RunningRamps(Vec<Arc<LimitSpec>>);

impl RunningRamps {
    pub(super) fn of(plan: &Plan, now: Now) -> Self {
        Self(plan.limits.iter().filter(|spec| spec.is_ramping(now)).cloned().collect())
    }

    /// Logs the limits whose figures are those of the file now. To be called about once a second.
    pub(super) fn end(&mut self, now: Now) {
        self.0.retain(|spec| {
            let goes_on = spec.is_ramping(now);
            if !goes_on {
                let burst = spec.figures.at(now).map(|algorithm| algorithm.capacity());
                events::ramp_ended(&spec.name, spec.figures.rate().as_deref(), burst);
            }
            goes_on
        });
    }
}
