//! Finds the limits whose figures a reload lowers, and begins the ramps of those that have one.

use std::collections::HashMap;
use std::sync::Arc;

use super::Plan;
use super::figures::Figures;
use super::limit::LimitSpec;
use crate::limit::algorithm::Algorithm;
use crate::limit::time::Now;

/// A limit whose figures a reload has lowered.
#[derive(Clone, Debug)]
pub(crate) struct LoweredLimit {
    /// The limit, as the new plan has it.
    pub(crate) spec: Arc<LimitSpec>,
    /// The figures in force before.
    pub(crate) before: Algorithm,
    /// The figures of the file.
    pub(crate) after: Algorithm,
}

impl LimitSpec {
    /// Whether a reload from `old` keeps the limit's buckets, if the algorithm stays too.
    pub(crate) fn keeps_buckets_of(&self, old: &Self) -> bool {
        self.key.sources == old.key.sources && self.scope == old.scope
    }
}

impl Plan {
    /// The limits whose figures this plan lowers, compared with those in force under the `old` plan, and whose buckets
    /// stay. A limit that was `unlimited` is not among them, because it has no buckets.
    pub(crate) fn lowered_from(&self, old: &Self, now: Now) -> Vec<LoweredLimit> {
        let old: HashMap<_, _> = old.limits.iter().map(|spec| (spec.name.as_str(), spec)).collect();
        let lowered = |new: &Arc<LimitSpec>| {
            let old = old.get(new.name.as_str()).filter(|old| new.keeps_buckets_of(old))?;
            // These figures come down already. This reload does not lower them.
            if new.figures.of_file() == old.figures.of_file() && new.ramp == old.ramp {
                return None;
            }
            let (before, after) = (old.figures.at(now)?, new.figures.of_file().at(now)?);
            let is_lower = match after {
                Algorithm::Closed => before != Algorithm::Closed,
                after => before.begin_descent(after).is_some(),
            };
            is_lower.then(|| LoweredLimit { spec: Arc::clone(new), before, after })
        };
        self.limits.iter().filter_map(lowered).collect()
    }

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
