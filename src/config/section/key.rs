//! One part of a key: what a limit counts by, or what an upstream's `hash_key` has.

use crate::config::reader::{Item, Wrong, nearest};
use crate::request::key::{KeySource, KeySourceError};

const EXPECTED: &str = "expected `ip`, `path`, `method`, `host`, `route`, `header:NAME`, \
                        `cookie:NAME`, `query:NAME`, `param:NAME` or `cert`, or several of them with `|` \
                        between them";

/// A part of a key.
pub(super) fn key_source(item: &Item<'_>) -> Option<KeySource> {
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
