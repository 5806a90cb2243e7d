//! A limit's `overrides`: other figures for some keys.

use std::collections::HashMap;
use std::num::NonZeroU32;

use super::super::values::all;
use super::Inherited;
use super::algorithm::Counting;
use super::figures::{self, FIGURES};
use super::rate::ELSEWHERE;
use crate::config::reader::{
    Item, Kind, Mask, NETWORK, Required, Section, SettingList, Shape, Span, Words, Wrong, field,
    fields, network,
};
use crate::request::key::KeySource;
use crate::request::overrides::{Part, of_alternative, with_table};
use crate::settings::OverrideSpec;

/// One of a limit's `overrides`.
pub(crate) static OVERRIDE: Shape = Shape {
    elsewhere: ELSEWHERE,
    ..Shape::new("overrides", || [fields(OF_OVERRIDE), fields(FIGURES)].concat())
};

#[rustfmt::skip]
static OF_OVERRIDE: SettingList<()> = &[
    field("key", Kind::TEXT_LIST, Required,
        "a value for each part of the limit's key; `\"*\"` is any, an `ip` may be a network, and `\"2=…\"` is a value of a part's second alternative")
        .masked(Mask::Secret),
    field("name", Kind::Text, Words("none"),
        "a name for these keys: stands beside the key in the log, on the page and in `top`"),
];

/// One override with its position.
pub(super) struct Override {
    pub(super) parts: Vec<Part>,
    pub(super) spec: OverrideSpec,
    pub(super) span: Span,
}

/// The overrides of a limit with this counting and these parts of its key.
pub(super) fn build(
    section: &mut Section<'_>,
    counting: Option<&Counting>,
    sources: Option<&[(KeySource, Span)]>,
    inherited: &Inherited<'_>,
) -> Vec<Override> {
    let mut overrides: Vec<Override> = Vec::new();
    let mut first_spans: HashMap<Vec<Part>, Span> = HashMap::new();
    for item in section.list("overrides") {
        let Some(mut entry) = item.section(&OVERRIDE, "an override") else { continue };
        let key = entry.require("key", "[\"…\"]");
        let name = entry.take("name").map(|item| name(&item));
        let figures = figures::inner(entry, counting);
        let key_span = key.as_ref().map_or(item.span.clone(), |key| key.span.clone());
        // The key of an override can be checked only against the limit's key.
        let parts = key.zip(sources).and_then(|(key, sources)| parts(&key, sources, inherited));
        let (Some(parts), Some(figures)) = (parts, figures) else { continue };
        let first = first_spans.entry(parts.clone()).or_insert_with(|| key_span.clone());
        if *first != key_span {
            item.cx
                .error(&key_span, "this key has an override already", "remove one of the two")
                .related(first, "here");
            continue;
        }
        let line = u32::try_from(item.cx.line(&key_span)).ok().and_then(NonZeroU32::new);
        let line = line.unwrap_or(NonZeroU32::MAX);
        let is_for_all = parts.iter().all(Part::is_any);
        let spec = OverrideSpec { figures, is_for_all, name: name.flatten(), line };
        overrides.push(Override { parts, spec, span: key_span });
    }
    overrides
}

fn name(item: &Item<'_>) -> Option<Box<str>> {
    let expected = "expected a name for these keys, of 1 to 64 characters, as in \"acme\"";
    let fits = |text: &&str| (1..=64).contains(&text.chars().count());
    item.form(expected, |text| Some(text.trim()).filter(fits).map(Box::from))
}

fn parts(
    item: &Item<'_>,
    sources: &[(KeySource, Span)],
    inherited: &Inherited<'_>,
) -> Option<Vec<Part>> {
    let items = item.list()?;
    if items.len() != sources.len() {
        wrong_count(item, items.len(), sources);
        return None;
    }
    let pairs = items.iter().zip(sources);
    all(pairs.map(|(item, (source, _))| part(item, source, inherited)))
}

fn wrong_count(item: &Item<'_>, found: usize, sources: &[(KeySource, Span)]) {
    let (Some((_, first)), Some((_, last))) = (sources.first(), sources.last()) else {
        item.reject("the limit has no `key`: it has one bucket, and nothing to override");
        return;
    };
    let title = format!("the `key` of this override has {found} of {} values", sources.len());
    item.fault(title, "expected one value for each part of the limit's key")
        .related(&(first.start..last.end), "the limit's key");
}

fn part(item: &Item<'_>, source: &KeySource, inherited: &Inherited<'_>) -> Option<Part> {
    let (prefixes, loose_paths) = item.cx.key_form.get();
    let expected = match source {
        KeySource::Ip => format!("expected {NETWORK}, or \"*\" for any"),
        _ => format!("expected a value of `{source}`, or \"*\" for any"),
    };
    item.parse(&expected, |text| {
        let text = &*with_table(text, source, inherited.tables);
        let (_, value, of) = of_alternative(text, source).map_err(Wrong::Because)?;
        let number = text.strip_suffix(value).unwrap_or_default();
        if *of == KeySource::Ip && value != "*" {
            network(value).map_err(|wrong| after(number, wrong))?;
        }
        Part::parse(text, source, prefixes, loose_paths).map_err(Wrong::Because)
    })
}

/// Why a value is no network. `number` is the alternative's number in front of the value, or empty.
fn after(number: &str, wrong: Wrong) -> Wrong {
    match wrong {
        Wrong::Expected if !number.is_empty() => {
            Wrong::Other(format!("expected {NETWORK}, behind `{number}`"))
        }
        wrong => wrong,
    }
}
