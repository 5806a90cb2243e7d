//! Text that is not TOML. Of all syntax errors, finds the first cause and its line.

use toml::de::Error;

use super::problem::{Problem, Span};

const TITLE: &str = "this is not TOML";

/// The first error. A later error may be a consequence of the first.
pub(crate) fn first(text: &str, errors: &[Error]) -> Problem {
    let place = |error: &Error| error.span().unwrap_or(text.len()..text.len());
    let Some(error) = errors.iter().min_by_key(|error| place(error).start) else {
        return Problem::general(TITLE);
    };
    let span = place(error);
    if let Some(open) = open_bracket(text, span.start) {
        // The parser reads on after the open bracket, and reports the error on a later line.
        let closing =
            if text.get(open..).is_some_and(|rest| rest.starts_with('{')) { '}' } else { ']' };
        return Problem::error(open..open + 1, TITLE, format!("expected a `{closing}` for this"));
    }
    if let Some(word) = bare_word(text, &span) {
        let expected = format!("a text stands in quotes: \"{word}\"");
        return Problem::error(span.start..span.start + word.len(), TITLE, expected);
    }
    Problem::error(span, TITLE, error.message())
}

/// The last bracket of a value that is still open at the place `at`. `None` where the bracket and `at` are
/// on one line.
fn open_bracket(text: &str, at: usize) -> Option<usize> {
    let mut open = Vec::new();
    let mut rest = text.char_indices().take_while(|(place, _)| *place < at).peekable();
    let mut is_value = false;
    while let Some((place, c)) = rest.next() {
        match c {
            '\n' => is_value = !open.is_empty(),
            '#' => while rest.next_if(|(_, c)| *c != '\n').is_some() {},
            '=' => is_value = true,
            quote @ ('"' | '\'') => {
                while let Some((_, c)) = rest.next_if(|(_, c)| *c != '\n') {
                    match c {
                        '\\' if quote == '"' => drop(rest.next()),
                        c if c == quote => break,
                        _ => {}
                    }
                }
            }
            // The brackets of a heading are not counted.
            '[' | '{' if is_value => open.push(place),
            ']' | '}' if is_value => drop(open.pop()),
            _ => {}
        }
    }
    let place = open.pop()?;
    let behind = text.get(place..at)?;
    // Within one line, the parser's own error has the right place.
    behind.contains('\n').then_some(place)
}

/// A word without quotes that stands where a value is expected.
fn bare_word<'t>(text: &'t str, span: &Span) -> Option<&'t str> {
    let before = text.get(..span.start)?.trim_end_matches([' ', '\t', '\n']);
    let rest = text.get(span.start..)?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && !matches!(c, '-' | '_' | ':' | '.'))?;
    let word = rest.get(..end)?;
    let is_value = before.ends_with(['=', '[', ',']);
    (is_value && word.starts_with(char::is_alphabetic)).then_some(word)
}

#[cfg(test)]
mod tests {
    use crate::config::{Overrides, parse};

    /// The line of the only error, and what was expected there.
    fn error(text: &str) -> String {
        let problems = parse("a.toml", text, &|_| None, &Overrides::default()).unwrap_err();
        let lines: Vec<_> = problems.lines().collect();
        assert_eq!(lines.len(), 1, "{lines:?}");
        lines[0].trim_start_matches("a.toml:").to_owned()
    }

    #[test]
    fn one_error_is_told_at_the_line_that_causes_it() {
        for (name, text, line, expected) in [
            ("a list", "[limits.a]\nkey = [\"ip\"\nrate = \"1/s\"\nburst = 2\n", "2:7", "a `]`"),
            ("a table", "[limits.a]\ncost = { header = \"x\"\nrate = \"1/s\"\n", "2:8", "a `}`"),
            ("a list to the end", "servers = [\n  \"http://a\",\n", "1:11", "a `]`"),
            ("a heading", "[limits.a\nkey = [\"ip\"]\n[limits.b]\n", "1:", ""),
            ("a word", "[limits.a]\nkey = [ip]\n", "2:8", "in quotes: \"ip\""),
            ("a word alone", "mode = shadow\n", "1:8", "in quotes: \"shadow\""),
        ] {
            let error = error(text);
            assert!(error.starts_with(line) && error.contains(expected), "{name}: {error}");
        }
    }
}
