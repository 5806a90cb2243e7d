//! `cost`: how much a request takes. A number, or what a header of the request or the response says. The cost
//! must fit every bucket that the request takes from.

use std::sync::Arc;

use http::header::ACCEPT_ENCODING;

use super::super::values::header_name;
use super::algorithm::Family;
use crate::config::reader::{
    FieldEntry, Item, Kind, Required, Section, SettingList, Shape, Span, Value, Words, field,
    fields, spellings, words,
};
use crate::limit::algorithm::sliding_log::MOST_COST;
use crate::limit::rate::{Cost, MAX_TOKENS};
use crate::settings::response::{UnknownUse, UsedSource};
use crate::settings::weights::WeightedPaths;
use crate::settings::{Action, CostSpec, Estimate, LimitSpec, RouteSpec, TokensPerByte};

/// A limit's `cost`, written as a table.
pub(crate) static COST: Shape =
    Shape { one_of: &SOURCES, ..Shape::new("cost", || fields(OF_COST)) };

#[rustfmt::skip]
static OF_COST: SettingList<()> = &[
    field("header", Kind::HEADER, Words("required, or a field of the response"),
        "the request's header that names its cost"),
    field("default", Kind::Whole(1, MAX_TOKENS), Value("1"),
        "beside `header`: the cost of a request without this header"),
    field("response_header", Kind::HEADER, Words("none"),
        "the response's header that names the tokens that were used"),
    field("response_json", Kind::Either(&[Kind::Text, Kind::TableOf(1, &Kind::Whole(1, MAX_TOKENS))]), Words("none"),
        "a path, or paths with weights, to numbers in a JSON response: `\"usage.total_tokens\"`, or `{ \"usage.input_tokens | message.usage.input_tokens\" = 1, \"usage.output_tokens\" = 5 }`. If the response is a list or server-sent events, the last element that has the number counts. Of alternatives the first that the response has counts. A missing number counts as nothing if another one is there"),
    field("response_bytes", Kind::Flag, Words("`false`"),
        "`true`: each byte of the response's body is a token that was used"),
    field("estimate", Kind::Either(&[Kind::Whole(1, MAX_TOKENS), Kind::Table(&ESTIMATE)]), Words("required beside a field of the response"),
        "the tokens that are taken before the response: a number, or by the length of the request's body"),
    field("unknown", Kind::Word(spellings::<UnknownUse>), Value("\"estimate\""),
        "beside a field of the response: what a request takes in the end if its response does not name the tokens, or is cut, as when the client leaves. `\"estimate\"`: the estimate, or what a cut response has named so far if this is more; `\"max\"`: always `max`"),
    field("max", Kind::Whole(1, MAX_TOKENS), Words("the burst, for a response 100 bursts; with a sliding log 32 at most"),
        "the most that `header` may name (a request with more is refused with 400), or the most that one response takes"),
];

/// An `estimate`, written as a table.
pub(crate) static ESTIMATE: Shape = Shape::new("estimate", || fields(OF_ESTIMATE));

#[rustfmt::skip]
static OF_ESTIMATE: SettingList<()> = &[
    field("content_length", Kind::Form(r"[0-9]+(\.[0-9]{1,6})?"), Required,
        "tokens for each byte of the request's body, rounded up, as in `\"0.3\"`; no more than the bucket holds"),
    field("at_least", Kind::Whole(1, MAX_TOKENS), Required,
        "the least that a request takes; a request that announces no length (a chunked upload) reserves no more than this, and `max` bounds what it costs in the end"),
];

/// The fields that say where the cost stands. A table has one of them.
const SOURCES: [&str; 4] = ["header", "response_header", "response_json", "response_bytes"];

const ONE_OF_BOTH: &str =
    "expected the request to say the cost, or the response: remove one of them";

words!(UnknownUse { "estimate" => Estimate, "max" => Max });

/// Reads `cost` of a limit, or of an entry in a route's `limits`. `None` if `cost` is wrong or missing.
pub(super) fn build(section: &mut Section<'_>, bounds: &CostBounds) -> Option<CostSpec> {
    let item = section.take("cost")?;
    if item.is_table() {
        let cost = said(item.section(&COST, "cost")?, bounds)?;
        let is_known = bounds.family != Some(Family::Redisson) || !bounds.bursts.is_empty();
        if let (CostSpec::Response { max: None, .. }, false) = (&cost, is_known) {
            section.fault(
                format!("nothing bounds the `cost` of {}", section.title),
                "expected `max` in it, or `rate` in the limit: the figures in Redis are not known here",
            );
        }
        return Some(cost);
    }
    if !item.is_number() {
        item.reject("expected a whole number from 1, or a table such as `{ header = \"x-cost\" }`");
        return None;
    }
    let cost = item.whole(1..=MAX_TOKENS)?;
    bounds.check(&item, cost);
    Cost::new(cost).map(CostSpec::Fixed)
}

