//! Makes figures from what an operator writes, such as `1000/s`. The figures depend on the way in which the limit
//! counts. An override that is set while the process runs is read here too, by the rules of the file.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::calendar::Zone;
use super::figures::{CalendarQuota, Figures};
use crate::limit::algorithm::fixed_window::windows::{Unit, Windows};
use crate::limit::algorithm::sliding_log::MOST;
use crate::limit::algorithm::{
    Algorithm, concurrency, fixed_window, leaky_bucket, sliding_log, sliding_window, token_bucket,
};
use crate::limit::rate::{Burst, Interval, MAX_TOKENS, Rate, RateError, count_and_interval};

/// Stands behind a number of slots.
const AT_ONCE: &str = " at once";

/// How a limit counts, without its figures. The limit's overrides count in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CountingKind {
    /// `token-bucket`.
    TokenBucket,
    /// `leaky-bucket`.
    LeakyBucket,
    /// `fixed-window`.
    FixedWindow(WindowStart),
    /// `sliding-window`.
    SlidingWindow,
    /// `sliding-log`.
    SlidingLog,
    /// `concurrency`, with its `lease`.
    Concurrency(Duration),
}

/// When fixed windows begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WindowStart {
    /// At a key's first request.
    FirstRequest,
    /// With the clock. Windows of a day or more begin with the calendar of this zone.
    Clock(Zone),
}

/// The length of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowLength {
    /// The same for each window.
    Interval(Interval),
    /// A month of the calendar.
    Month,
}

/// The figures that an operator wants, as written in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WantedFigures {
    /// The rate, as in `1000/s`, `unlimited` or `0/s`. Of a limit with slots their number, as in `20 at once`.
    pub(crate) rate: String,
    /// A token bucket's size; `None` is the rate's count.
    pub(crate) burst: Option<u64>,
    /// A leaky bucket's queue; `None` is the rate's count.
    pub(crate) queue: Option<u64>,
}

/// Why the operator's text makes no figures for a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FiguresError {
    /// The text is no rate.
    #[error("`{0}` is no rate: {1}")]
    Rate(String, RateError),
    /// The limit is no token bucket.
    #[error("only a limit with `algorithm = \"token-bucket\"` has a burst")]
    NoBurst,
    /// The limit has no slots.
    #[error(
        "only a limit with `algorithm = \"concurrency\"` has slots, and takes `limit`: expected a rate, as in \"100/s\""
    )]
    NoSlots,
    /// The limit has slots.
    #[error(
        "`{0}` is no number of slots: the limit has no rate, and takes `limit`, a whole number from 1 to {MAX_TOKENS}"
    )]
    Slots(String),
    /// The limit is no leaky bucket.
    #[error("only a limit with `algorithm = \"leaky-bucket\"` has a queue")]
    NoQueue,
    /// The bucket would hold too little or too much.
    #[error(
        "a bucket of {0} tokens cannot be: it holds 1 to {MAX_TOKENS}. Where nothing is to pass, give the \
         rate \"0/s\""
    )]
    Size(u64),
    /// The log would have too many entries.
    #[error("a sliding log keeps an entry for each permit: expected a count of at most {MOST}")]
    Log,
    /// A month, if windows do not begin with the clock.
    #[error("only a fixed window on the clock can be a month long")]
    MonthOffClock,
    /// A window of the clock that neither fits into a day nor is a unit of the calendar.
    #[error("expected `d`, `w`, `month` or less than a day: nothing else stands on the clock")]
    OffCalendar,
}

impl CountingKind {
    /// The figures for what an operator wrote.
    ///
    /// # Errors
    /// If this way to count cannot use what was written.
    pub(crate) fn figures(&self, wanted: &WantedFigures) -> Result<Figures, FiguresError> {
        if wanted.burst.is_some() && *self != Self::TokenBucket {
            return Err(FiguresError::NoBurst);
        }
        if wanted.queue.is_some() && *self != Self::LeakyBucket {
            return Err(FiguresError::NoQueue);
        }
        let has_slots = matches!(self, Self::Concurrency(_));
        if !has_slots && wanted.rate.ends_with(AT_ONCE) {
            return Err(FiguresError::NoSlots);
        }
        if !has_slots && wanted.rate == "unlimited" {
            return Ok(Figures::Unlimited);
        }
        match self.limited(wanted) {
            Err(FiguresError::Rate(_, RateError::ZeroCount)) => {
                Ok(Figures::Limited(Algorithm::Closed))
            }
            figures => figures,
        }
    }

    fn limited(&self, wanted: &WantedFigures) -> Result<Figures, FiguresError> {
        let text = &wanted.rate;
        let wrong = |error| FiguresError::Rate(text.clone(), error);
        let rate = || text.parse::<Rate>().map_err(wrong);
        let algorithm = match self {
            Self::TokenBucket => {
                let rate = rate()?;
                let burst = size(wanted.burst.unwrap_or(rate.count()))?;
                Algorithm::TokenBucket(token_bucket::Params { rate, burst })
            }
            Self::LeakyBucket => {
                let rate = rate()?;
                let queue = wanted.queue.unwrap_or(rate.count());
                let params = leaky_bucket::Params::new(rate, queue);
                let too_large = || FiguresError::Size(queue.saturating_add(1));
                Algorithm::LeakyBucket(params.ok_or_else(too_large)?)
            }
            Self::FixedWindow(start) => {
                let (count, length) = window_rate(text).map_err(wrong)?;
                return start.figures(count, length);
            }
            Self::SlidingWindow => {
                let (count, interval) = count_and_interval(text).map_err(wrong)?;
                Algorithm::SlidingWindow(sliding_window::Params::new(size(count)?, interval))
            }
            Self::SlidingLog => {
                let params = sliding_log::Params::new(rate()?).ok_or(FiguresError::Log)?;
                Algorithm::SlidingLog(params)
            }
            Self::Concurrency(lease) => {
                let slots = text.strip_suffix(AT_ONCE).and_then(|it| Burst::new(it.parse().ok()?));
                let slots = slots.ok_or_else(|| FiguresError::Slots(text.clone()))?;
                Algorithm::Concurrency(concurrency::Params::new(slots, *lease))
            }
        };
        Ok(Figures::Limited(algorithm))
    }
}

