//! Reads `rate`, `burst`, `queue` and `limit`, and checks that they fit the algorithm and each other.

use super::algorithm::{Counting, Family, refuse};
use super::rate::{by_rate, no_month};
use super::window::{Align, Calendar};
use crate::config::reader::{Item, Section};
use crate::limit::algorithm::{
    Algorithm, concurrency, leaky_bucket, sliding_log, sliding_window, token_bucket,
};
use crate::limit::rate::{Burst, Interval, MAX_TOKENS, Rate, count_and_interval};
use crate::plan::{Figures, FiguresError, WindowLength, window_rate};

/// The figures of an override or of a candidate. Fields of other algorithms are refused.
pub(super) fn inner(section: &mut Section<'_>, counting: Option<&Counting>) -> Option<Figures> {
    refuse(section, counting.map(|counting| counting.family));
    figures(section, counting)
}

/// The figures of a limit. `counting` is `None` where its algorithm is wrong. The figures of a Redisson
/// limiter are read in `redisson`.
pub(super) fn figures(section: &mut Section<'_>, counting: Option<&Counting>) -> Option<Figures> {
    let counting = counting?;
    if counting.family == Family::Concurrency {
        let limit = section.require("limit", "10")?.whole(1..=MAX_TOKENS)?;
        let params = concurrency::Params::new(Burst::new(limit)?, counting.lease);
        return Some(Figures::Limited(Algorithm::Concurrency(params)));
    }
    let rate = section.require("rate", "\"100/s\"");
    // `burst` and `queue` are read before `rate?`, to report their problems too.
    let burst = section.take("burst").map(|item| item.whole(1..=MAX_TOKENS).and_then(Burst::new));
    let queue = section.take("queue").map(|item| item.whole(0..=MAX_TOKENS - 1));
    let rate = rate?;
    match counting.family {
        Family::TokenBucket => token_bucket(&rate, burst),
        Family::LeakyBucket => leaky_bucket(&rate, queue),
        Family::FixedWindow => by_rate(&rate, window_rate, |(count, length)| {
            windows(&rate, &counting.align, count, length)
        }),
        Family::SlidingWindow => sliding_window(&rate),
        Family::SlidingLog => sliding_log(&rate),
        Family::Concurrency | Family::Redisson => None,
    }
}

/// The inner `None` of `burst` means a wrong value.
fn token_bucket(rate_item: &Item<'_>, burst: Option<Option<Burst>>) -> Option<Figures> {
    by_rate(rate_item, str::parse, |rate: Rate| {
        let by_default = || {
            let burst = Burst::new(rate.count());
            if burst.is_none() {
                rate_item.reject(format!(
                    "its count is the burst by default, and a bucket holds at most {MAX_TOKENS}: \
                     expected `burst` beside it"
                ));
            }
            burst
        };
        let burst = burst.unwrap_or_else(by_default)?;
        Some(Figures::Limited(Algorithm::TokenBucket(token_bucket::Params { rate, burst })))
    })
}

/// The inner `None` of `queue` means a wrong value.
fn leaky_bucket(rate_item: &Item<'_>, queue: Option<Option<u64>>) -> Option<Figures> {
    by_rate(rate_item, str::parse, |rate: Rate| {
        let params = leaky_bucket::Params::new(rate, queue.unwrap_or(Some(rate.count()))?);
        if params.is_none() {
            rate_item.reject(format!(
                "its count is the queue by default, and that holds at most {}: expected `queue` \
                 beside it",
                MAX_TOKENS - 1
            ));
        }
        Some(Figures::Limited(Algorithm::LeakyBucket(params?)))
    })
}

fn windows(item: &Item<'_>, align: &Align, count: u64, length: WindowLength) -> Option<Figures> {
    if let Align::Clock(Calendar { named: Some(zone), .. }) = align
        && matches!(length, WindowLength::Interval(interval) if interval < Interval::DAY)
    {
        item.fault(
            "windows of less than a day know no time zone",
            "they begin at the multiples of their length since 1970 UTC: expected `d`, `w` \
             or `month`, or no `timezone`",
        )
        .related(zone, "the time zone");
        return None;
    }
    match align.start().figures(count, length) {
        Ok(figures) => return Some(figures),
        Err(FiguresError::MonthOffClock) => {
            no_month(item, "expected `align = \"clock\"` beside it");
        }
        Err(FiguresError::OffCalendar) => {
            item.reject(
                "expected `d`, `w`, `month` or less than a day: nothing else stands on the \
                 clock",
            );
        }
        Err(_) => drop(count_of(item, count)),
    }
    None
}

fn sliding_window(item: &Item<'_>) -> Option<Figures> {
    by_rate(item, count_and_interval, |(count, interval)| {
        let params = sliding_window::Params::new(count_of(item, count)?, interval);
        Some(Figures::Limited(Algorithm::SlidingWindow(params)))
    })
}

fn sliding_log(item: &Item<'_>) -> Option<Figures> {
    by_rate(item, str::parse, |rate| {
        let params = sliding_log::Params::new(rate);
        if params.is_none() {
            item.reject(format!(
                "a sliding log keeps an entry for each permit: expected a count of at most {}",
                sliding_log::MOST
            ));
        }
        Some(Figures::Limited(Algorithm::SlidingLog(params?)))
    })
}

fn count_of(item: &Item<'_>, count: u64) -> Option<Burst> {
    let fits = Burst::new(count);
    if fits.is_none() {
        item.reject(format!("expected a count of at most {MAX_TOKENS}"));
    }
    fits
}
