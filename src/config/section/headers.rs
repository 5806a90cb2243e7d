//! Header names and values: in conditions, exemptions and changes.

use std::collections::HashMap;

use http::header::HOST;
use http::{HeaderName, HeaderValue};

use super::values::{header_name, host};
use crate::config::reader::{
    Context, FieldEntry, Item, Kind, Section, SettingList, Shape, Span, Value, Words, field, fields,
};
use crate::settings::HeaderChanges;

/// A route's `request_headers` and `response_headers`.
pub(crate) static HEADERS: Shape = Shape::new("header changes", || fields(OF_HEADERS));

#[rustfmt::skip]
static OF_HEADERS: SettingList<()> = &[
    field("set", Kind::TEXT_TABLE, Words("none"), "fields that replace the fields of the same name"),
    field("add", Kind::TEXT_TABLE, Words("none"), "fields that are added to the fields of the same name"),
    field("remove", Kind::List(0, &Kind::HEADER), Value("[]"), "taken out"),
];

/// Headers that belong to one connection or to a message's framing. Only the proxy sets them.
const OWN: [&str; 9] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];

/// A table of headers, each with a value. Two spellings of one header are an error.
pub(super) fn values(section: &mut Section<'_>, field: &str) -> Vec<(HeaderName, HeaderValue)> {
    read_values(section, field, |_, entry| value(&entry.item))
}

/// The same table. `read` reads the value of a header.
fn read_values(
    section: &mut Section<'_>,
    field: &str,
    read: impl Fn(&HeaderName, &FieldEntry<'_>) -> Option<HeaderValue>,
) -> Vec<(HeaderName, HeaderValue)> {
    let entries = section.take(field).and_then(|item| item.entries()).unwrap_or_default();
    let mut first_spans: HashMap<HeaderName, &Span> = HashMap::new();
    let mut values = Vec::new();
    for entry in &entries {
        let Ok(name) = HeaderName::from_bytes(entry.name.as_bytes()) else {
            let title = format!("\"{}\" is no header's name", entry.name.escape_debug());
            section.cx.error(&entry.name_span, title, "expected letters, digits and `-`");
            continue;
        };
        let first = *first_spans.entry(name.clone()).or_insert(&entry.name_span);
        if *first != entry.name_span {
            section
                .cx
                .error(&entry.name_span, format!("`{field}` has `{name}` twice"), "remove one")
                .related(first, "first here");
        }
        values.extend(read(&name, entry).map(|value| (name, value)));
    }
    values
}

/// A route's `request_headers` or `response_headers`.
pub(super) fn changes(section: &mut Section<'_>, field: &'static str) -> Option<HeaderChanges> {
    let mut inner = section.take(field)?.section(&HEADERS, field)?;
    let cx = section.cx;
    let is_of_request = field == "request_headers";
    let changed = |name: &HeaderName, entry: &FieldEntry<'_>| match name {
        name if is_own(cx, name, &entry.name_span) => None,
        name if is_of_request && *name == HOST => host(&entry.item.clone().secret()),
        _ => value(&entry.item),
    };
    let removed = |item: &Item<'_>| header_name(item).filter(|name| !is_own(cx, name, &item.span));
    let changes = HeaderChanges {
        set: read_values(&mut inner, "set", changed),
        add: read_values(&mut inner, "add", changed),
        remove: inner.list("remove").iter().filter_map(removed).collect(),
    };
    let touched = changes.add.iter().map(|(name, _)| name).chain(&changes.remove);
    if is_of_request && touched.clone().any(|name| *name == HOST) {
        inner.fault(
            "`host` can neither be added nor removed",
            "expected it in `set`: a request has exactly one host",
        );
    }
    inner.finish();
    Some(changes)
}

fn is_own(cx: &Context<'_>, name: &HeaderName, span: &Span) -> bool {
    let own = OWN.contains(&name.as_str());
    if own {
        let expected = "the proxy sets it for each connection and message: remove it here";
        cx.error(span, format!("`{name}` cannot be changed"), expected);
    }
    own
}

fn value(item: &Item<'_>) -> Option<HeaderValue> {
    const EXPECTED: &str = "expected a text of visible ASCII, no space at either end";
    let read = |text: &str| HeaderValue::from_str(text).ok().filter(|_| text.trim() == text);
    item.clone().secret().form(EXPECTED, read)
}
