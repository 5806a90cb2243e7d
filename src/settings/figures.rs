//! The figures of a limit: how much passes.

use std::fmt;
use std::sync::Arc;

use crate::limit::algorithm::fixed_window::windows::Schedule;
use crate::limit::algorithm::{Algorithm, fixed_window};
use crate::limit::name::Name;
use crate::limit::rate::{Burst, Rate};
use crate::limit::time::Now;

/// The figures of a limit: how much passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Figures {
    /// As much as the algorithm allows.
    Limited(Algorithm),
    /// A quota for each calendar window.
    Calendar(CalendarQuota),
    /// Everything passes, and the store is not asked.
    Unlimited,
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
        }
    }
}

impl Figures {
    /// The algorithm for this time. For a calendar it knows only the windows around `now`. `None` if
    /// everything passes. Calendars use the wall clock.
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
        }
    }

    /// The most that a request can take. `None` if there is no bound, if the bound is not known, and if
    /// nothing passes in any case.
    pub(crate) fn capacity(&self) -> Option<u64> {
        match self {
            Self::Unlimited | Self::Limited(Algorithm::Closed) => None,
            // Without a rate in the file, the figures are known only to Redis.
            Self::Limited(Algorithm::Redisson(params)) => params.rate().map(Rate::count),
            Self::Limited(algorithm) => Some(algorithm.capacity()),
            Self::Calendar(quota) => Some(quota.count.get()),
        }
    }

    /// The length of its windows. `None` if it counts in no windows.
    pub(crate) fn window(&self) -> Option<Name> {
        let length = match self {
            Self::Limited(Algorithm::FixedWindow(params)) => params.windows.length().to_string(),
            Self::Limited(Algorithm::SlidingWindow(params)) => params.interval.to_string(),
            Self::Limited(Algorithm::SlidingLog(params)) => params.interval.to_string(),
            Self::Calendar(quota) => quota.schedule.unit().to_string(),
            Self::Limited(_) | Self::Unlimited => return None,
        };
        Name::new(&length)
    }

    /// The rate as `proxy.toml` spells it. `None` if there is none: for slots, and if Redis has the
    /// figures of a Redisson limiter.
    pub(crate) fn rate(&self) -> Option<String> {
        match self {
            Self::Limited(algorithm) => algorithm.rate(),
            Self::Calendar(CalendarQuota { count, schedule }) => {
                Some(format!("{count}/{}", schedule.unit()))
            }
            Self::Unlimited => Some("unlimited".to_owned()),
        }
    }
}
