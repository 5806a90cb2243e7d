//! `rate`, `burst`, `queue` and `limit`: figures that fit together, and with the algorithm.

use std::time::Duration;

use super::algorithm::Family;
use super::rate::{Length, by_rate, no_month, window_rate};
use super::window::{self, Align, Calendar};
use crate::config::fields::MAX_TOKENS;
use crate::config::file::{Item, Section};
use crate::config::problem::Problem;
use crate::limit::algorithm::fixed_window::windows::{Unit, Windows};
use crate::limit::algorithm::{
    Algorithm, concurrency, fixed_window, leaky_bucket, sliding_log, sliding_window, token_bucket,
};
use crate::limit::rate::{Burst, Interval, Rate, count_and_interval};
use crate::plan::{CalendarQuota, Figures};

/// The figures of a limit, of an override or of a candidate; `family` is `None` where the algorithm is
/// wrong.
pub(super) fn build(section: &mut Section<'_>, family: Option<&Family>) -> Option<Figures> {
    let rate = match family {
        Some(Family::Concurrency { .. }) => None,
        Some(_) => section.require("rate", "\"100/s\""),
        // Nobody knows whether it must be there.
        None => section.take("rate"),
    };
    match family {
        Some(Family::TokenBucket) => {
            if let Some(queue) = section.take("queue") {
                queue.fault(
                    "a token bucket has no `queue`",
                    "expected `burst`, or `wait` to hold requests, or `algorithm = \"leaky-bucket\"`",
                );
            }
            let burst = section.take("burst");
            // Whatever becomes of the rate, a fault of the burst is told too.
            let burst = burst.map(|item| item.whole(1..=MAX_TOKENS).and_then(Burst::new));
            token_bucket(&rate?, burst)
        }
        Some(Family::LeakyBucket) => {
            if let Some(burst) = section.take("burst") {
                burst.fault(
                    "a leaky bucket has no `burst`",
                    "expected `queue`: how many requests are held until their turn comes",
                );
            }
            let queue = section.take("queue");
            let queue = queue.map(|item| item.whole(0..=MAX_TOKENS - 1));
            leaky_bucket(&rate?, queue)
        }
        Some(Family::FixedWindow(align)) => {
            window::refuse_size(section, "a fixed window");
            fixed_window(&rate?, align)
        }
        Some(Family::SlidingWindow) => {
            window::refuse_size(section, "a sliding window");
            sliding_window(&rate?)
        }
        Some(Family::SlidingLog) => {
            section.refuse_for("burst", "sliding-log", "its count is the rate's");
            section.refuse_for("queue", "sliding-log", "`wait` holds requests");
            sliding_log(&rate?)
        }
        Some(Family::Concurrency { lease }) => slots(section, *lease),
        None => {
            section.take("burst");
            section.take("queue");
            None
        }
    }
}

/// `burst` is `None` within where it is wrong.
fn token_bucket(rate_item: &Item<'_>, burst: Option<Option<Burst>>) -> Option<Figures> {
    by_rate(rate_item, str::parse, |rate| {
        let burst = match burst {
            Some(burst) => burst?,
            None => by_default(rate_item, rate)?,
        };
        Some(Figures::Limited(Algorithm::TokenBucket(token_bucket::Params { rate, burst })))
    })
}

/// `queue` is `None` within where it is wrong.
fn leaky_bucket(rate_item: &Item<'_>, queue: Option<Option<u64>>) -> Option<Figures> {
    by_rate(rate_item, str::parse, |rate: Rate| {
        let queue = match queue {
            Some(queue) => queue?,
            None => rate.count(),
        };
        Some(Figures::Limited(Algorithm::LeakyBucket(with_queue(rate_item, rate, queue)?)))
    })
}

fn by_default(item: &Item<'_>, rate: Rate) -> Option<Burst> {
    let burst = Burst::new(rate.count());
    if burst.is_none() {
        item.reject(format!(
            "its count is the burst by default, and a bucket holds at most {MAX_TOKENS}: expected \
             `burst` beside it"
        ));
    }
    burst
}

