//! A limit's `key`: what the limit counts by.

use super::super::values::once;
use crate::config::reader::{Item, Section, Span, Wrong, nearest};
use crate::request::key::{KeySource, KeySourceError};

const EXPECTED: &str = "expected `ip`, `path`, `method`, `host`, `route`, `header:NAME`, \
                        `cookie:NAME`, `query:NAME`, `param:NAME` or `cert`, or several of them with `|` \
                        between them";

/// The parts of a key with their places. `None` where a part is wrong.
pub(super) fn sources(section: &mut Section<'_>) -> Option<Vec<(KeySource, Span)>> {
    let items = match section.take("key") {
        Some(item) => item.list()?,
        None => {
            section.cx.warning(
                &section.span,
                format!("{} names no `key`: one bucket for all requests", section.title),
                "expected `key = [\"ip\"]` here, or `key = []` where one bucket is meant",
            );
            Vec::new()
        }
    };
    let sources = once(&items, source, |one, other| one == other, KeySource::to_string);
    (sources.len() == items.len()).then_some(sources)
}

fn source(item: &Item<'_>) -> Option<KeySource> {
    item.parse(EXPECTED, |text| {
        text.parse().map_err(|error| match error {
            KeySourceError::Unknown(_) => meant(text).map_or(Wrong::Expected, Wrong::Because),
            KeySourceError::Nameless(kind) => {
                Wrong::Other(format!("expected a name behind it: `{kind}:NAME`"))
            }
            KeySourceError::Header(_) => Wrong::other("expected the name of a header"),
            KeySourceError::Cookie(_) => Wrong::other("expected the name of a cookie"),
            error @ KeySourceError::Alternatives(_) => Wrong::Other(error.to_string()),
        })
    })
}

/// The key part whose spelling is nearest, with the name that was written.
fn meant(text: &str) -> Option<String> {
    let (kind, name) = text.split_once(':').unwrap_or((text, "NAME"));
    let kinds = KeySource::SPELLINGS.map(|spelling| spelling.trim_end_matches(":NAME"));
    let near = nearest(kind, kinds)?;
    if near == kind {
        return None;
    }
    let named = KeySource::SPELLINGS.contains(&format!("{near}:NAME").as_str());
    Some(match named {
        true => format!("did you mean `{near}:{name}`?"),
        false => format!("did you mean `{near}`?"),
    })
}
