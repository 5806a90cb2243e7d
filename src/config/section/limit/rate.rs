//! The text of a `rate`, and the advice for a text that is not a rate.

use crate::config::reader::{Elsewhere, Item, NotedProblem, Section};
use crate::limit::rate::{Interval, RateError};
use crate::settings::{WindowLength, window_rate};

/// What is expected of a rate.
const RATE: &str = "expected COUNT/UNIT, as in \"100/s\", \"5000/h\" or \"1000/10m\", or \
                    \"unlimited\"";

/// Warns of a rate of zero.
pub(super) fn warn_of_zero(item: &Item<'_>) {
    item.doubt("`rate` is zero", "nothing passes, ever; no limit at all is \"unlimited\"");
}

/// Warns of a rate that is surely meant as a quota, if the limit names neither `algorithm` nor `burst`.
pub(super) fn warn_of_quota(item: &Item<'_>, rate: &str) {
    let Ok((count, WindowLength::Interval(interval))) = window_rate(rate) else { return };
    // A bucket of one token lets no more than one pass in its interval.
    if interval < Interval::HOUR || count == 1 {
        return;
    }
    let period = match interval {
        Interval::HOUR => "hour".to_owned(),
        Interval::DAY => "day".to_owned(),
        Interval::WEEK => "week".to_owned(),
        other => other.to_string(),
    };
    let title = match item.shown(rate) {
        Some(rate) => {
            let twice = count.saturating_mul(2);
            format!("\"{rate}\" lets nearly {twice} pass in its first {period}")
        }
        None => format!("this rate lets nearly twice its count pass in its first {period}"),
    };
    let expected = "a bucket begins full and refills meanwhile; for a quota set `algorithm = \"fixed-window\"`";
    item.doubt(title, expected).help(format!(
        "`algorithm = \"sliding-window\"` holds the number in any {period}; `burst` beside the rate says that a \
         bucket is meant"
    ));
}

/// Checks `rate` for itself, if it is not known how the limit counts.
pub(super) fn check(section: &mut Section<'_>) {
    if let Some(item) = section.take("rate")
        && let Some(text) = rate_text(&item)
        && let Err(error) = window_rate(&text)
    {
        problem(&item, &text, error);
    }
}

/// The names that other limiters have for a limit's figures.
pub(super) static ELSEWHERE: &[Elsewhere] = &[
    ("capacity", "burst", None),
    ("bucketsize", "burst", None),
    ("maxburst", "burst", None),
    ("burstcapacity", "burst", None),
    ("window", "rate", INTERVAL),
    ("interval", "rate", INTERVAL),
    ("period", "rate", INTERVAL),
    ("limitrefreshperiod", "rate", INTERVAL),
    ("limitforperiod", "rate", INTERVAL),
    ("refillrate", "rate", INTERVAL),
    ("replenishrate", "rate", INTERVAL),
];

const INTERVAL: Option<&str> = Some("the interval is part of the rate, as in `rate = \"100/m\"`");

/// The text of a rate.
pub(super) fn rate_text(item: &Item<'_>) -> Option<String> {
    if item.is_list() {
        item.reject(RATE).help(
            "a limit has one rate, and a route may have several limits: write a limit for each rate",
        );
        return None;
    }
    item.text_as(RATE)
}

/// Notes why a text is not a rate.
pub(super) fn problem<'c>(item: &Item<'c>, text: &str, error: RateError) -> NotedProblem<'c> {
    match error {
        RateError::Syntax if text.ends_with("/month") => no_month(
            item,
            "expected `algorithm = \"fixed-window\"` and `align = \"clock\"` beside it",
        ),
        RateError::Syntax | RateError::ZeroCount => item.reject(RATE),
        RateError::ZeroInterval => item.reject("expected an interval of more than zero"),
        RateError::TooLarge => {
            item.reject("expected a count below 2^53 and an interval of at most 3650 days")
        }
        RateError::Inexact { nearest: Some(near) } => item.reject(format!(
            "it cannot be counted exactly; the nearest rate that can is \"{near}\""
        )),
        RateError::Inexact { nearest: None } => {
            item.reject("it cannot be counted exactly; expected a rounder count")
        }
    }
}

/// Notes that a rate is for a month, where only an interval is allowed.
pub(super) fn no_month<'c>(item: &Item<'c>, expected: &str) -> NotedProblem<'c> {
    item.fault("a month is a matter of the calendar", expected)
}