fn with_queue(item: &Item<'_>, rate: Rate, queue: u64) -> Option<leaky_bucket::Params> {
    let params = leaky_bucket::Params::new(rate, queue);
    if params.is_none() {
        item.reject(format!(
            "its count is the queue by default, and that holds at most {}: expected `queue` beside it",
            MAX_TOKENS - 1
        ));
    }
    params
}

fn fixed_window(item: &Item<'_>, align: &Align) -> Option<Figures> {
    by_rate(item, window_rate, |(count, length)| windows(item, align, count, length))
}

fn windows(item: &Item<'_>, align: &Align, count: u64, length: Length) -> Option<Figures> {
    let windows = match (align, length) {
        (Align::FirstRequest, Length::Interval(interval)) => Windows::Rolling(interval),
        (Align::FirstRequest, Length::Month) => {
            item.cx.note(no_month(item, "expected `align = \"clock\"` beside it"));
            return None;
        }
        (Align::Clock(calendar), Length::Interval(interval)) if interval < Interval::DAY => {
            if let Some(zone) = &calendar.named {
                item.cx.note(
                    Problem::error(
                        item.span.clone(),
                        "windows of less than a day know no time zone",
                        "they begin at the multiples of their length since 1970 UTC: expected `d`, `w` \
                         or `month`, or no `timezone`",
                    )
                    .related(zone.clone(), "the time zone"),
                );
                return None;
            }
            Windows::Clock(interval)
        }
        (Align::Clock(Calendar { zone, .. }), length) => {
            let unit = match length {
                Length::Interval(Interval::DAY) => Unit::Day,
                Length::Interval(Interval::WEEK) => Unit::Week,
                Length::Month => Unit::Month,
                Length::Interval(_) => {
                    item.reject(
                        "expected `d`, `w`, `month` or less than a day: nothing else stands on the \
                         clock",
                    );
                    return None;
                }
            };
            let count = count_of(item, count)?;
            return Some(Figures::Calendar(CalendarQuota {
                count,
                schedule: zone.schedule(unit)?,
            }));
        }
    };
    let count = count_of(item, count)?;
    Some(Figures::Limited(Algorithm::FixedWindow(fixed_window::Params { count, windows })))
}

fn sliding_window(item: &Item<'_>) -> Option<Figures> {
    by_rate(item, count_and_interval, |(count, interval)| {
        let params = sliding_window::Params::new(count_of(item, count)?, interval);
        Some(Figures::Limited(Algorithm::SlidingWindow(params)))
    })
}

/// `rate` of a sliding log.
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

/// `limit` of a concurrency limit.
fn slots(section: &mut Section<'_>, lease: Duration) -> Option<Figures> {
    let limit = section.require("limit", "10");
    let why = "it counts what is under way";
    for field in ["rate", "burst", "queue"] {
        section.refuse_for(field, "concurrency", why);
    }
    let limit = Burst::new(limit?.whole(1..=MAX_TOKENS)?)?;
    Some(Figures::Limited(Algorithm::Concurrency(concurrency::Params::new(limit, lease))))
}

fn count_of(item: &Item<'_>, count: u64) -> Option<Burst> {
    let fits = Burst::new(count);
    if fits.is_none() {
        item.reject(format!("expected a count of at most {MAX_TOKENS}"));
    }
    fits
}

/// The most that a request can take, where there is a bound.
pub(super) fn burst(figures: &Figures) -> Option<u64> {
    match figures {
        Figures::Unlimited | Figures::Limited(Algorithm::Closed) => None,
        // What Redis has is not known here.
        Figures::Limited(Algorithm::Redisson(params)) => params.rate().map(Rate::count),
        Figures::Limited(algorithm) => Some(algorithm.capacity()),
        Figures::Calendar(quota) => Some(quota.count.get()),
    }
}