/// A `cost` that the request or the response names.
fn said(mut section: Section<'_>, bounds: &CostBounds) -> Option<CostSpec> {
    let sources: Vec<_> = SOURCES.iter().filter_map(|name| section.take(name)).collect();
    if let [one, other, ..] = &sources[..] {
        let by_request = one.field == "header";
        let title = format!("`cost` has both `{}` and `{}`", one.field, other.field);
        one.fault(title, if by_request { ONE_OF_BOTH } else { "expected one of them" })
            .related(&other.span, "the other one");
        if by_request {
            return None;
        }
    }
    let by_response = match sources.first() {
        Some(source) => source.field != "header",
        // A misspelt name may begin like the right name.
        None => section.has(|name| name.starts_with("response") || name == "estimate"),
    };
    let source = sources.into_iter().next().or_else(|| match by_response {
        true => section.require("response_header", "\"x-tokens-used\""),
        false => section.require("header", "\"x-cost\""),
    });
    let (who, others): (&str, &[&str]) = match by_response {
        true => ("response", &["default"]),
        false => ("request", &["estimate", "unknown"]),
    };
    for field in others {
        let title = format!("`{field}` has no effect where the {who} names the cost");
        section.refuse_field(field, &title, ONE_OF_BOTH);
    }
    let max_item = section.take("max");
    // A written `max` may be above the burst, because the bucket of an override may be larger. A cost that does
    // not fit its bucket is answered as a rejection, and not as a bad request.
    let max = bounds.max(max_item.as_ref(), by_response);
    let read = |item: &Item<'_>| {
        let cost = item.whole(1..=MAX_TOKENS)?;
        if let Some(max) = max.flatten().filter(|max| max_item.is_some() && cost > *max) {
            item.reject(format!("expected at most `max`, {max}"));
        } else {
            bounds.check(item, cost);
        }
        Cost::new(cost)
    };
    if !by_response {
        let default = section.value("default", read);
        section.finish();
        let name = Box::new(header_name(&source?)?);
        return Some(CostSpec::Header { name, default: default?, max: max?.and_then(Cost::new) });
    }
    let estimate = section.require("estimate", "100").and_then(|item| estimate(&item, read));
    let unknown = section.plain::<UnknownUse>("unknown");
    section.finish();
    let source = Box::new(used_source(&source?)?);
    Some(CostSpec::Response { source, estimate: estimate?, max: max?, unknown: unknown? })
}

/// `estimate`. `read` reads a number of tokens.
fn estimate(item: &Item<'_>, read: impl Fn(&Item<'_>) -> Option<Cost>) -> Option<Estimate> {
    const RATE: &str = "expected a number above zero in quotes, as in \"0.3\": the tokens for each \
                        byte of the request's body, with up to six digits after the point";
    if !item.is_table() {
        return read(item).map(|at_least| Estimate { at_least, per_byte: None });
    }
    let mut section = item.section(&ESTIMATE, "estimate")?;
    let rate = section.require("content_length", "\"0.3\"");
    let at_least = section.require("at_least", "100").as_ref().and_then(read);
    section.finish();
    Some(Estimate { per_byte: Some(rate?.form(RATE, TokensPerByte::new)?), at_least: at_least? })
}

const PATH: &str = "expected the keys of nested objects with dots between them, as in \
                    \"usage.total_tokens\"; lists are not looked into";

fn used_source(item: &Item<'_>) -> Option<UsedSource> {
    match item.field {
        "response_header" => header_name(item).map(UsedSource::Header),
        "response_json" if item.is_table() => weights(item).map(|it| UsedSource::Json(it.into())),
        "response_json" => {
            let paths: WeightedPaths = item.form(PATH, |text| text.parse().ok())?;
            Some(UsedSource::Json(paths.into()))
        }
        _ if item.flag()? => Some(UsedSource::Bytes),
        _ => {
            item.reject("expected `true`, or `response_header`, or `response_json`");
            None
        }
    }
}

