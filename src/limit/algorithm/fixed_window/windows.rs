//! When windows begin and end.

use std::fmt;

use crate::limit::rate::Interval;
use crate::limit::time::Timestamp;

/// When the windows of a limit begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// At a key's first request, and again at the first one after the window's end.
    Rolling(Interval),
    /// At the multiples of the interval since 1970 UTC.
    Clock(Interval),
    /// With the days, weeks or months of a time zone.
    Calendar(Nearby),
}

/// What a window of the calendar is. A week begins on Monday.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// From midnight, or from the first moment of the day where there is none.
    Day,
    /// From Monday.
    Week,
    /// From the first.
    Month,
}

/// How many windows' begins are known to a decision.
const KNOWN: usize = 5;

/// The number of the last of them.
const LAST: i64 = 4;

/// The windows of the calendar around a time: the one before, the one of that time and those that
/// follow. Further windows are taken to be as long as the outermost known ones: a request that
/// has to wait for more than three months is told a time that is a few days off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nearby {
    unit: Unit,
    /// In ascending order, no two the same.
    starts: [Timestamp; KNOWN],
}

/// When all windows of a unit begin in a time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    unit: Unit,
    zone: String,
    /// In ascending order, no two the same, at least [`KNOWN`].
    starts: Box<[Timestamp]>,
}

impl Windows {
    /// Whether they begin with the clock, whatever comes when.
    pub(in crate::limit::algorithm) fn are_on_clock(&self) -> bool {
        match self {
            Self::Rolling(_) => false,
            Self::Clock(_) | Self::Calendar(_) => true,
        }
    }

    /// When the window of this time began. A rolling one begins with it.
    pub(super) fn start_of(&self, time: Timestamp) -> Timestamp {
        match self {
            Self::Rolling(_) => time,
            Self::Clock(interval) => {
                let micros = time.as_micros();
                back(time, micros % interval.as_micros())
            }
            Self::Calendar(nearby) => nearby.start(nearby.place(time)),
        }
    }

    /// When the window begins that is `windows` after the one that begins at `start`.
    pub(super) fn later(&self, start: Timestamp, windows: u64) -> Timestamp {
        match self {
            Self::Rolling(interval) | Self::Clock(interval) => {
                start.plus_micros(windows.saturating_mul(interval.as_micros()))
            }
            Self::Calendar(nearby) => {
                let windows = i64::try_from(windows).unwrap_or(i64::MAX);
                nearby.start(nearby.place(start).saturating_add(windows))
            }
        }
    }

    /// How many windows ended from the one that begins at `start` until `now`, which is no earlier.
    pub(super) fn passed(&self, start: Timestamp, now: Timestamp) -> u64 {
        match self {
            Self::Rolling(interval) | Self::Clock(interval) => {
                now.micros_since(start) / interval.as_micros()
            }
            Self::Calendar(nearby) => nearby.place(now).abs_diff(nearby.place(start)),
        }
    }

    /// Whole seconds of a window, rounded up; on the calendar of the one around which the others are.
    pub fn seconds(&self) -> u64 {
        match self {
            Self::Rolling(interval) | Self::Clock(interval) => interval.as_seconds(),
            Self::Calendar(nearby) => {
                let [_, current, next, ..] = nearby.starts;
                next.micros_since(current).div_ceil(1_000_000)
            }
        }
    }
}

impl Nearby {
    /// The known begins in microseconds, in ascending order.
    pub(super) fn starts(&self) -> impl Iterator<Item = u64> {
        self.starts.into_iter().map(Timestamp::as_micros)
    }

    /// The number of the window of this time. The first known one is 0.
    fn place(&self, time: Timestamp) -> i64 {
        let [first, second, .., before, last] = self.starts;
        let signed = |windows: u64| i64::try_from(windows).unwrap_or(i64::MAX);
        if time < first {
            return -signed(first.micros_since(time).div_ceil(second.micros_since(first)));
        }
        let known = self.starts.partition_point(|start| *start <= time) - 1;
        signed(u64::try_from(known).unwrap_or_default())
            + signed(time.micros_since(last) / last.micros_since(before))
    }

    /// When the window of this number begins.
    fn start(&self, place: i64) -> Timestamp {
        let [first, second, .., before, last] = self.starts;
        let Ok(known) = usize::try_from(place) else {
            let length = second.micros_since(first);
            return back(first, place.unsigned_abs().saturating_mul(length));
        };
        match self.starts.get(known) {
            Some(start) => *start,
            None => {
                let beyond = place.abs_diff(LAST);
                last.plus_micros(beyond.saturating_mul(last.micros_since(before)))
            }
        }
    }
}

impl Schedule {
    /// `None` where `starts` are fewer than five, or not in ascending order.
    pub fn new(unit: Unit, zone: String, starts: Vec<Timestamp>) -> Option<Self> {
        let fits = starts.len() >= KNOWN && starts.is_sorted_by(|a, b| a < b);
        fits.then(|| Self { unit, zone, starts: starts.into() })
    }

    /// The windows around a time.
    pub fn around(&self, now: Timestamp) -> Windows {
        let begun = self.starts.partition_point(|start| *start <= now);
        let from = begun.saturating_sub(2).min(self.starts.len() - KNOWN);
        let mut starts = [Timestamp::MIN; KNOWN];
        for (known, start) in starts.iter_mut().zip(self.starts.iter().skip(from)) {
            *known = *start;
        }
        Windows::Calendar(Nearby { unit: self.unit, starts })
    }

    /// What a window is.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// The time zone's name.
    pub fn zone(&self) -> &str {
        &self.zone
    }
}

fn back(time: Timestamp, micros: u64) -> Timestamp {
    let earlier = time.as_micros().saturating_sub(micros);
    Timestamp::from_micros(earlier).unwrap_or(Timestamp::MIN)
}

/// As behind the stroke of a rate.
impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Day => "d",
            Self::Week => "w",
            Self::Month => "month",
        })
    }
}

/// As behind a count.
impl fmt::Display for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rolling(interval) => write!(f, "/{interval} from a key's first request"),
            Self::Clock(interval) => write!(f, "/{interval} on the clock"),
            Self::Calendar(nearby) => write!(f, "/{} on the calendar", nearby.unit),
        }
    }
}
