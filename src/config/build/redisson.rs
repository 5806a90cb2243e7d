//! `algorithm = "redisson"`: what a limit may say of a limiter that it shares with Java services.

use super::limit::Inherited;
use super::rate::{RATE, problem};
use super::store::STORE_ERRORS;
use super::waiting;
use crate::config::fields::MAX_TOKENS;
use crate::config::file::{Item, Section};
use crate::config::problem::{Problem, Span};
use crate::limit::algorithm::Algorithm;
use crate::limit::algorithm::redisson::{Params, Sharing};
use crate::limit::rate::{Rate, RateError};
use crate::plan::{CostSpec, Figures, OnStoreError, StoreLocation};
use crate::request::key::KeySource;

/// What was read of it; `None` where something was wrong.
pub(super) struct LimiterDraft {
    pub(super) name: Option<String>,
    pub(super) figures: Option<Figures>,
    pub(super) on_store_error: OnStoreError,
}

const LONGEST_NAME: usize = 256;

/// Fields that mean nothing to a limiter of Redisson's, and why.
const MEANINGLESS: &[(&str, &str)] = &[
    ("burst", "a Redisson limiter has a rate and no burst: remove it"),
    ("overrides", "each limiter has its figures in Redis: set those of a key's limiter there"),
    ("candidate", "the figures stand in Redis, where others use them too: remove it"),
    ("queue", "expected with `algorithm = \"leaky-bucket\"` alone"),
    ("align", "expected with `algorithm = \"fixed-window\"` alone"),
    ("timezone", "expected with `algorithm = \"fixed-window\"` alone"),
    ("limit", "expected with `algorithm = \"concurrency\"` alone"),
    ("lease", "expected with `algorithm = \"concurrency\"` alone"),
];

/// Takes a limiter's fields.
pub(super) fn build(section: &mut Section<'_>, inherited: &Inherited<'_>) -> LimiterDraft {
    for (field, why) in MEANINGLESS {
        section.refuse_field(field, "means nothing with `algorithm = \"redisson\"`", why);
    }
    waiting::refuse_without_wait(section);
    if *inherited.store == StoreLocation::Memory {
        section.cx.note(Problem::error(
            section.span.clone(),
            format!("{} shares a Redisson limiter, and there is no Redis", section.title),
            "expected `url = \"redis://…\"` in [store], the one that the Java services use",
        ));
    }
    if let Some(item) = section.take("scope")
        && item.word(&[("cluster", Some(())), ("node", None)], &[]) == Some(None)
    {
        item.reject("a Redisson limiter stands in Redis: expected `cluster`, or another algorithm");
    }
    let name = section.require("name", "\"orders\"").and_then(|item| name(&item));
    let types = &[("overall", Sharing::Overall), ("per-client", Sharing::PerClient)];
    let type_item = section.take("type");
    let sharing = type_item.as_ref().and_then(|item| item.word(types, &[])).unwrap_or_default();
    let rate_item = section.take("rate");
    if let (Some(item), None) = (type_item, &rate_item) {
        item.fault(
            "without `rate` the type in Redis counts, and `type` says nothing",
            "remove it, or write `rate` beside it",
        );
    }
    let rate = rate_item.as_ref().map(rate);
    let figures = match rate {
        Some(None) => None,
        rate => Params::new(rate.flatten(), sharing)
            .map(|params| Figures::Limited(Algorithm::Redisson(params))),
    };
    if let (Some(item), Some(Some(_)), None) = (&rate_item, rate, &figures) {
        item.reject(format!(
            "Redisson counts in whole milliseconds: expected such an interval and a count of at most \
             {MAX_TOKENS}"
        ));
    }
    let on_store_error = without_redis(section, rate_item.is_some(), inherited.on_store_error);
    LimiterDraft { name, figures, on_store_error }
}

/// Refuses a limiter's fields in a limit of another algorithm.
pub(super) fn refuse_fields(section: &mut Section<'_>) {
    for field in ["name", "type"] {
        section.refuse_field(
            field,
            "is a Redisson limiter's",
            "remove it, or set `algorithm = \"redisson\"`",
        );
    }
}

/// Refuses parts of a key with alternatives: Java names a limiter by values alone, so equal values of two
/// alternatives would be one limiter.
pub(super) fn refuse_alternatives(section: &Section<'_>, sources: &[(KeySource, Span)]) {
    for (source, span) in sources.iter().filter(|(source, _)| source.alternatives().len() > 1) {
        section.cx.note(Problem::error(
            span.clone(),
            format!("`{source}` names no Redisson limiter: values of both could be the same"),
            "expected one of them",
        ));
    }
}

/// Refuses a cost that nobody bounds: what the response says, where the burst is not known either.
pub(super) fn bound(section: &Section<'_>, figures: &Figures, cost: &CostSpec) {
    if let (Figures::Limited(Algorithm::Redisson(params)), CostSpec::Response { max: None, .. }) =
        (figures, cost)
        && params.rate().is_none()
    {
        section.cx.note(Problem::error(
            section.span.clone(),
            format!("nothing bounds the `cost` of {}", section.title),
            "expected `max` in it, or `rate` in the limit: the figures in Redis are not known here",
        ));
    }
}

fn name(item: &Item<'_>) -> Option<String> {
    const EXPECTED: &str = "expected the name that Java gives to `getRateLimiter`: 1 to 256 bytes";
    let text = item.text_as(EXPECTED)?;
    let fits =
        (1..=LONGEST_NAME).contains(&text.text.len()) && !text.text.chars().any(char::is_control);
    text.parsed(fits.then(|| text.text.clone()), EXPECTED)
}

fn rate(item: &Item<'_>) -> Option<Rate> {
    let text = item.text_as(RATE)?;
    match text.text.parse() {
        Ok(rate) => return Some(rate),
        Err(RateError::ZeroCount) => text.refuse_here("a Redisson limiter lets at least one pass"),
        Err(_) if text.text == "unlimited" => {
            text.refuse_here("a Redisson limiter has a rate; without one, Redis alone decides");
        }
        Err(error) => item.cx.note(problem(&text, error)),
    }
    None
}

/// Without a rate a process cannot decide by itself.
fn without_redis(
    section: &mut Section<'_>,
    has_rate: bool,
    inherited: OnStoreError,
) -> OnStoreError {
    let item = section.take("on_store_error");
    let written = item.as_ref().and_then(|item| item.word(STORE_ERRORS, &[]));
    match (&item, written) {
        _ if has_rate => written.unwrap_or(inherited),
        (Some(item), Some(OnStoreError::Local)) => {
            item.reject(
                "without `rate` there is nothing to decide by: expected `allow` or `reject`",
            );
            OnStoreError::Allow
        }
        _ => match written.unwrap_or(inherited) {
            OnStoreError::Local => OnStoreError::Allow,
            other => other,
        },
    }
}
