//! `algorithm = "redisson"`: the settings of a limiter that is shared with Java services.

use std::time::Duration;

use super::rate::{problem, rate_text};
use crate::config::reader::{Item, Kind, Section, Span, one_word, words};
use crate::limit::Scope;
use crate::limit::algorithm::Algorithm;
use crate::limit::algorithm::redisson::{Params, Sharing};
use crate::limit::rate::{MAX_TOKENS, Rate, RateError};
use crate::request::key::KeySource;
use crate::settings::{Figures, LimitSpec, OnStoreError, StoreLocation};

words!(Sharing { "overall" => Overall, "per-client" => PerClient });

const LONGEST_NAME: usize = 256;

/// A limiter's name and figures. `None` if one of them is wrong. A `store` of `None` is wrong too, and was
/// reported.
pub(super) fn build(
    section: &mut Section<'_>,
    store: Option<&StoreLocation>,
) -> (Option<String>, Option<Figures>) {
    if store == Some(&StoreLocation::Memory) {
        section.fault(
            format!("{} shares a Redisson limiter, and there is no Redis", section.title),
            "expected `url = \"redis://…\"` in [store], the one that the Java services use",
        );
    }
    let name = section.require("name", "\"orders\"").and_then(|item| name(&item));
    (name, params(section).map(|params| Figures::Limited(Algorithm::Redisson(params))))
}

/// The figures of a limiter. `None` if one of them is wrong.
fn params(section: &mut Section<'_>) -> Option<Params> {
    let Some(rate_item) = section.take("rate") else {
        for field in ["type", "keep_alive"] {
            let title =
                format!("without `rate` the figures in Redis count: `{field}` has no effect");
            section.refuse_field(field, &title, "remove it, or write `rate` beside it");
        }
        return Params::new(None, Sharing::default());
    };
    let sharing = section.take("type").and_then(|item| one_word(&item)).unwrap_or_default();
    let keep_item = section.take("keep_alive");
    let keep_alive = keep_item.as_ref().map(|item| item.duration(&Kind::TIME_ABOVE_ZERO));
    let rate = rate(&rate_item)?;
    if let (Some(item), Some(Some(keep))) = (&keep_item, keep_alive)
        && keep < Duration::from_micros(rate.interval())
    {
        item.reject("expected at least the rate's interval: what was used would be forgotten");
    }
    let params = Params::new(Some(rate), sharing);
    if params.is_none() {
        rate_item.reject(format!(
            "Redisson counts in whole milliseconds: expected such an interval and a count of at most \
             {MAX_TOKENS}"
        ));
    }
    match keep_alive {
        Some(keep_alive) => Some(params?.with_keep_alive(keep_alive?)),
        None => params,
    }
}

/// Checks `scope` and `on_store_error`: a Redisson limiter cannot have all of their values. The items are
/// the values in the file, if the file has them. Without `rate`, an inherited `local` becomes `allow`.
pub(super) fn settle(
    spec: &mut LimitSpec,
    scope: Option<&Item<'_>>,
    on_store_error: Option<&Item<'_>>,
    has_rate: bool,
) {
    if let (Some(item), Scope::Node) = (scope, spec.scope) {
        item.reject("a Redisson limiter stands in Redis: expected `cluster`, or another algorithm");
    }
    // Without a rate, the process cannot decide alone.
    if spec.on_store_error == OnStoreError::Local && !has_rate {
        // A word that `on_store_error` does not have was noted as a problem before.
        let local = |item: &&Item<'_>| item.text().is_some_and(|text| text == "local");
        if let Some(item) = on_store_error.filter(local) {
            item.reject(
                "without `rate` there is nothing to decide by: expected `allow` or `reject`",
            );
        }
        spec.on_store_error = OnStoreError::Allow;
    }
}

/// Checks a limiter together with its key.
pub(super) fn check(
    section: &Section<'_>,
    figures: Option<&Figures>,
    sources: &[(KeySource, Span)],
) {
    // Java names a limiter by the values alone: equal values of two alternatives would use the same limiter.
    for (source, span) in sources.iter().filter(|(source, _)| source.alternatives().len() > 1) {
        let title =
            format!("`{source}` names no Redisson limiter: values of both could be the same");
        section.cx.error(span, title, "expected one of them");
    }
    let Some(Figures::Limited(Algorithm::Redisson(params))) = figures else { return };
    // The proxy makes limiters only if it knows a rate. Clients may then make up the limiters' names.
    let lasts = params.rate().is_some() && params.keep_alive.is_none();
    let is_of_clients = |source: &KeySource| {
        !matches!(source, KeySource::Route | KeySource::Method | KeySource::Cert)
    };
    let of_clients = sources.iter().find(|(source, _)| lasts && is_of_clients(source));
    if let Some((source, span)) = of_clients {
        let who = match source {
            KeySource::Ip => "there are many addresses".to_owned(),
            _ => format!("clients choose `{source}`"),
        };
        let title = format!("{who}, and keys of a Redisson limiter never expire");
        section
            .cx
            .warning(span, title, "each new value writes three keys into Redis for ever")
            .help("add `keep_alive`, as in \"1h\": at least the rate's interval");
    }
}

fn name(item: &Item<'_>) -> Option<String> {
    const EXPECTED: &str = "expected the name that Java gives to `getRateLimiter`: 1 to 256 bytes";
    item.form(EXPECTED, |text| {
        let fits = (1..=LONGEST_NAME).contains(&text.len()) && !text.chars().any(char::is_control);
        fits.then(|| text.to_owned())
    })
}

fn rate(item: &Item<'_>) -> Option<Rate> {
    let text = rate_text(item)?;
    match text.parse() {
        Ok(rate) => return Some(rate),
        Err(RateError::ZeroCount) => item.reject("a Redisson limiter lets at least one pass"),
        Err(_) if text == "unlimited" => {
            item.reject("a Redisson limiter has a rate; without one, Redis alone decides")
        }
        Err(error) => problem(item, &text, error),
    };
    None
}
