//! Gives a limit the figures of its candidate, in the text of a configuration. All other bytes stay.
//!
//! `toml_edit` only says where each key and each value stands. It does not write the text: it would make all line
//! ends the same, and would remove a comment above the candidate.

use std::ops::Range;

use toml_edit::{Document, Item, TableLike, Value};

/// The text after the edit: for these fields, `limit` has the values of its candidate, and the candidate is gone. A
/// field that the candidate does not have is removed. `None` where the text has no such limit with a candidate.
pub(super) fn promoted(text: &str, limit: &str, fields: &[&str]) -> Option<String> {
    let wanted = candidate_values(text, limit, fields)?;
    let mut text = text.to_owned();
    // After each step the text is read again, because the places behind the edit have changed.
    while let Some(range) = candidate_part(&text, limit) {
        text.replace_range(range, "");
    }
    for (field, value) in fields.iter().zip(wanted) {
        let (range, new) = field_edit(&text, limit, field, value.as_deref())?;
        text.replace_range(range, &new);
    }
    Some(text)
}

/// The table of a limit.
struct LimitPlaces<'d> {
    fields: &'d dyn TableLike,
    /// Whether its fields stand between braces. Otherwise each field has a line of its own.
    is_inline: bool,
}

impl<'d> LimitPlaces<'d> {
    fn find(document: &'d Document<&str>, limit: &str) -> Option<Self> {
        let limits = document.as_item().get("limits")?;
        let item = limits.as_table_like()?.get(limit)?;
        let is_inline =
            [limits, item].iter().any(|it| matches!(it, Item::Value(Value::InlineTable(_))));
        Some(Self { fields: item.as_table_like()?, is_inline })
    }

    /// The bytes of a field, with its comma or with its whole line. `table` is the limit's table, or a table of dotted
    /// keys in it.
    fn entry(&self, text: &str, table: &dyn TableLike, field: &str) -> Option<Range<usize>> {
        let (key, item) = table.get_key_value(field)?;
        let (key, value) = (key.span()?, item.span()?);
        Some(match self.is_inline {
            true => entry_in_braces(text, key.start, value.end),
            false => lines(text, key.start..value.end),
        })
    }
}

/// The candidate's values as they are spelled. `None` for a field that it does not have.
fn candidate_values(text: &str, limit: &str, fields: &[&str]) -> Option<Vec<Option<String>>> {
    let document = Document::parse(text).ok()?;
    let candidate =
        LimitPlaces::find(&document, limit)?.fields.get("candidate")?.as_table_like()?;
    let value = |field: &&str| Some(text.get(candidate.get(field)?.span()?)?.to_owned());
    Some(fields.iter().map(value).collect())
}

/// The bytes of a candidate. If its fields are dotted keys, the bytes of the last field. `None` where nothing of the
/// candidate is left.
fn candidate_part(text: &str, limit: &str) -> Option<Range<usize>> {
    let document = Document::parse(text).ok()?;
    let limit = LimitPlaces::find(&document, limit)?;
    let candidate = limit.fields.get("candidate")?;
    let is_dotted = match candidate {
        Item::Table(table) if !table.is_dotted() => return section(text, table),
        Item::Table(_) => true,
        Item::Value(Value::InlineTable(table)) => table.is_dotted(),
        _ => false,
    };
    if !is_dotted {
        return limit.entry(text, limit.fields, "candidate");
    }
    let table = candidate.as_table_like()?;
    let place = |field: &str| Some(table.get(field)?.span()?.end);
    let last = table.iter().map(|(field, _)| field).max_by_key(|field| place(field))?;
    limit.entry(text, table, last)
}

/// The bytes of a table with a header. If the table stands between two empty lines, the first of them belongs to
/// these bytes.
fn section(text: &str, table: &toml_edit::Table) -> Option<Range<usize>> {
    let header = table.span()?;
    let ends = table.iter().filter_map(|(_, item)| Some(item.span()?.end));
    let Range { mut start, end } = lines(text, header.start..ends.max().unwrap_or(header.end));
    let is_empty = |line: &str| line.trim().is_empty();
    if text[end..].lines().next().is_none_or(is_empty) {
        let above = line_start(text, start.saturating_sub(1));
        if is_empty(&text[above..start]) {
            start = above;
        }
    }
    Some(start..end)
}

/// The edit that gives the limit this value: the bytes to replace, and the new text. `None` where the limit has no
/// rate.
fn field_edit(
    text: &str,
    limit: &str,
    field: &str,
    value: Option<&str>,
) -> Option<(Range<usize>, String)> {
    let document = Document::parse(text).ok()?;
    let limit = LimitPlaces::find(&document, limit)?;
    let known = limit.fields.get(field);
    let Some(value) = value else {
        let entry = known.and_then(|_| limit.entry(text, limit.fields, field));
        return Some((entry.unwrap_or(0..0), String::new()));
    };
    if let Some(known) = known {
        return Some((known.span()?, value.to_owned()));
    }
    // A new field is put behind the rate, and is written like the rate.
    let (key, rate) = limit.fields.get_key_value("rate")?;
    let (key, rate) = (key.span()?, rate.span()?);
    if limit.is_inline {
        return Some((rate.end..rate.end, format!(", {field} = {value}")));
    }
    let before = &text[line_start(text, key.start)..key.start];
    let equals = &text[key.end..rate.start];
    // If the equals signs of several lines stand below each other, the new line follows them.
    let gap = equals.len() - equals.trim_start().len();
    let gap_of_field = match gap {
        0 | 1 => gap,
        _ => (key.len() + gap).saturating_sub(field.len()).max(1),
    };
    let line = format!("{before}{field}{}{}{value}", " ".repeat(gap_of_field), &equals[gap..]);
    let end = lines(text, rate).end;
    let newline = if text.contains("\r\n") { "\r\n" } else { "\n" };
    Some(match text[..end].ends_with('\n') {
        true => (end..end, format!("{line}{newline}")),
        false => (end..end, format!("{newline}{line}")),
    })
}

/// The whole lines of these bytes.
fn lines(text: &str, range: Range<usize>) -> Range<usize> {
    let end = text[range.end..].find('\n').map_or(text.len(), |place| range.end + place + 1);
    line_start(text, range.start)..end
}

fn line_start(text: &str, place: usize) -> usize {
    text[..place].rfind('\n').map_or(0, |newline| newline + 1)
}

/// The bytes of a field between braces, with one comma beside it. If the field has lines of its own, these lines.
/// `key` is the start of the last part of its key.
fn entry_in_braces(text: &str, key: usize, end: usize) -> Range<usize> {
    let behind = text[..key].rfind([',', '{', '\n']).map_or(0, |place| place + 1);
    let start = key - text[behind..key].trim_start().len();
    let comma = text[end..].trim_start().strip_prefix(',');
    let end_with_comma = comma.map_or(end, |rest| text.len() - rest.len());
    let rest_of_line = text[end_with_comma..].lines().next().unwrap_or_default().trim_start();
    let is_first = text[line_start(text, start)..start].trim().is_empty();
    if is_first && (rest_of_line.is_empty() || rest_of_line.starts_with('#')) {
        return lines(text, start..end_with_comma);
    }
    if let Some(rest) = comma {
        return start..text.len() - rest.trim_start_matches([' ', '\t']).len();
    }
    let before = text[..start].trim_end();
    match before.strip_suffix(',') {
        Some(before) => before.len()..end,
        None => start..end,
    }
}

#[cfg(test)]
mod tests;
