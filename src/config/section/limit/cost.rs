//! `cost`: how much a request takes. The cost must fit every bucket that the request takes from.

use super::super::values::header_name;
use super::cost_bounds::CostBounds;
use super::response_cost::{self, RESPONSE_COST};
use crate::config::reader::Section;
use crate::config::setting::{Settings, fields};
use crate::config::shape::Fallback::{Required, Value, Words};
use crate::config::shape::{Kind, Shape, field};
use crate::limit::rate::{Cost, MAX_TOKENS};
use crate::plan::CostSpec;

/// A limit's `cost`, written as a table.
pub(in crate::config) static COST: Shape =
    Shape::new("cost", "`cost` of a limit", || fields(OF_COST));

#[rustfmt::skip]
static OF_COST: Settings<()> = &[
    &field("header", Kind::Text, Required, "the request's header that says what it takes"),
    &field("default", Kind::whole(1, MAX_TOKENS), Value("1"), "where the request does not have it"),
    &field("max", Kind::whole(1, MAX_TOKENS), Words("the burst; with a sliding log 32 at most"),
        "the most it may say; more is refused with 400"),
];

/// `cost`.
pub(super) fn build(section: &mut Section<'_>, bursts: &CostBounds<'_>) -> Option<CostSpec> {
    let Some(item) = section.take("cost") else { return Some(CostSpec::Fixed(Cost::ONE)) };
    if item.is_table() {
        let section = item.section(&COST, "cost")?;
        if let Some(other) = response_cost::beside_header(&section) {
            item.fault(
                format!("`cost` has both `header` and `{other}`"),
                "expected the request to say the cost, or the response: remove one of them",
            );
            return None;
        }
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
    bursts.check(&item, cost);
    Cost::new(cost).map(CostSpec::Fixed)
}

fn by_header(mut section: Section<'_>, bursts: &CostBounds<'_>) -> Option<CostSpec> {
    let name = section.require("header", "\"x-cost\"").and_then(|item| header_name(&item));
    let largest = bursts.own.unwrap_or(MAX_TOKENS);
    let max_item = section.take("max");
    // `max` may be above the burst, because the bucket of an override may be larger. A cost that does not
    // fit its bucket is answered as a rejection, and not as a bad request.
    let max = bursts.max(max_item.as_ref(), Some(largest)).flatten();
    let default = section.value("default", |item| {
        let default = item.whole(1..=MAX_TOKENS)?;
        match max.filter(|max| default > *max && max_item.is_some()) {
            Some(max) => drop(item.reject(format!("expected at most `max`, {max}"))),
            None => bursts.check(item, default),
        }
        Some(default)
    });
    section.finish();
    Some(CostSpec::Header {
        name: Box::new(name?),
        default: Cost::new(default?)?,
        max: Cost::new(max?)?,
    })
}
