//! A limit's `key`: what the limit counts by.

use super::super::key::key_source;
use super::super::values::once;
use crate::config::reader::{Section, Span};
use crate::request::key::KeySource;

/// The parts of a key with their places. `None` where a part is wrong. A Redisson limiter is one bucket for all
/// requests unless its key says more.
pub(super) fn sources(
    section: &mut Section<'_>,
    is_redisson: bool,
) -> Option<Vec<(KeySource, Span)>> {
    let items = match section.take("key") {
        Some(item) => item.list()?,
        None if is_redisson || section.is_misspelt("key") => Vec::new(),
        None => {
            section.cx.warning(
                &section.span,
                format!("{} names no `key`: one bucket for all requests", section.title),
                "expected `key = [\"ip\"]` here, or `key = []` where one bucket is meant",
            );
            Vec::new()
        }
    };
    let sources = once(&items, key_source, |one, other| one == other, KeySource::to_string);
    (sources.len() == items.len()).then_some(sources)
}
