//! When windows begin and end. A [`Schedule`] has all windows of a calendar unit. An algorithm counts by [`Windows`],
//! a small value with the windows around a time.

use std::fmt;

use crate::rate::Interval;
use crate::time::Timestamp;

/// When the windows of a limit begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// At a key's first request, and again at the first request after the window's end.
    Rolling(Interval),
    /// At the multiples of the interval since 1970 UTC.
    Clock(Interval),
    /// With the days, weeks or months of a time zone.
    Calendar(Nearby),
}

/// The length of a calendar window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// From midnight, or from the first moment of a day without midnight.
    Day,
    /// From Monday.
    Week,
    /// From the first day of the month.
    Month,
}

/// The number of window starts that a decision knows.
const KNOWN: usize = 5;

/// The number of the last known window.
const LAST: i64 = 4;

/// The calendar windows around a time: the window before, the window of that time and the next ones. Windows before the
/// first known one count as long as the first one, and windows after the last known one as long as the last one. So a
/// request that has to wait for more than three months may get a time that is a few days wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nearby {
    unit: Unit,
    /// In ascending order, no two of them equal.
    starts: [Timestamp; KNOWN],
}

/// The starts of all windows of a calendar unit in a time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    unit: Unit,
    zone: String,
    /// In ascending order, no two of them equal, at least [`KNOWN`].
    starts: Box<[Timestamp]>,
}

impl Windows {
    /// Whether windows begin by the clock or the calendar, independent of requests.
    pub(in crate::algorithm) fn are_on_clock(&self) -> bool {
        match self {
            Self::Rolling(_) => false,
            Self::Clock(_) | Self::Calendar(_) => true,
        }
    }

    /// Windows of the same length that begin by the clock.
    pub(crate) fn on_the_clock(self) -> Self {
        match self {
            Self::Rolling(interval) | Self::Clock(interval) => Self::Clock(interval),
            Self::Calendar(_) => self,
        }
    }

    /// How long a window lasts, as written after the slash of a rate.
    pub fn length(&self) -> &dyn fmt::Display {
        match self {
            Self::Rolling(interval) | Self::Clock(interval) => interval,
            Self::Calendar(nearby) => &nearby.unit,
        }
    }

    /// The length of all windows. `None` for those of the calendar.
    pub fn interval(&self) -> Option<Interval> {
        match self {
            Self::Rolling(interval) | Self::Clock(interval) => Some(*interval),
            Self::Calendar(_) => None,
        }
    }

    /// The start of the window of this time. A rolling window starts at this time itself.
    pub(in crate::algorithm) fn start_of(&self, time: Timestamp) -> Timestamp {
        match self {
            Self::Rolling(_) => time,
            Self::Clock(interval) => {
                let micros = time.as_micros();
                back(time, micros % interval.as_micros())
            }
            Self::Calendar(nearby) => nearby.start(nearby.number(time)),
        }
    }

    /// The start of the window that is `windows` windows after the window that begins at `start`.
    pub(super) fn later(&self, start: Timestamp, windows: u64) -> Timestamp {
        match self {
            Self::Rolling(interval) | Self::Clock(interval) => {
                start.plus_micros(windows.saturating_mul(interval.as_micros()))
            }
            Self::Calendar(nearby) => {
                let windows = i64::try_from(windows).unwrap_or(i64::MAX);
                nearby.start(nearby.number(start).saturating_add(windows))
            }
        }
    }

    /// The end of the window of this time. A rolling window starts at this time itself.
    pub(in crate::algorithm) fn end_of(&self, time: Timestamp) -> Timestamp {
        self.later(self.start_of(time), 1)
    }

    /// The number of windows that ended from `start`, the start of a window, until `now`. `now` must not be
    /// before `start`.
    pub(in crate::algorithm) fn passed(&self, start: Timestamp, now: Timestamp) -> u64 {
        match self {
            Self::Rolling(interval) | Self::Clock(interval) => {
                now.micros_since(start) / interval.as_micros()
            }
            Self::Calendar(nearby) => nearby.number(now).abs_diff(nearby.number(start)),
        }
    }