/// The paths of `response_json` with their weights.
fn weights(item: &Item<'_>) -> Option<WeightedPaths> {
    const EXAMPLE: &str = "`\"usage.total_tokens\" = 1`";
    let (entries, mut paths) = (item.entries()?, WeightedPaths::default());
    if entries.is_empty() {
        item.fault(
            "`response_json` is empty",
            format!("expected one path at least, as in {EXAMPLE}"),
        );
        return None;
    }
    let mut is_sound = true;
    for FieldEntry { name, name_span, item } in &entries {
        let weight = match item.is_table() {
            true => {
                item.reject(format!(
                    "expected the whole path in quotes, and its weight, as in {EXAMPLE}"
                ));
                None
            }
            false => item.whole(1..=MAX_TOKENS),
        };
        let added = paths.add(name, weight.unwrap_or(1));
        if added.is_err() {
            let title = format!("\"{}\" is no path in a response", name.escape_debug());
            item.cx.error(name_span, title, PATH);
        }
        is_sound &= added.is_ok() && weight.is_some();
    }
    is_sound.then_some(paths)
}

/// What bounds `cost`.
#[derive(Default)]
pub(super) struct CostBounds {
    /// How the limit counts. `None` if its algorithm is wrong.
    pub(super) family: Option<Family>,
    /// The burst of the limit itself, and those of its overrides, of its plans and of its candidate with their
    /// positions.
    pub(super) bursts: Vec<(u64, Option<Span>)>,
}

/// Why a sliding log bounds the cost of one request.
const ENTRIES: &str = "a sliding log keeps an entry for each token; `algorithm = \"sliding-window\"` \
                       counts any cost";

impl CostBounds {
    /// The most that the algorithm takes for one request. Only a sliding log has this bound.
    fn of_one_request(&self) -> Option<u64> {
        // The limit's own figures may be `unlimited` while an override has a sliding log. So the family decides.
        (self.family == Some(Family::SlidingLog)).then_some(MOST_COST)
    }

    /// The largest cost that a header or a response may name. The outer `None` means a wrong `max`. Without `max`, a
    /// response has the algorithm's own bound, and a header has no bound here: the bursts of the limit and of the
    /// request's key bound it.
    pub(super) fn max(&self, written: Option<&Item<'_>>, by_response: bool) -> Option<Option<u64>> {
        let Some(item) = written else {
            return Some(self.of_one_request().filter(|_| by_response));
        };
        let max = item.whole(1..=MAX_TOKENS)?;
        if let Some(most) = self.of_one_request().filter(|most| max > *most) {
            item.reject(format!("expected at most {most}: {ENTRIES}"));
        }
        Some(Some(max))
    }

    /// Notes an error for a cost above a burst: the cost could never be paid.
    pub(super) fn check(&self, item: &Item<'_>, cost: u64) {
        if let Some(most) = self.of_one_request().filter(|most| cost > *most) {
            item.reject(format!("expected at most {most}: {ENTRIES}"));
            return;
        }
        let Some((burst, span)) = self.bursts.iter().find(|(burst, _)| cost > *burst) else {
            return;
        };
        let size = match self.family {
            None | Some(Family::TokenBucket) => "the burst",
            Some(Family::LeakyBucket) => "the queue and one",
            Some(Family::Concurrency) => "the slots",
            Some(_) => "the count",
        };
        match span {
            None => {
                item.reject(format!("expected at most {size}, {burst}: more can never be paid"))
            }
            Some(span) => item
                .reject(format!("expected at most {size} of all figures, here {burst}"))
                .related(span, "more can never be paid here"),
        };
    }
}

/// Removes `accept-encoding` from requests of a route whose limit reads JSON responses, to keep the API
/// from compressing them. Otherwise a client that accepts compression would pay only the estimate. If the
/// file itself changes `accept-encoding`, that change stays.
pub(crate) fn keep_readable(route: &mut RouteSpec, limits: &[Arc<LimitSpec>]) {
    let reads = |limit: &u32| {
        let limit = usize::try_from(*limit).ok().and_then(|index| limits.get(index));
        let source = limit.and_then(|limit| match &limit.cost {
            CostSpec::Response { source, .. } => Some(&**source),
            CostSpec::Fixed(_) | CostSpec::Header { .. } => None,
        });
        matches!(source, Some(UsedSource::Json(_)))
    };
    if !matches!(route.action, Action::Forward { .. }) || !route.limits.iter().any(reads) {
        return;
    }
    let changes = route.options.get_or_insert_default().request.get_or_insert_default();
    let written = changes.set.iter().chain(&changes.add).map(|(name, _)| name);
    if !written.chain(&changes.remove).any(|name| *name == ACCEPT_ENCODING) {
        changes.remove.push(ACCEPT_ENCODING);
    }
}
