//! Begins the ramps of the limits whose figures a reload lowers.

use std::collections::HashMap;
use std::sync::Arc;

use super::Plan;
use super::figures::Figures;
use super::limit::LimitSpec;
use crate::limit::time::Now;

impl LimitSpec {
    /// Whether a reload from `old` keeps the limit's buckets, if the algorithm stays too.
    pub(crate) fn keeps_buckets_of(&self, old: &Self) -> bool {
        self.key.sources == old.key.sources && self.scope == old.scope
    }
}

impl Plan {
    /// Begins the ramps: for each limit with a `ramp` whose figures are lower than those in force under the `old`
    /// plan.
    pub(crate) fn ramp_down(&mut self, old: &Self, now: Now) {
        let old: HashMap<_, _> = old.limits.iter().map(|spec| (spec.name.as_str(), spec)).collect();
        for spec in self.limits.iter_mut().filter(|spec| !spec.ramp.is_zero()) {
            let before = old.get(spec.name.as_str());
            let Some(before) = before.filter(|before| spec.keeps_buckets_of(before)) else {
                continue;
            };
            let spec = Arc::make_mut(spec);
            let lasts = spec.ramp;
            spec.figures.ramp_down(&before.figures, lasts, now);
            let down = |old: &Figures, new: &mut Figures| new.ramp_down(old, lasts, now);
            spec.overrides.for_same_keys(&before.overrides, down);
        }
    }
}

#[cfg(test)]
mod tests;