    /// The seconds of a window, rounded up. For calendar windows this is the length of the present window.
    pub fn seconds(&self) -> u64 {
        match self {
            Self::Rolling(interval) | Self::Clock(interval) => interval.as_seconds(),
            Self::Calendar(nearby) => {
                let [_, current, next, ..] = nearby.starts;
                next.micros_since(current).div_ceil(1_000_000)
            }
        }
    }

    /// The seconds, rounded up, until the window of this time ends. For a rolling window this is its whole length,
    /// because its beginning is not known here.
    pub(crate) fn seconds_left(&self, time: Timestamp) -> u64 {
        match self {
            Self::Rolling(_) => self.seconds(),
            Self::Clock(_) | Self::Calendar(_) => {
                self.end_of(time).micros_since(time).div_ceil(1_000_000)
            }
        }
    }
}

impl Nearby {
    /// The known starts in microseconds, in ascending order.
    pub(super) fn starts(&self) -> impl Iterator<Item = u64> {
        self.starts.into_iter().map(Timestamp::as_micros)
    }

    /// The number of the window of this time. The first known window has the number 0.
    fn number(&self, time: Timestamp) -> i64 {
        let [first, second, .., before, last] = self.starts;
        let signed = |windows: u64| i64::try_from(windows).unwrap_or(i64::MAX);
        if time < first {
            return -signed(first.micros_since(time).div_ceil(second.micros_since(first)));
        }
        let known = self.starts.partition_point(|start| *start <= time) - 1;
        signed(u64::try_from(known).unwrap_or_default())
            + signed(time.micros_since(last) / last.micros_since(before))
    }

    /// The start of the window of this number.
    fn start(&self, number: i64) -> Timestamp {
        let [first, second, .., before, last] = self.starts;
        let Ok(known) = usize::try_from(number) else {
            let length = second.micros_since(first);
            return back(first, number.unsigned_abs().saturating_mul(length));
        };
        match self.starts.get(known) {
            Some(start) => *start,
            None => {
                let beyond = number.abs_diff(LAST);
                last.plus_micros(beyond.saturating_mul(last.micros_since(before)))
            }
        }
    }
}

impl Schedule {
    /// `None` if `starts` are fewer than five, or not in ascending order.
    pub fn new(unit: Unit, zone: String, starts: Vec<Timestamp>) -> Option<Self> {
        let fits = starts.len() >= KNOWN && starts.is_sorted_by(|a, b| a < b);
        fits.then(|| Self { unit, zone, starts: starts.into() })
    }

    /// The windows around `now`.
    pub fn around(&self, now: Timestamp) -> Windows {
        let begun = self.starts.partition_point(|start| *start <= now);
        let from = begun.saturating_sub(2).min(self.starts.len() - KNOWN);
        let mut starts = [Timestamp::MIN; KNOWN];
        for (known, start) in starts.iter_mut().zip(self.starts.iter().skip(from)) {
            *known = *start;
        }
        Windows::Calendar(Nearby { unit: self.unit, starts })
    }

    /// The length of each window.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// The time zone's name, as in `Europe/Berlin`.
    pub fn zone(&self) -> &str {
        &self.zone
    }
}

fn back(time: Timestamp, micros: u64) -> Timestamp {
    let earlier = time.as_micros().saturating_sub(micros);
    Timestamp::from_micros(earlier).unwrap_or(Timestamp::MIN)
}

/// As written after the slash of a rate.
impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Day => "d",
            Self::Week => "w",
            Self::Month => "month",
        })
    }
}

/// As written after a count, such as `/d on the calendar`.
impl fmt::Display for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.length();
        match self {
            Self::Rolling(_) => write!(f, "/{length} from a key's first request"),
            Self::Clock(_) => write!(f, "/{length} on the clock"),
            Self::Calendar(_) => write!(f, "/{length} on the calendar"),
        }
    }
}
