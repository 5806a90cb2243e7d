//! What is known of a request only when its response has come: `cost` by what that says, `count_when`.

use std::sync::Arc;

use http::header::ACCEPT_ENCODING;

use super::algorithm::Family;
use super::cost::{Bursts, check, header_name};
use crate::config::fields::{COUNT_WHEN, MAX_TOKENS};
use crate::config::file::{Item, Section};
use crate::config::problem::Problem;
use crate::limit::rate::Cost;
use crate::plan::response::{JsonPath, StatusPattern, Statuses, UnknownUse, UsedSource};
use crate::plan::{Action, CostSpec, LimitSpec, RouteSpec};

const STATUS: &str = "expected a status as in \"401\", or a class as in \"5xx\"";

/// Whether a `cost` is meant to be what a response says.
pub(super) fn is_by_response(section: &Section<'_>) -> bool {
    let has = |name| section.has(|field| field == name);
    section.has(|field| field.starts_with("response")) || has("estimate") && !has("header")
}

/// Such a `cost`.
pub(super) fn by_response(mut section: Section<'_>, bursts: &Bursts<'_>) -> Option<CostSpec> {
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
    let unknown = section.word(
        "unknown",
        &[("estimate", UnknownUse::Estimate), ("max", UnknownUse::Max)],
        UnknownUse::default(),
    );
    let max_item = section.take("max");
    let max = max_item.as_ref().map(|item| item.whole(1..=MAX_TOKENS));
    let estimate = section.require("estimate", "100").and_then(|item| {
        let estimate = item.whole(1..=MAX_TOKENS)?;
        match max.flatten().filter(|max| estimate > *max) {
            Some(max) => item.reject(format!("expected at most `max`, {max}")),
            None => check(&item, estimate, bursts),
        }
        Cost::new(estimate)
    });
    section.finish();
    let max = match max {
        Some(max) => Some(max?),
        None => None,
    };
    Some(CostSpec::Response { source: Box::new(source?), estimate: estimate?, max, unknown })
}

/// `response_bytes`, beside which nothing else may say what was used.
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
    let problem = Problem::error(one.span.clone(), title, "expected one of them");
    one.cx.note(problem.related(other.span.clone(), "the other one"));
    None
}

fn json_path(item: &Item<'_>) -> Option<JsonPath> {
    const EXPECTED: &str = "expected the keys of nested objects with dots between them, as in \
                            \"usage.total_tokens\"; lists are not looked into";
    let text = item.text_as(EXPECTED)?;
    text.parsed(text.text.parse().ok(), EXPECTED)
}

/// Does not let an API compress what a limit of its route is to read: else a client that offers to take
/// it compressed would pay no more than the estimate. What the file says of that header stands.
pub(super) fn keep_readable(route: &mut RouteSpec, limits: &[Arc<LimitSpec>]) {
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

/// `count_when`: `None` where it is wrong.
pub(super) fn count_when(
    section: &mut Section<'_>,
    family: Option<&Family>,
) -> Option<Option<Statuses>> {
    if let Some(Family::Concurrency { .. }) = family {
        section.refuse_for(
            "count_when",
            "concurrency",
            "a slot is held until its response has ended",
        );
    }
    let Some(item) = section.take("count_when") else { return Some(None) };
    let mut inner = item.section(&COUNT_WHEN, "count_when")?;
    let list = inner.require("status", "[\"401\"]");
    inner.finish();
    let list = list?;
    let items = list.list()?;
    if items.is_empty() {
        list.reject("expected one status at least: without any, nothing would ever count");
        return None;
    }
    // All that is wrong is said.
    let patterns: Vec<_> = items.iter().map(status).collect();
    let patterns: Option<Vec<_>> = patterns.into_iter().collect();
    patterns.map(|patterns| Some(Statuses(patterns)))
}

fn status(item: &Item<'_>) -> Option<StatusPattern> {
    let text = item.text_as(STATUS)?;
    text.parsed(text.text.parse().ok(), format!("{STATUS}, that a client can get"))
}
