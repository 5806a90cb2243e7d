//! `cost` of a limit, where the response says how much was used.

use std::sync::Arc;

use http::header::ACCEPT_ENCODING;

use super::super::values::header_name;
use super::cost_bounds::CostBounds;
use crate::config::reader::{Item, Section, Wrong};
use crate::config::setting::{Settings, Spelled, fields, spellings};
use crate::config::shape::Fallback::{Required, Value, Words};
use crate::config::shape::{Kind, Shape, field};
use crate::limit::rate::{Cost, MAX_TOKENS};
use crate::plan::response::{JsonPath, UnknownUse, UsedSource};
use crate::plan::{Action, CostSpec, LimitSpec, RouteSpec};

/// A limit's `cost`, written as a table, where the response says how much was used.
pub(in crate::config) static RESPONSE_COST: Shape =
    Shape::new("cost by response", "`cost` of a limit, told by the response", || fields(OF_COST));

#[rustfmt::skip]
static OF_COST: Settings<()> = &[
    &field("response_header", Kind::Text, Words("required, or `response_json`"),
        "the response's header that says what was used"),
    &field("response_json", Kind::Text, Words("none"),
        "keys with dots between them, to the number in a response of JSON or in the last data of server-sent events that has it"),
    &field("response_bytes", Kind::Flag, Words("`false`"),
        "`true`: the bytes of the response's body are what was used"),
    &field("unknown", Kind::Word(spellings::<UnknownUse>), Value("\"estimate\""),
        "what is taken in the end where the response does not say, as where the client leaves before"),
    &field("estimate", Kind::whole(1, MAX_TOKENS), Required, "what is taken before the response"),
    &field("max", Kind::whole(1, MAX_TOKENS), Words("100 bursts; with a sliding log 32"),
        "the most that one response takes, whatever it says"),
];

impl Spelled for UnknownUse {
    const WORDS: &'static [(&'static str, Self)] =
        &[("estimate", Self::Estimate), ("max", Self::Max)];
}

/// Whether the table means a cost that the response says, and not a cost that a request's header says.
pub(super) fn is_by_response(section: &Section<'_>) -> bool {
    let has = |name| section.has(|field| field == name);
    section.has(|field| field.starts_with("response")) || has("estimate") && !has("header")
}

/// A field of a `cost` by response that stands beside the request's `header`.
pub(super) fn beside_header(section: &Section<'_>) -> Option<&'static str> {
    let has = |name: &str| section.has(|field| field == name);
    let own = ["response_header", "response_json", "response_bytes", "estimate", "unknown"];
    own.into_iter().find(|own| has("header") && has(own))
}

/// A `cost` that the response says.
pub(super) fn by_response(mut section: Section<'_>, bursts: &CostBounds<'_>) -> Option<CostSpec> {
    let (json, bytes) = (section.take("response_json"), section.take("response_bytes"));
    let source = match json {
        None if bytes.is_some() => bytes.and_then(|item| bytes_of(&item, &mut section)),
        None => section
            .require("response_header", "\"x-tokens-used\"")
            .and_then(|item| header_name(&item))
            .map(UsedSource::Header),
        Some(json) => {
            let path = json_path(&json).map(|path| UsedSource::Json(path.into()));
            match section.take("response_header") {
                None if bytes.is_none() => path,
                None => bytes.and_then(|item| two_sources(&item, &json)),
                Some(header) => two_sources(&header, &json),
            }
        }
    };
    let unknown = section.value("unknown", |item| item.word(UnknownUse::WORDS, &[]));
    let max_item = section.take("max");
    let max = bursts.max(max_item.as_ref(), None);
    let estimate = section.require("estimate", "100").and_then(|item| {
        let estimate = item.whole(1..=MAX_TOKENS)?;
        match max.flatten().filter(|max| max_item.is_some() && estimate > *max) {
            Some(max) => drop(item.reject(format!("expected at most `max`, {max}"))),
            None => bursts.check(&item, estimate),
        }
        Cost::new(estimate)
    });
    section.finish();
    Some(CostSpec::Response {
        source: Box::new(source?),
        estimate: estimate?,
        max: max?,
        unknown: unknown?,
    })
}

/// `response_bytes`. `cost` must not have another source beside this field.
fn bytes_of(item: &Item<'_>, section: &mut Section<'_>) -> Option<UsedSource> {
    if let Some(header) = section.take("response_header") {
        return two_sources(&header, item);
    }
    if item.flag()? {
        return Some(UsedSource::Bytes);
    }
    item.reject("expected `true`, or `response_header`, or `response_json`");
    None
}

fn two_sources(one: &Item<'_>, other: &Item<'_>) -> Option<UsedSource> {
    let title = format!("`cost` has both `{}` and `{}`", one.field, other.field);
    one.fault(title, "expected one of them").related(&other.span, "the other one");
    None
}

fn json_path(item: &Item<'_>) -> Option<JsonPath> {
    const EXPECTED: &str = "expected the keys of nested objects with dots between them, as in \
                            \"usage.total_tokens\"; lists are not looked into";
    item.parse(EXPECTED, |text| text.parse().map_err(|_| Wrong::Expected))
}

/// Removes `accept-encoding` from requests of a route whose limit reads JSON responses, to keep the API
/// from compressing them. Otherwise a client that accepts compression would pay only the estimate. If the
/// file itself changes `accept-encoding`, that change stays.
pub(in crate::config) fn keep_readable(route: &mut RouteSpec, limits: &[Arc<LimitSpec>]) {
    let reads = |limit: &u32| {
        let limit = usize::try_from(*limit).ok().and_then(|place| limits.get(place));
        let source = limit.and_then(|limit| match &limit.cost {
            CostSpec::Response { source, .. } => Some(&**source),
            CostSpec::Fixed(_) | CostSpec::Header { .. } => None,
        });
        matches!(source, Some(UsedSource::Json(_)))
    };
    if matches!(route.action, Action::Respond { .. }) || !route.limits.iter().any(reads) {
        return;
    }
    let changes = route.options.get_or_insert_default().request.get_or_insert_default();
    let written = changes.set.iter().chain(&changes.add).map(|(name, _)| name);
    if !written.chain(&changes.remove).any(|name| *name == ACCEPT_ENCODING) {
        changes.remove.push(ACCEPT_ENCODING);
    }
}
