//! The words of templates: nginx's variables, and Apache's directives.

use super::{ClientOrigin, LineTemplate, LogField, TimeRank};
use crate::replay::log::field;

/// Whether a template has variables of nginx.
pub(super) fn is_nginx(text: &str) -> bool {
    let mut rests = text.split('$').skip(1);
    rests.any(|rest| rest.starts_with(|c: char| c == '{' || c == '_' || c.is_ascii_alphabetic()))
}

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

/// Splits a template of Apache at directives such as `%>s` and `%{User-Agent}i`. In Apache's file, `\"` and `\t` are
/// escapes. The value of an unknown directive is skipped.
pub(super) fn apache(text: &str) -> Result<LineTemplate, String> {
    let text = text.replace("\\\"", "\"").replace("\\t", "\t");
    let mut template = LineTemplate::default();
    let mut rest = &*text;
    while let Some((literal, word)) = rest.split_once('%') {
        template.literal(literal);
        if let Some(after) = word.strip_prefix('%') {
            template.literal("%");
            rest = after;
            continue;
        }
        let (directive, after) = directive(word).ok_or_else(|| no_word(&format!("%{word}")))?;
        let spelling = format!("%{}", &word[..word.len() - after.len()]);
        rest = after;
        if directive == (Directive { argument: None, letter: 'U' }) && after.starts_with("%q") {
            rest = &after[2..];
            template.field(&spelling, Some(LogField::Target));
            continue;
        }
        // The value of this directive has its own brackets.
        let is_clock = directive == (Directive { argument: None, letter: 't' });
        template.literal(if is_clock { "[" } else { "" });
        template.field(&spelling, directive.meaning());
        template.literal(if is_clock { "]" } else { "" });
    }
    template.literal(rest);
    Ok(template)
}

/// A directive of Apache's `LogFormat`, without its conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Directive<'t> {
    argument: Option<&'t str>,
    letter: char,
}

/// The directive after a `%`, and what follows it.
fn directive(text: &str) -> Option<(Directive<'_>, &str)> {
    // Conditions: `!200,304`, `<` and `>`.
    let text = text.trim_start_matches(|c: char| c.is_ascii_digit() || "!,<>".contains(c));
    let (argument, text) = match text.strip_prefix('{') {
        Some(rest) => rest.split_once('}').map(|(argument, rest)| (Some(argument), rest))?,
        None => (None, text),
    };
    // Two letters, such as `%^ti`, are trailers.
    let text = text.strip_prefix('^').map_or(text, |rest| rest.get(1..).unwrap_or_default());
    let letter = text.chars().next().filter(char::is_ascii_alphabetic)?;
    Some((Directive { argument, letter }, &text[1..]))
}

impl Directive<'_> {
    fn meaning(self) -> Option<LogField> {
        let field = match (self.letter, self.argument) {
            ('a', None) => LogField::Client(ClientOrigin::Client),
            ('h', None) | ('a', Some("c")) => LogField::Client(ClientOrigin::Peer),
            ('t', None) => LogField::Time(TimeRank::Began),
            ('t', Some(format)) if !format.ends_with("_frac") => LogField::Time(TimeRank::Began),
            ('r', None) => LogField::Request,
            ('m', None) => LogField::Method,
            ('U', None) => LogField::Path,
            ('q', None) => LogField::Query,
            ('s', None) => LogField::Status,
            ('b' | 'B' | 'O', None) => LogField::Bytes,
            ('D', None) | ('T', Some("us")) => LogField::Duration(1_000_000),
            ('T', Some("ms")) => LogField::Duration(1_000),
            ('T', None | Some("s")) => LogField::Duration(1),
            ('v' | 'V', None) => LogField::Host,
            ('u', None) => LogField::User,
            ('i', Some(name)) if name.eq_ignore_ascii_case("host") => LogField::Host,
            ('i', Some(name)) if name.eq_ignore_ascii_case("x-forwarded-for") => {
                LogField::ForwardedFor
            }
            ('i', Some(name)) => LogField::Header(name.into()),
            _ => return None,
        };
        Some(field)
    }
}
