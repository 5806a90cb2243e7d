//! `rate`, `burst`, `queue` and `cost`: figures that fit together.

use http::HeaderName;

use super::settled;
use crate::config::fields::{COST, MAX_TOKENS, RESPONSE_COST};
use crate::config::file::{Item, Section, Text};
use crate::config::problem::{Problem, Span};
use crate::limit::algorithm::{Algorithm, leaky_bucket, token_bucket};
use crate::limit::rate::{Burst, Cost, Rate, RateError};
use crate::plan::{CostSpec, Figures};

const RATE: &str = "expected COUNT/UNIT, as in \"100/s\", \"5000/h\" or \"1000/10m\", or \
                    \"unlimited\"";

/// The algorithms by the figures that they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// `rate` and `burst`.
    TokenBucket,
    /// `rate` and `queue`.
    LeakyBucket,
}

/// What stands beside `rate`, if anything does; `None` within where it is wrong.
enum Size {
    Burst(Option<Option<Burst>>),
    Queue(Option<Option<u64>>),
}

/// The figures of a limit, of an override or of a candidate; `family` is `None` where the algorithm is
/// wrong.
pub(super) fn build(section: &mut Section<'_>, family: Option<Family>) -> Option<Figures> {
    let rate = section.require("rate", "\"100/s\"");
    let (burst, queue) = (section.take("burst"), section.take("queue"));
    let size = match family? {
        Family::TokenBucket => {
            if let Some(queue) = queue {
                misplaced(
                    &queue,
                    "a token bucket has no `queue`",
                    "expected `burst`, or `wait` to hold requests, or `algorithm = \"leaky-bucket\"`",
                );
            }
            Size::Burst(burst.map(|item| item.whole(1..=MAX_TOKENS).and_then(Burst::new)))
        }
        Family::LeakyBucket => {
            if let Some(burst) = burst {
                misplaced(
                    &burst,
                    "a leaky bucket has no `burst`",
                    "expected `queue`: how many requests are held until their turn comes",
                );
            }
            Size::Queue(queue.map(|item| item.whole(0..=MAX_TOKENS - 1)))
        }
    };
    let rate_item = rate?;
    let rate = match parse(&rate_item)? {
        Written::Unlimited => return Some(Figures::Unlimited),
        Written::Nothing => return Some(Figures::Nothing),
        Written::Rate(rate) => rate,
    };
    let algorithm = match size {
        Size::Burst(burst) => {
            let burst = match burst {
                Some(burst) => burst?,
                None => by_default(&rate_item, rate)?,
            };
            Algorithm::TokenBucket(token_bucket::Params { rate, burst })
        }
        Size::Queue(queue) => {
            let queue = match queue {
                Some(queue) => queue?,
                None => rate.count(),
            };
            Algorithm::LeakyBucket(with_queue(&rate_item, rate, queue)?)
        }
    };
    Some(Figures::Limited(algorithm))
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

/// The bucket's size, where there is a bucket.
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
pub(super) fn cost(section: &mut Section<'_>, bursts: &Bursts<'_>) -> Option<CostSpec> {
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
