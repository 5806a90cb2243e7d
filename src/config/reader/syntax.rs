//! Text that is not TOML. Of all syntax errors, finds the first cause and its line.

use toml::de::Error;

use super::problem::{Problem, Span};

const TITLE: &str = "this is not TOML";

/// The first error. A later error may be a consequence of the first.
pub(crate) fn first(text: &str, errors: &[Error]) -> Problem {
    let position = |error: &Error| error.span().unwrap_or(text.len()..text.len());
    let Some(error) = errors.iter().min_by_key(|error| position(error).start) else {
        return Problem::general(TITLE);
    };
    let span = position(error);
    if let Some(open) = open_bracket(text, span.start) {
        // The parser reads on after the open bracket, and reports the error on a later line.
        let closing =
            if text.get(open..).is_some_and(|rest| rest.starts_with('{')) { '}' } else { ']' };
        return Problem::error(open..open + 1, TITLE, format!("expected a `{closing}` for this"));
    }
    if error.message() == "duplicate key" {
        let unplaced = || Problem::error(span.clone(), TITLE, error.message());
        return repeated(text, span.start).unwrap_or_else(unplaced);
    }
    if let Some(word) = bare_word(text, &span) {
        let expected = format!("a text needs quotes: \"{word}\"");
        return Problem::error(span.start..span.start + word.len(), TITLE, expected);
    }
    Problem::error(span, TITLE, error.message())
}

/// The last bracket of a value that is still open at `at`. `None` if the bracket and `at` are
/// on one line.
fn open_bracket(text: &str, at: usize) -> Option<usize> {
    let mut open = Vec::new();
    let mut rest = text.char_indices().take_while(|(position, _)| *position < at).peekable();
    let mut is_value = false;
    while let Some((position, c)) = rest.next() {
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
            '[' | '{' if is_value => open.push(position),
            ']' | '}' if is_value => drop(open.pop()),
            _ => {}
        }
    }
    let position = open.pop()?;
    let rest = text.get(position..at)?;
    // Within one line, the parser's own error has the right position.
    rest.contains('\n').then_some(position)
}

/// A line with a heading, or with a key and its value.
struct DefinitionLine {
    /// The names from the root, with dots between them.
    path: String,
    span: Span,
    /// Whether a heading has two brackets. `None` for a key.
    is_list: Option<bool>,
}

/// The problem of a heading or key at `at` that an earlier line has too. `None` if no such line is found: one of
/// the two is in a table within braces.
fn repeated(text: &str, at: usize) -> Option<Problem> {
    /// The sections whose headings have two brackets.
    const LISTS: [&str; 2] = ["routes", "tests"];
    let lines = definitions(text, at);
    let (here, before) = lines.split_last().filter(|(here, _)| here.span.contains(&at))?;
    let first = before.iter().rev().find(|line| line.path == here.path)?;
    let path = &here.path;
    if let (Some(is_list), Some(was_list)) = (here.is_list, first.is_list)
        && is_list != was_list
    {
        let should_be_list = LISTS.contains(&path.as_str());
        let (wrong, right) = if is_list == should_be_list { (first, here) } else { (here, first) };
        let (found, expected) = match should_be_list {
            true => (format!("[{path}]"), format!("[[{path}]]")),
            false => (format!("[[{path}]]"), format!("[{path}]")),
        };
        let title = format!("`{found}` stands beside `{expected}`");
        let expected = format!("expected `{expected}` here too");
        return Some(
            Problem::error(wrong.span.clone(), title, expected)
                .related(&right.span, "the other one"),
        );
    }
    let row = 1 + text.bytes().take(first.span.start).filter(|byte| *byte == b'\n').count();
    let expected = format!("expected it once: merge it with line {row}, or remove it");
    let problem = Problem::error(here.span.clone(), format!("`{path}` is there twice"), expected);
    Some(problem.related(&first.span, "first here"))
}

/// The headings and keys up to the line of `at`.
fn definitions(text: &str, at: usize) -> Vec<DefinitionLine> {
    let (mut lines, mut table, mut start) = (Vec::new(), "", 0);
    for line in text.split_inclusive('\n') {
        if at < start {
            break;
        }
        let begin = start + line.len() - line.trim_start().len();
        start += line.len();
        let line = line.trim();
        let (path, is_list, end) = if let Some(inner) = line.strip_prefix('[') {
            let (inner, is_list) = inner.strip_prefix('[').map_or((inner, false), |it| (it, true));
            table = inner.split(']').next().unwrap_or_default().trim();
            (table.to_owned(), Some(is_list), line.rfind(']').map_or(line.len(), |end| end + 1))
        } else if let Some((key, _)) = line.split_once('=') {
            let key = key.trim_end();
            let path = if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") };
            (path, None, key.len())
        } else {
            continue;
        };
        lines.push(DefinitionLine { path, span: begin..begin + end, is_list });
    }
    lines
}

/// A word without quotes that stands where a value is expected.
fn bare_word<'t>(text: &'t str, span: &Span) -> Option<&'t str> {
    let before = text.get(..span.start)?.trim_end_matches([' ', '\t', '\n']);
    let rest = text.get(span.start..)?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && !matches!(c, '-' | '_' | ':' | '.'))?;
    let word = rest.get(..end)?;
    let line = before.rsplit('\n').next().unwrap_or_default();
    let is_heading = line.trim_start().starts_with('[');
    let is_value = before.ends_with(['=', '[', ',']) && !is_heading;
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
            ("a word", "[limits.a]\nkey = [ip]\n", "2:8", "needs quotes: \"ip\""),
            ("a word alone", "mode = shadow\n", "1:8", "needs quotes: \"shadow\""),
            (
                "one bracket after two",
                "[[routes]]\npath = \"/a\"\n[routes] # b\n",
                "3:1",
                "`[routes]` stands beside `[[routes]]`: expected `[[routes]]` here too",
            ),
            (
                "one bracket in front of two",
                "[tests]\nsend = \"/a\"\n[[tests]]\n",
                "1:1",
                "`[tests]` stands beside `[[tests]]`: expected `[[tests]]` here too",
            ),
            (
                "two brackets after one",
                "[limits.a]\n[[limits.a]]\n",
                "2:1",
                "expected `[limits.a]` here too",
            ),
            (
                "a table",
                "[limits.a]\n[limits.b]\n[ limits.a ]\n",
                "3:1",
                "`limits.a` is there twice: expected it once: merge it with line 1, or",
            ),
            ("the root's table", "[server]\n[log]\n[server]\n", "3:1", "merge it with line 1"),
            (
                "a key",
                "[[routes]]\npath = \"/\"\n[[routes]]\npath = \"/a\"\n  path = \"/b\"\n",
                "5:3",
                "`routes.path` is there twice: expected it once: merge it with line 4",
            ),
            ("a key and a table", "[a]\nb = 1\n[a.b]\n", "3:1", "merge it with line 2"),
            (
                "a key within braces",
                "[limits.a]\nban = { after = 1, after = 2 }\n",
                "2:20",
                "duplicate key",
            ),
        ] {
            let error = error(text);
            assert!(error.starts_with(line) && error.contains(expected), "{name}: {error}");
        }
    }
}
