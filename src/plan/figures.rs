//! The figures of a limit: how much passes. After a reload has lowered them, they may come down evenly.
//!
//! Then the plan of the new file has a [`Ramp`] in place of the limit's figures. Each decision computes the figures
//! for its own time from the ramp. No timer or task is needed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::limit::algorithm::fixed_window::windows::{Schedule, Windows};
use crate::limit::algorithm::{Algorithm, fixed_window};
use crate::limit::rate::{Burst, Rate};
use crate::limit::time::{Descent, Now, Timestamp};

/// The figures of a limit: how much passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Figures {
    /// As much as the algorithm allows.
    Limited(Algorithm),
    /// A quota for each calendar window.
    Calendar(CalendarQuota),
    /// Everything passes, and the store is not asked.
    Unlimited,
    /// A ramp: figures on their way down to those of the file.
    Ramp(Arc<Ramp>),
}

/// A quota for each day, week or month.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalendarQuota {
    /// The tokens of a window.
    pub(crate) count: Burst,
    /// When windows begin.
    pub(crate) schedule: Arc<Schedule>,
}

/// For example `100000/month in Europe/Berlin`.
impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limited(algorithm) => write!(f, "{algorithm}"),
            Self::Calendar(CalendarQuota { count, schedule }) => {
                write!(f, "{count}/{} in {}", schedule.unit(), schedule.zone())
            }
            Self::Unlimited => f.write_str("unlimited"),
            Self::Ramp(ramp) => ramp.to.fmt(f),
        }
    }
}

impl Figures {
    /// The algorithm for this time. For a calendar it knows only the windows around `now`. `None` where
    /// everything passes. Calendars use the wall clock. Ramps use the steady clock.
    pub fn at(&self, now: impl Into<Now>) -> Option<Algorithm> {
        let now = now.into();
        match self {
            Self::Limited(algorithm) => Some(*algorithm),
            Self::Calendar(CalendarQuota { count, schedule }) => {
                let windows = schedule.around(now.wall);
                let params = fixed_window::Params { count: *count, windows };
                Some(Algorithm::FixedWindow(params))
            }
            Self::Unlimited => None,
            Self::Ramp(ramp) => ramp.at(now),
        }
    }

    /// The most that a request can take. `None` where there is no bound, where the bound is not known, and where nothing
    /// passes in any case.
    pub(crate) fn capacity(&self) -> Option<u64> {
        match self {
            Self::Unlimited | Self::Ramp(_) | Self::Limited(Algorithm::Closed) => None,
            // Without a rate in the file, the figures are known only to Redis.
            Self::Limited(Algorithm::Redisson(params)) => params.rate().map(Rate::count),
            Self::Limited(algorithm) => Some(algorithm.capacity()),
            Self::Calendar(quota) => Some(quota.count.get()),
        }
    }

    /// The rate as `proxy.toml` spells it. `None` where there is none: for slots, and where Redis has the
    /// figures of a Redisson limiter.
    pub(crate) fn rate(&self) -> Option<String> {
        let algorithm = match self {
            Self::Limited(algorithm) => algorithm,
            Self::Calendar(CalendarQuota { count, schedule }) => {
                return Some(format!("{count}/{}", schedule.unit()));
            }
            Self::Unlimited => return Some("unlimited".to_owned()),
            Self::Ramp(ramp) => return ramp.to.rate(),
        };
        match algorithm {
            Algorithm::TokenBucket(params) => Some(params.rate.to_string()),
            Algorithm::LeakyBucket(params) => Some(params.rate.to_string()),
            Algorithm::SlidingLog(params) => Some(format!("{}/{}", params.count, params.interval)),
            Algorithm::SlidingWindow(params) => {
                Some(format!("{}/{}", params.count, params.interval))
            }
            Algorithm::FixedWindow(params) => match params.windows {
                Windows::Rolling(interval) | Windows::Clock(interval) => {
                    Some(format!("{}/{interval}", params.count))
                }
                Windows::Calendar(_) => None,
            },
            Algorithm::Redisson(params) => params.rate().map(|rate| rate.to_string()),
            Algorithm::Concurrency(_) => None,
            Algorithm::Closed => Some("0/s".to_owned()),
        }
    }

    /// The figures as the file has them. During a ramp these are the figures at its end.
    pub(crate) fn of_file(&self) -> &Self {
        match self {
            Self::Ramp(ramp) => &ramp.to,
            figures => figures,
        }
    }

    /// The figures of this moment. They are not a ramp.
    pub(crate) fn in_force(&self, now: Now) -> Self {
        let Self::Ramp(ramp) = self else { return self.clone() };
        match (&ramp.to, ramp.at(now)) {
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

    /// The figures at the end of a ramp. `None` where these figures stay what they are for this time.
    pub(crate) fn lowered_within(&self, time: Duration, now: Now) -> Option<Algorithm> {
        let Self::Ramp(ramp) = self else { return None };
        let then = Now { steady: now.steady.plus(time), ..now };
        ramp.to.at(now).filter(|_| ramp.place(then) != ramp.place(now))
    }

    pub(super) fn is_ramping(&self, now: Now) -> bool {
        matches!(self, Self::Ramp(ramp) if !ramp.is_over(now))
    }

    /// Replaces these figures by a ramp from the `old` figures, if the `old` figures are higher. If `old` is a ramp to
    /// the same figures, the old ramp goes on. So a reload that changes other settings does not make a ramp longer.
    pub(super) fn ramp_down(&mut self, old: &Self, lasts: Duration, now: Now) {
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

    /// The figures of this moment.
    fn at(&self, now: Now) -> Option<Algorithm> {
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
