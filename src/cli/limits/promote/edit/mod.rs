//! Gives a limit the figures of its candidate, in the text of a configuration. `toml_edit` keeps the rest of the text:
//! the order, the spaces and the comments.

use toml_edit::{DocumentMut, Item, TableLike, Value};

/// The text after the edit. The limit gets these fields from its candidate, and loses those that the candidate does not
/// have. The candidate is removed. `None` if the text has no such limit with a candidate, or if the limit is written
/// between braces on several lines.
pub(super) fn promoted(text: &str, limit: &str, fields: &[&str]) -> Option<String> {
    let mut document: DocumentMut = text.parse().ok()?;
    let limits = document.get_mut("limits")?.as_table_like_mut()?;
    let item = limits.get_mut(limit)?;
    let is_inline = item.is_inline_table();
    if is_inline && item.to_string().contains('\n') {
        return None;
    }
    let limit = item.as_table_like_mut()?;
    let candidate = limit.remove("candidate")?;
    let candidate = candidate.as_table_like()?;
    for field in fields {
        match candidate.get(field).and_then(Item::as_value) {
            Some(value) => set(limit, field, value.clone()),
            None => drop(limit.remove(field)),
        }
    }
    if is_inline {
        // `toml_edit` keeps the space before `}` with the last value. The last value may have changed.
        limit.fmt();
    }
    let edited = document.to_string();
    Some(match text.contains("\r\n") {
        true => edited.replace("\r\n", "\n").replace('\n', "\r\n"),
        false => edited,
    })
}

/// Gives a field this value. The comment after the old value stays.
fn set(limit: &mut dyn TableLike, field: &str, mut value: Value) {
    value.decor_mut().clear();
    match limit.get_mut(field).and_then(Item::as_value_mut) {
        Some(known) => {
            *value.decor_mut() = known.decor().clone();
            *known = value;
        }
        None => drop(limit.insert(field, Item::Value(value))),
    }
}

#[cfg(test)]
mod tests;
