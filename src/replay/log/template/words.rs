//! The words of templates: nginx's variables.

use super::{LineTemplate, LogField};
use crate::replay::log::field;

/// Splits a template of nginx at `$name` and `${name}`. The value of an unknown name is skipped.
pub(super) fn nginx(text: &str) -> Result<LineTemplate, String> {
    let mut template = LineTemplate::default();
    let mut rest = text;
    while let Some((literal, word)) = rest.split_once('$') {
        template.literal(literal);
        let (name, after) = match word.strip_prefix('{') {
            Some(braced) => braced.split_once('}').ok_or_else(|| no_word(&format!("${word}")))?,
            None => {
                let is_part = |c: char| c == '_' || c.is_ascii_alphanumeric();
                let end = word.find(|c| !is_part(c)).unwrap_or(word.len());
                word.split_at(end)
            }
        };
        if name.is_empty() {
            return Err(no_word("$"));
        }
        let whole = after.strip_prefix("$is_args$args").filter(|_| name.ends_with("uri"));
        let meaning = match whole {
            Some(_) => Some(LogField::Target),
            None => field::named(name),
        };
        template.field(&format!("${name}"), meaning);
        rest = whole.unwrap_or(after);
    }
    template.literal(rest);
    Ok(template)
}

/// The error for a word that begins and does not end.
fn no_word(text: &str) -> String {
    format!("`{text}` is no word of a template")
}
