//! `rate`, `burst`, `queue` and `cost`: figures that fit together, and with the algorithm.

use std::time::Duration;

use http::HeaderName;

use super::algorithm::Family;
use super::settled;
use super::window::{self, Align, Calendar};
use crate::config::fields::{COST, MAX_TOKENS, RESPONSE_COST};
use crate::config::file::{Item, Section, Text};
use crate::config::problem::{Problem, Span};
use crate::limit::algorithm::fixed_window::windows::{Unit, Windows};
use crate::limit::algorithm::{
    Algorithm, concurrency, fixed_window, leaky_bucket, sliding_log, sliding_window, token_bucket,
};
use crate::limit::rate::{Burst, Cost, Interval, Rate, RateError, count_and_interval};
use crate::plan::{CalendarQuota, CostSpec, Figures};

pub(super) const RATE: &str = "expected COUNT/UNIT, as in \"100/s\", \"5000/h\" or \"1000/10m\", or \
                    \"unlimited\"";

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
                misplaced(
                    &queue,
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
                misplaced(
                    &burst,
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
    let rate = match parse(rate_item, |text| text.parse())? {
        Written::Unlimited => return Some(Figures::Unlimited),
        Written::Nothing => return Some(Figures::Nothing),
        Written::Rate(rate) => rate,
    };
    let burst = match burst {
        Some(burst) => burst?,
        None => by_default(rate_item, rate)?,
    };
    Some(Figures::Limited(Algorithm::TokenBucket(token_bucket::Params { rate, burst })))
}

/// `queue` is `None` within where it is wrong.
fn leaky_bucket(rate_item: &Item<'_>, queue: Option<Option<u64>>) -> Option<Figures> {
    let rate: Rate = match parse(rate_item, |text| text.parse())? {
        Written::Unlimited => return Some(Figures::Unlimited),
        Written::Nothing => return Some(Figures::Nothing),
        Written::Rate(rate) => rate,
    };
    let queue = match queue {
        Some(queue) => queue?,
        None => rate.count(),
    };
    Some(Figures::Limited(Algorithm::LeakyBucket(with_queue(rate_item, rate, queue)?)))
}

/// A figure that another algorithm has.
fn misplaced(item: &Item<'_>, what: &str, expected: &str) {
    item.cx.note(Problem::error(item.span.clone(), what, expected));
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
    let (count, length) = match parse(item, window_rate)? {
        Written::Unlimited => return Some(Figures::Unlimited),
        Written::Nothing => return Some(Figures::Nothing),
        Written::Rate(rate) => rate,
    };
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
    let (count, interval) = match parse(item, count_and_interval)? {
        Written::Unlimited => return Some(Figures::Unlimited),
        Written::Nothing => return Some(Figures::Nothing),
        Written::Rate(rate) => rate,
    };
    let params = sliding_window::Params::new(count_of(item, count)?, interval);
    Some(Figures::Limited(Algorithm::SlidingWindow(params)))
}

/// `rate` of a sliding log.
fn sliding_log(item: &Item<'_>) -> Option<Figures> {
    let rate = match parse(item, |text| text.parse())? {
        Written::Unlimited => return Some(Figures::Unlimited),
        Written::Nothing => return Some(Figures::Nothing),
        Written::Rate(rate) => rate,
    };
    let params = sliding_log::Params::new(rate);
    if params.is_none() {
        item.reject(format!(
            "a sliding log keeps an entry for each permit: expected a count of at most {}",
            sliding_log::MOST
        ));
    }
    Some(Figures::Limited(Algorithm::SlidingLog(params?)))
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

/// How long a window is.
enum Length {
    Interval(Interval),
    Month,
}

/// A rate that may be one for each month.
fn window_rate(text: &str) -> Result<(u64, Length), RateError> {
    // A second stands in for the month while the count is read.
    match text.strip_suffix("month").filter(|count| count.ends_with('/')) {
        Some(count) => Ok((count_and_interval(&format!("{count}s"))?.0, Length::Month)),
        None => {
            count_and_interval(text).map(|(count, interval)| (count, Length::Interval(interval)))
        }
    }
}

fn count_of(item: &Item<'_>, count: u64) -> Option<Burst> {
    let fits = Burst::new(count);
    if fits.is_none() {
        item.reject(format!("expected a count of at most {MAX_TOKENS}"));
    }
    fits
}

fn no_month(item: &Item<'_>, expected: &str) -> Problem {
    Problem::error(item.span.clone(), "a month is a matter of the calendar", expected)
}

/// The most that a request can take, where there is a bound.
pub(super) fn burst(figures: &Figures) -> Option<u64> {
    match figures {
        // What Redis has is not known here.
        Figures::Limited(Algorithm::Redisson(params)) => params.rate().map(Rate::count),
        Figures::Limited(algorithm) => Some(algorithm.capacity()),
        Figures::Calendar(quota) => Some(quota.count.get()),
        Figures::Unlimited | Figures::Nothing => None,
    }
}

enum Written<R> {
    Rate(R),
    Unlimited,
    Nothing,
}

fn parse<R>(
    item: &Item<'_>,
    read: impl FnOnce(&str) -> Result<R, RateError>,
) -> Option<Written<R>> {
    let text = item.text_as(RATE)?;
    if text.text == "unlimited" {
        return Some(Written::Unlimited);
    }
    let error = match read(&text.text) {
        Ok(rate) => return Some(Written::Rate(rate)),
        Err(RateError::ZeroCount) => {
            item.cx.note(Problem::warning(
                item.span.clone(),
                "`rate` is zero",
                "nothing passes, ever; no limit at all is \"unlimited\"",
            ));
            return Some(Written::Nothing);
        }
        Err(error) => error,
    };
    item.cx.note(problem(&text, error));
    None
}

/// Why a text is no rate.
pub(super) fn problem(text: &Text<'_>, error: RateError) -> Problem {
    match error {
        RateError::Syntax if text.text.ends_with("/month") => no_month(
            &text.item,
            "expected `algorithm = \"fixed-window\"` and `align = \"clock\"` beside it",
        ),
        RateError::Syntax | RateError::ZeroCount => match meant(text) {
            Some(near) => text.refuse(format!("{RATE}; did you mean \"{near}\"?")),
            None => text.refuse(RATE),
        },
        RateError::ZeroInterval => text.refuse("expected an interval of more than zero"),
        RateError::TooLarge => {
            text.refuse("expected a count below 2^53 and an interval of at most 3650 days")
        }
        RateError::Inexact { nearest: Some(near) } => {
            text.refuse(format!("it cannot be counted exactly; the nearest that can is \"{near}\""))
        }
        RateError::Inexact { nearest: None } => {
            text.refuse("it cannot be counted exactly; expected a rounder count")
        }
    }
}

/// What people write elsewhere: `100/sec`, `100r/s`, `100 / minute`, `100`.
fn meant(text: &Text<'_>) -> Option<String> {
    let plain: String = text.shown()?.to_lowercase().split_whitespace().collect();
    let (count, unit) = plain.split_once("/").or_else(|| plain.split_once("per"))?;
    let count = count.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match unit {
        "s" | "sec" | "secs" | "second" | "seconds" => "s",
        "m" | "min" | "mins" | "minute" | "minutes" => "m",
        "h" | "hr" | "hour" | "hours" => "h",
        "d" | "day" | "days" => "d",
        "w" | "week" | "weeks" => "w",
        "mo" | "mon" | "months" => "month",
        other => other,
    };
    let near = format!("{count}/{unit}");
    window_rate(&near).is_ok().then_some(near)
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

/// A limit's figures with everything that `cost` must fit.
pub(super) struct Bursts<'b> {
    /// The limit's own.
    pub(super) own: Option<u64>,
    /// Those of its overrides, with their places.
    pub(super) overrides: &'b [(Option<u64>, Span)],
}

/// `cost`.
pub(super) fn cost(
    section: &mut Section<'_>,
    family: Option<&Family>,
    bursts: &Bursts<'_>,
) -> Option<CostSpec> {
    if let Some(Family::Concurrency { .. }) = family {
        section.refuse_for("cost", "concurrency", "a request holds one slot");
    }
    let Some(item) = section.take("cost") else { return Some(CostSpec::Fixed(Cost::ONE)) };
    if item.is_table() {
        let section = item.section(&COST, "cost")?;
        return match settled::is_by_response(&section) {
            true => settled::by_response(item.section(&RESPONSE_COST, "cost")?, bursts),
            false => by_header(section, bursts),
        };
    }
    if !item.is_number() {
        item.reject("expected a whole number from 1, or a table such as `{ header = \"x-cost\" }`");
        return None;
    }
    let cost = item.whole(1..=MAX_TOKENS)?;
    check(&item, cost, bursts);
    Cost::new(cost).map(CostSpec::Fixed)
}

fn by_header(mut section: Section<'_>, bursts: &Bursts<'_>) -> Option<CostSpec> {
    let name = section.require("header", "\"x-cost\"").and_then(|item| header_name(&item));
    let largest = bursts.own.unwrap_or(MAX_TOKENS);
    let max_item = section.take("max");
    let max = max_item.as_ref().map_or(Some(largest), |item| item.whole(1..=MAX_TOKENS));
    // It may be above the burst: some override's bucket may be larger, and a request that no bucket
    // can ever hold is rejected with these words and not as a bad one.
    let default = match section.take("default") {
        None => Some(1),
        Some(item) => {
            let default = item.whole(1..=MAX_TOKENS);
            if let (Some(default), Some(max)) = (default, max) {
                if default > max && max_item.is_some() {
                    item.reject(format!("expected at most `max`, {max}"));
                } else {
                    check(&item, default, bursts);
                }
            }
            default
        }
    };
    section.finish();
    Some(CostSpec::Header { name: name?, default: Cost::new(default?)?, max: Cost::new(max?)? })
}

/// A header's name.
pub(super) fn header_name(item: &Item<'_>) -> Option<HeaderName> {
    const EXPECTED: &str = "expected a header's name";
    let text = item.text_as(EXPECTED)?;
    text.parsed(HeaderName::from_bytes(text.text.as_bytes()).ok(), EXPECTED)
}

/// A cost above a burst can never be paid.
pub(super) fn check(item: &Item<'_>, cost: u64, bursts: &Bursts<'_>) {
    if let Some(burst) = bursts.own.filter(|burst| cost > *burst) {
        item.reject(format!("expected at most the burst, {burst}: more can never be paid"));
        return;
    }
    for (burst, span) in bursts.overrides {
        if let Some(burst) = burst.filter(|burst| cost > *burst) {
            let problem = item
                .refuse(format!("expected at most the burst of all figures, here {burst}"))
                .related(span.clone(), "more can never be paid here");
            item.cx.note(problem);
            return;
        }
    }
}