impl WindowStart {
    /// The figures of windows of this length.
    fn figures(&self, count: u64, length: WindowLength) -> Result<Figures, FiguresError> {
        let count = || size(count);
        let windows = match (self, length) {
            (Self::FirstRequest, WindowLength::Interval(interval)) => Windows::Rolling(interval),
            (Self::FirstRequest, WindowLength::Month) => return Err(FiguresError::MonthOffClock),
            (Self::Clock(_), WindowLength::Interval(interval)) if interval < Interval::DAY => {
                Windows::Clock(interval)
            }
            (Self::Clock(zone), length) => {
                let unit = match length {
                    WindowLength::Interval(Interval::DAY) => Unit::Day,
                    WindowLength::Interval(Interval::WEEK) => Unit::Week,
                    WindowLength::Month => Unit::Month,
                    WindowLength::Interval(_) => return Err(FiguresError::OffCalendar),
                };
                let schedule: Arc<_> = zone.schedule(unit).ok_or(FiguresError::OffCalendar)?;
                return Ok(Figures::Calendar(CalendarQuota { count: count()?, schedule }));
            }
        };
        let params = fixed_window::Params { count: count()?, windows };
        Ok(Figures::Limited(Algorithm::FixedWindow(params)))
    }
}

fn size(tokens: u64) -> Result<Burst, FiguresError> {
    Burst::new(tokens).ok_or(FiguresError::Size(tokens))
}

/// A rate for an interval, or for a month as in `100000/month`.
pub(crate) fn window_rate(text: &str) -> Result<(u64, WindowLength), RateError> {
    // To read the count, the month is replaced by a second.
    match text.strip_suffix("month").filter(|count| count.ends_with('/')) {
        Some(count) => Ok((count_and_interval(&format!("{count}s"))?.0, WindowLength::Month)),
        None => {
            let (count, interval) = count_and_interval(text)?;
            Ok((count, WindowLength::Interval(interval)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_make_the_figures_that_the_file_would() {
        let berlin =
            CountingKind::FixedWindow(WindowStart::Clock(Zone::find("Europe/Berlin").unwrap()));
        let rolling = CountingKind::FixedWindow(WindowStart::FirstRequest);
        let (bucket, leaky) = (CountingKind::TokenBucket, CountingKind::LeakyBucket);
        let (sliding, log) = (CountingKind::SlidingWindow, CountingKind::SlidingLog);
        let slots = CountingKind::Concurrency(Duration::from_secs(60));
        for (kind, rate, burst, queue, expected) in [
            (&bucket, "100/s", None, None, "100/s, burst 100"),
            (&bucket, "100/s", Some(7), None, "100/s, burst 7"),
            (&bucket, "unlimited", None, None, "unlimited"),
            (&bucket, "0/s", None, None, "0/s"),
            (&leaky, "10/s", None, Some(0), "10/s at even spacing, queue 0"),
            (&leaky, "10/s", None, None, "10/s at even spacing, queue 10"),
            (&rolling, "10/2m", None, None, "10/2m"),
            (&berlin, "100/month", None, None, "100/month in Europe/Berlin"),
            (&berlin, "100/d", None, None, "100/d in Europe/Berlin"),
            (&sliding, "7/h", None, None, "7/h in a sliding window"),
            (&log, "7/h", None, None, "7/h in any such interval"),
            (&bucket, "100", None, None, "`100` is no rate"),
            (&bucket, "1/month", None, None, "`1/month` is no rate"),
            (&bucket, "1/s", Some(0), None, "a bucket of 0 tokens cannot be"),
            (&bucket, "9000000000/s", None, None, "a bucket of 9000000000 tokens cannot be"),
            (&bucket, "1/s", None, Some(1), "only a limit with `algorithm = \"leaky-bucket\"`"),
            (&log, "1/s", Some(1), None, "only a limit with `algorithm = \"token-bucket\"`"),
            (&log, "200000/s", None, None, "a sliding log keeps"),
            (&rolling, "1/month", None, None, "only a fixed window on the clock"),
            (&berlin, "1/3d", None, None, "expected `d`, `w`, `month`"),
            (&slots, "20 at once", None, None, "20 at once"),
            (&slots, "0 at once", None, None, "`0 at once` is no number of slots"),
            (&slots, "unlimited", None, None, "`unlimited` is no number of slots"),
            (&slots, "0/s", None, None, "`0/s` is no number of slots"),
            (
                &slots,
                "1 at once",
                Some(1),
                None,
                "only a limit with `algorithm = \"token-bucket\"`",
            ),
            (&bucket, "20 at once", None, None, "only a limit with `algorithm = \"concurrency\"`"),
        ] {
            let wanted = WantedFigures { rate: rate.to_owned(), burst, queue };
            let text = match kind.figures(&wanted) {
                Ok(figures) => figures.to_string(),
                Err(error) => error.to_string(),
            };
            assert!(text.starts_with(expected), "{rate}: {text}");
        }
    }
}
