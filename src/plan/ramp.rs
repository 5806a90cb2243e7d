//! Figures that come down evenly after a reload has lowered them.
//!
//! The plan of the new file has a [`Ramp`] in place of the limit's figures. Each decision computes the figures for
//! its own time from the ramp. No timer or task is needed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::{CalendarQuota, Figures, LimitSpec, Plan};
use crate::limit::algorithm::Algorithm;
use crate::limit::time::{Descent, Now, Timestamp};

/// The most steps of a ramp. At each step a worker forgets what it knows of the limit's buckets in Redis: keys that are
/// refused, and tokens that it took in advance.
const STEPS: u128 = 60;

/// The shortest step, unless the whole ramp is shorter.
const STEP: Duration = Duration::from_secs(1);

/// The ramp from higher figures down to the figures of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ramp {
    /// The figures in force at the beginning.
    start: Algorithm,
    /// The figures of the file, which are in force at the end. Their algorithm is that of `start`.
    to: Figures,
    /// By the steady clock of this process.
    begins: Timestamp,
    lasts: Duration,
}

impl Ramp {
    /// `None` where no figure is lowered, and where the new figures apply at once.
    fn between(old: &Figures, new: &Figures, lasts: Duration, now: Now) -> Option<Self> {
        let start = old.at(now)?.begin_descent(new.at(now)?)?;
        (!lasts.is_zero()).then(|| Self { start, to: new.clone(), begins: now.steady, lasts })
    }

    /// The figures of the file.
    pub(super) fn end(&self) -> &Figures {
        &self.to
    }

    /// The figures of this moment.
    pub(super) fn at(&self, now: Now) -> Option<Algorithm> {
        let to = self.to.at(now)?;
        Some(self.start.descend(to, self.place(now)))
    }

    fn is_over(&self, now: Now) -> bool {
        Duration::from_micros(now.steady.micros_since(self.begins)) >= self.lasts
    }

    fn place(&self, now: Now) -> Descent {
        let lasts = self.lasts.as_micros().max(1);
        let steps = (lasts / STEP.as_micros()).clamp(1, STEPS);
        let done = u128::from(now.steady.micros_since(self.begins)) * steps / lasts;
        let [left, steps] =
            [steps.saturating_sub(done), steps].map(|it| u32::try_from(it).unwrap_or(1));
        Descent::of(left, steps)
    }
}

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

impl Figures {
    /// The figures as the file has them. During a ramp these are the figures at its end.
    pub fn of_file(&self) -> &Self {
        match self {
            Self::Ramp(ramp) => ramp.end(),
            figures => figures,
        }
    }

    /// The figures of this moment. They are not a ramp.
    pub fn in_force(&self, now: Now) -> Self {
        let Self::Ramp(ramp) = self else { return self.clone() };
        match (ramp.end(), ramp.at(now)) {
            (Self::Calendar(quota), Some(Algorithm::FixedWindow(params))) => {
                Self::Calendar(CalendarQuota { count: params.count, ..quota.clone() })
            }
            (_, Some(algorithm)) => Self::Limited(algorithm),
            (end, None) => end.clone(),
        }
    }

    /// The figures at the beginning of a ramp from the `old` figures down to these. `None` where these figures apply at
    /// once.
    pub(crate) fn begin(&self, old: &Self) -> Option<Self> {
        // Any time will do: the calendar is the same for both.
        let now = Timestamp::MIN;
        let start = old.at(now)?.begin_descent(self.at(now)?)?;
        Some(Self::Limited(start))
    }

    fn is_ramping(&self, now: Now) -> bool {
        matches!(self, Self::Ramp(ramp) if !ramp.is_over(now))
    }

    /// Replaces these figures by a ramp from the `old` figures, if the `old` figures are higher. If `old` is a ramp to
    /// the same figures, the old ramp goes on. So a reload that changes other settings does not make a ramp longer.
    fn ramp_down(&mut self, old: &Self, lasts: Duration, now: Now) {
        match old {
            Self::Ramp(ramp) if ramp.to == *self && ramp.lasts == lasts && old.is_ramping(now) => {
                *self = old.clone();
            }
            _ => {
                if let Some(ramp) = Ramp::between(old, self, lasts, now) {
                    *self = Self::Ramp(Arc::new(ramp));
                }
            }
        }
    }
}

impl LimitSpec {
    /// Whether a reload from `old` keeps the limit's buckets, if the algorithm stays too.
    pub(crate) fn keeps_buckets_of(&self, old: &Self) -> bool {
        self.key.sources == old.key.sources && self.scope == old.scope
    }

    /// Whether any of the limit's figures, or of its overrides, still come down.
    pub(crate) fn is_ramping(&self, now: Now) -> bool {
        self.figures.is_ramping(now) || self.overrides.figures().any(|it| it.is_ramping(now))
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
