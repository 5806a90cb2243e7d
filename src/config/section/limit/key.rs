//! A limit's `key`: what the limit counts by.

use crate::config::reader::{Item, Section, Span, nearest};
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
    let mut sources: Vec<(KeySource, Span)> = Vec::new();
    for item in &items {
        let Some(source) = source(item) else { continue };
        if let Some((_, first)) = sources.iter().find(|(other, _)| *other == source) {
            let shown = item.text().is_some_and(|text| text.shown().is_some());
            let title = match shown {
                true => format!("the key has `{source}` twice"),
                false => "the key has this part twice".to_owned(),
            };
            item.fault(title, "remove it").related(first, "first here");
            continue;
        }
        sources.push((source, item.span.clone()));
    }
    (sources.len() == items.len()).then_some(sources)
}

fn source(item: &Item<'_>) -> Option<KeySource> {
    let text = item.text_as(EXPECTED)?;
    let expected = match text.text.parse() {
        Ok(source) => return Some(source),
        Err(KeySourceError::Unknown(_)) => text.shown().and_then(meant),
        Err(KeySourceError::Nameless(kind)) => {
            Some(format!("expected a name behind it: `{kind}:NAME`"))
        }
        Err(KeySourceError::Header(_)) => Some("expected the name of a header".to_owned()),
        Err(KeySourceError::Cookie(_)) => Some("expected the name of a cookie".to_owned()),
        Err(error @ KeySourceError::Alternatives(_)) => Some(error.to_string()),
    };
    text.refuse(expected.unwrap_or_else(|| EXPECTED.to_owned()));
    None
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
