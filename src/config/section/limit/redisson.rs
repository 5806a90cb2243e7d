//! `algorithm = "redisson"`: the settings of a limiter that is shared with Java services.

use std::time::Duration;

use super::rate::{problem, rate_text};
use crate::config::reader::{Item, Section, Span, Wrong, Zero, one_word, words};
use crate::limit::Scope;
use crate::limit::algorithm::Algorithm;
use crate::limit::algorithm::redisson::{Params, Sharing};
use crate::limit::rate::{MAX_TOKENS, Rate, RateError};
use crate::plan::{CostSpec, Figures, LimitSpec, OnStoreError, StoreLocation};
use crate::request::key::KeySource;

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
    let type_item = section.take("type");
    let sharing = type_item.as_ref().and_then(one_word::<Sharing>);
    let rate_item = section.take("rate");
    if let (Some(item), None) = (type_item, &rate_item) {
        item.fault(
            "without `rate` the type in Redis counts, and `type` has no effect",
            "remove it, or write `rate` beside it",
        );
    }
    let keep_item = section.take("keep_alive");
    if let (Some(item), None) = (&keep_item, &rate_item) {
        item.fault(
            "without `rate` the figures in Redis count, and `keep_alive` has no effect",
            "remove it, or write `rate` beside it",
        );
    }
    // An inner `None` means that the file has the field, with a wrong value.
    let keep_alive = keep_item.as_ref().map(|item| item.duration(Zero::Refused));
    let rate = rate_item.as_ref().map(rate);
    if let (Some(item), Some(Some(keep)), Some(Some(rate))) = (&keep_item, keep_alive, rate)
        && keep < Duration::from_micros(rate.interval())
    {
        item.reject("expected at least the rate's interval: what was used would be forgotten");
    }
    let params = match rate {
        Some(None) => None,
        rate => Params::new(rate.flatten(), sharing.unwrap_or_default()),
    };
    if let (Some(item), Some(Some(_)), None) = (&rate_item, rate, &params) {
        item.reject(format!(
            "Redisson counts in whole milliseconds: expected such an interval and a count of at most \
             {MAX_TOKENS}"
        ));
    }
    let params = match keep_alive {
        Some(None) => None,
        Some(Some(keep_alive)) => params.map(|params| params.with_keep_alive(keep_alive)),
        None => params,
    };
    (name, params.map(|params| Figures::Limited(Algorithm::Redisson(params))))
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

/// Checks a limiter together with its key and its cost.
pub(super) fn check(
    section: &Section<'_>,
    figures: Option<&Figures>,
    sources: &[(KeySource, Span)],
    cost: Option<&CostSpec>,
) {
    // Java names a limiter by the values alone: equal values of two alternatives would use the same limiter.
    for (source, span) in sources.iter().filter(|(source, _)| source.alternatives().len() > 1) {
        let title =
            format!("`{source}` names no Redisson limiter: values of both could be the same");
        section.cx.error(span, title, "expected one of them");
    }
    let Some(Figures::Limited(Algorithm::Redisson(params))) = figures else { return };
    if let (Some(CostSpec::Response { max: None, .. }), None) = (cost, params.rate()) {
        section.fault(
            format!("nothing bounds the `cost` of {}", section.title),
            "expected `max` in it, or `rate` in the limit: the figures in Redis are not known here",
        );
    }
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
    item.parse(EXPECTED, |text| {
        let fits = (1..=LONGEST_NAME).contains(&text.len()) && !text.chars().any(char::is_control);
        fits.then(|| text.to_owned()).ok_or(Wrong::Expected)
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
