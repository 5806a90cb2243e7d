//! `[cors]`.

use super::values::once;
use crate::config::reader::{
    Item, Kind, Required, Section, SettingList, Shape, Span, Value, Wrong, at, field, fields, read,
    setting,
};
use crate::request::origin::OriginPattern;
use crate::settings::CorsSpec;

type Spec = CorsSpec;

pub(crate) static CORS: Shape = Shape::new("[cors]", || fields(SETTINGS));

#[rustfmt::skip]
static SETTINGS: SettingList<Spec> = &[
    field("origins", Kind::List(1, &Kind::Form(r"\*|null|[A-Za-z][\w+.-]*://[^/?#@\s]+")), Required,
        "whose pages may read tidegate's own answers: `\"https://app.example.com\"`, `\"https://*.example.com\"` (one label or more), `\"http://localhost:*\"` (any port), or `[\"*\"]`"),
    setting(at!(credentials), Kind::Flag, Value("false"), "whether these pages may send cookies; not with `\"*\"`"),
];

/// `[cors]`. `None` if the file has none.
pub(crate) fn build(root: &mut Section<'_>) -> Option<CorsSpec> {
    const EXAMPLE: &str = "[\"https://app.example.com\"]";
    let mut section = root.take("cors")?.section(&CORS, CORS.title)?;
    let list = section.require("origins", EXAMPLE);
    let items = list.as_ref().and_then(Item::list);
    let found = items.as_ref().map(|items| origins(items)).unwrap_or_default();
    let all = found.iter().find(|(pattern, _)| *pattern == OriginPattern::All);
    let all = all.map(|(_, span)| span.clone());
    let origins = found.into_iter().map(|(pattern, _)| pattern).collect();
    let cx = section.cx;
    let spec = read(SETTINGS, section, CorsSpec { origins, ..CorsSpec::default() });
    let (list, items) = (list?, items?);
    if items.is_empty() {
        list.reject(format!("expected at least one, as in `{EXAMPLE}`"));
    } else if let Some(span) = all.filter(|_| items.len() > 1 || spec.credentials) {
        let expected = "expected it alone and without `credentials`, or the origins in its place";
        cx.error(&span, "`*` is every origin", expected);
    }
    Some(spec)
}

fn origins(items: &[Item<'_>]) -> Vec<(OriginPattern, Span)> {
    const EXPECTED: &str =
        "expected an origin, as in \"https://app.example.com\" or \"https://*.example.com\"";
    let read = |item: &Item<'_>| {
        item.parse(EXPECTED, |text| Ok((text.parse().map_err(Wrong::Because)?, text.to_owned())))
    };
    let key = |(pattern, _): &(OriginPattern, String)| Some(pattern.clone());
    let found = once(items, read, key, |(_, text)| text.clone());
    found.into_iter().map(|((pattern, _), span)| (pattern, span)).collect()
}
