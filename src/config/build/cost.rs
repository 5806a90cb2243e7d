//! `cost`: what a request takes, which must fit every bucket that it is taken from.

use http::HeaderName;

use super::algorithm::Family;
use super::response_cost;
use crate::config::fields::{COST, MAX_TOKENS, RESPONSE_COST};
use crate::config::file::{Item, Section};
use crate::config::problem::Span;
use crate::limit::rate::Cost;
use crate::plan::CostSpec;

/// The bursts that `cost` must fit; `None` where there is no bound.
pub(super) struct Bursts<'b> {
    /// The limit's own.
    pub(super) own: Option<u64>,
    /// Those of its overrides and of its candidate, with their places.
    pub(super) overrides: &'b [(Option<u64>, Span)],
}

/// `cost`.
pub(super) fn build(
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
        return match response_cost::is_by_response(&section) {
            true => response_cost::by_response(item.section(&RESPONSE_COST, "cost")?, bursts),
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
    Some(CostSpec::Header {
        name: Box::new(name?),
        default: Cost::new(default?)?,
        max: Cost::new(max?)?,
    })
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
