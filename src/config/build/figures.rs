//! `rate`, `burst` and `cost`: figures that fit together.

use std::time::Duration;

use http::HeaderName;

use super::algorithm::Counting;
use crate::config::fields::{COST, MAX_TOKENS};
use crate::config::file::{Item, Section, Text};
use crate::config::problem::{Problem, Span};
use crate::limit::algorithm::{Algorithm, concurrency, sliding_log, token_bucket};
use crate::limit::rate::{Burst, Cost, Rate, RateError};
use crate::plan::{CostSpec, Figures};

const RATE: &str = "expected COUNT/UNIT, as in \"100/s\", \"5000/h\" or \"1000/10m\", or \
                    \"unlimited\"";

/// The figures of a limit or of an override.
pub(super) fn build(section: &mut Section<'_>, counting: Counting) -> Option<Figures> {
    match counting {
        Counting::TokenBucket => bucket(section),
        Counting::SlidingLog => log(section),
        Counting::Concurrency { lease } => slots(section, lease),
    }
}

/// `limit` of a concurrency limit.
fn slots(section: &mut Section<'_>, lease: Duration) -> Option<Figures> {
    let limit = section.require("limit", "10");
    let only = ["rate", "burst"]
        .map(|field| section.refuse_for(field, "concurrency", "it counts what is under way"));
    let limit = Burst::new(limit?.whole(1..=MAX_TOKENS)?)?;
    let params = concurrency::Params::new(limit, lease);
    (only == [true; 2]).then_some(Figures::Limited(Algorithm::Concurrency(params)))
}

/// `rate` of a sliding log.
fn log(section: &mut Section<'_>) -> Option<Figures> {
    let rate = section.require("rate", "\"100/m\"");
    let without_burst = section.refuse_for("burst", "sliding-log", "its count is the rate's");
    let item = rate?;
    let rate = match parse(&item)? {
        Written::Unlimited => return Some(Figures::Unlimited),
        Written::Nothing => return Some(Figures::Nothing),
        Written::Rate(rate) => rate,
    };
    let Some(params) = sliding_log::Params::new(rate) else {
        item.reject(format!(
            "a sliding log keeps an entry for each permit: expected a count of at most {}",
            sliding_log::MOST
        ));
        return None;
    };
    without_burst.then_some(Figures::Limited(Algorithm::SlidingLog(params)))
}

/// `rate` and `burst` of a bucket.
fn bucket(section: &mut Section<'_>) -> Option<Figures> {
    let rate = section.require("rate", "\"100/s\"");
    let burst_item = section.take("burst");
    let burst = burst_item.as_ref().map(|item| item.whole(1..=MAX_TOKENS).and_then(Burst::new));
    let rate_item = rate?;
    let rate = match parse(&rate_item)? {
        Written::Unlimited => return Some(Figures::Unlimited),
        Written::Nothing => return Some(Figures::Nothing),
        Written::Rate(rate) => rate,
    };
    let burst = match burst {
        Some(burst) => burst?,
        None => by_default(&rate_item, rate)?,
    };
    Some(Figures::Limited(Algorithm::TokenBucket(token_bucket::Params { rate, burst })))
}

/// The most that a request can take, where there is a bound.
pub(super) fn burst(figures: &Figures) -> Option<u64> {
    match figures {
        Figures::Limited(algorithm) => Some(algorithm.capacity()),
        Figures::Unlimited | Figures::Nothing => None,
    }
}

enum Written {
    Rate(Rate),
    Unlimited,
    Nothing,
}

fn parse(item: &Item<'_>) -> Option<Written> {
    let text = item.text_as(RATE)?;
    if text.text == "unlimited" {
        return Some(Written::Unlimited);
    }
    let error = match text.text.parse() {
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

fn problem(text: &Text<'_>, error: RateError) -> Problem {
    match error {
        RateError::Syntax if text.text.ends_with("/month") => Problem::error(
            text.item.span.clone(),
            "a rate for each month is not supported yet",
            "expected a unit of `s`, `m`, `h`, `d` or `w`, or a duration",
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
        other => other,
    };
    let near = format!("{count}/{unit}");
    near.parse::<Rate>().is_ok().then_some(near)
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
    counting: Counting,
    bursts: &Bursts<'_>,
) -> Option<CostSpec> {
    if let Counting::Concurrency { .. } = counting {
        let why = "a request holds one slot";
        return section
            .refuse_for("cost", "concurrency", why)
            .then_some(CostSpec::Fixed(Cost::ONE));
    }
    let Some(item) = section.take("cost") else { return Some(CostSpec::Fixed(Cost::ONE)) };
    if item.is_table() {
        return by_header(item.section(&COST, "cost")?, bursts);
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
    const EXPECTED: &str = "expected a header's name";
    if section.later("response_header") || section.later("response_json") {
        section.finish();
        return None;
    }
    let name = section.require("header", "\"x-cost\"").and_then(|item| {
        let text = item.text_as(EXPECTED)?;
        text.parsed(HeaderName::from_bytes(text.text.as_bytes()).ok(), EXPECTED)
    });
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

/// A cost above a burst can never be paid.
fn check(item: &Item<'_>, cost: u64, bursts: &Bursts<'_>) {
    if let Some(burst) = bursts.own.filter(|burst| cost > *burst) {
        item.reject(format!("expected at most the burst, {burst}: more can never be paid"));
        return;
    }
    for (burst, span) in bursts.overrides {
        if let Some(burst) = burst.filter(|burst| cost > *burst) {
            let problem = item
                .refuse(format!("expected at most the burst of every override, here {burst}"))
                .related(span.clone(), "more can never be paid here");
            item.cx.note(problem);
            return;
        }
    }
}
