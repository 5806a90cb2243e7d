//! The problems of a configuration: what was found, where, and what was expected.

use std::fmt;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};

/// A range of bytes in the file.
pub(crate) type Span = Range<usize>;

/// Whether a configuration with this problem can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// The configuration cannot be used.
    Error,
    /// The configuration can be used, but probably does not do what was meant.
    Warning,
}

/// One problem of a configuration.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) severity: Severity,
    /// What was found.
    title: String,
    /// The position in the file. `None` if the problem has none.
    span: Option<Span>,
    /// What was expected there.
    expected: String,
    /// Another position that explains the problem, with a label.
    pub(super) related: Option<(Span, String)>,
    /// What to do.
    pub(super) help: Option<String>,
    /// Whether the line of the file may hold a secret, and is not shown.
    pub(super) secret: bool,
}

impl Problem {
    /// An error at a position: what was found there, and what was expected.
    pub(crate) fn error(span: Span, title: impl Into<String>, expected: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            title: title.into(),
            span: Some(span),
            expected: expected.into(),
            related: None,
            help: None,
            secret: false,
        }
    }

    /// An error without a position in the file.
    pub(crate) fn general(title: impl Into<String>) -> Self {
        Self { span: None, ..Self::error(0..0, title, "") }
    }

    /// Adds advice what to do.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Names another position that explains the problem.
    pub(super) fn related(mut self, span: &Span, label: impl Into<String>) -> Self {
        self.related = Some((span.clone(), label.into()));
        self
    }

    /// The same problem as a warning.
    pub(crate) fn into_warning(self) -> Self {
        Self { severity: Severity::Warning, ..self }
    }

    /// Replaces control characters by escapes. They come from values of the file. They would break a line of
    /// the log in two, or change the colours of a terminal.
    fn escape(&mut self) {
        let label = self.related.as_mut().map(|(_, label)| label);
        let texts = [Some(&mut self.title), Some(&mut self.expected), label, self.help.as_mut()];
        for text in texts.into_iter().flatten() {
            while let Some(control) = text.chars().find(|char| char.is_control()) {
                *text = text.replace(control, &control.escape_default().to_string());
            }
        }
    }
}

/// All problems of one file, in the order of the file. Can be empty. Problems without a position come first.
#[derive(Clone, Debug)]
pub struct Problems {
    file: String,
    text: String,
    /// Where each line of the text starts.
    starts: Vec<usize>,
    list: Vec<Problem>,
}

impl Problems {
    pub(crate) fn new(file: &str, text: &str, mut list: Vec<Problem>) -> Self {
        list.sort_by_key(|problem| problem.span.as_ref().map(|span| span.start));
        list.iter_mut().for_each(Problem::escape);
        let starts = line_starts(text);
        // The renderer replaces all other control characters, but would send these to the terminal. The dot has as many
        // bytes as each of these characters, so all positions stay right.
        let text = text.replace(|c| matches!(c, '\u{80}'..='\u{9f}'), "\u{b7}");
        Self { file: file.to_owned(), text, starts, list }
    }

    /// Adds warnings that have no position in the file.
    pub(crate) fn warn(&mut self, titles: impl IntoIterator<Item = String>) {
        for title in titles {
            let mut warning = Problem::general(title).into_warning();
            warning.escape();
            self.list.insert(0, warning);
        }
    }

    /// The problems in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.list.iter()
    }

    /// Whether there are no problems.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether at least one problem is an error.
    pub(crate) fn has_errors(&self) -> bool {
        self.list.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// Each problem in several lines, with the file's text and the position underlined. An empty line
    /// separates two problems. `colour` says whether the text has escape codes for colours. After a hundred problems
    /// the others have one line each.
    pub fn render(&self, colour: Colour) -> String {
        const MOST: usize = 100;
        let renderer = match colour {
            Colour::Never => Renderer::plain(),
            Colour::Always => Renderer::styled(),
        };
        let each = self.list.iter().take(MOST).map(|problem| {
            let mut text = renderer.render(&[self.group(problem)]);
            text.push('\n');
            text
        });
        let others: String = self.lines().skip(MOST).map(|line| line + "\n").collect();
        each.chain(Some(others).filter(|it| !it.is_empty())).collect::<Vec<_>>().join("\n")
    }

    /// Each problem in one line: `proxy.toml:12:8: what was found: what was expected`. Lines and columns
    /// count from 1, columns in characters. A line never quotes text of the file that may be a secret.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.list.iter().map(|problem| {
            let Problem { title, expected, .. } = problem;
            let place = problem.span.as_ref().map(|span| {
                let (row, column) = self.position(span);
                format!("{}:{row}:{column}: ", self.file)
            });
            let place = place.unwrap_or_default();
            let kind = if problem.severity == Severity::Warning { "warning: " } else { "" };
            let colon = if expected.is_empty() { "" } else { ": " };
            let help = problem.help.as_ref().map_or(String::new(), |help| format!("; {help}"));
            format!("{place}{kind}{title}{colon}{expected}{help}")
        })
    }

    /// A problem of this list as JSON. Line and column count from 1, and are `null` for a problem without a
    /// position.
    pub(crate) fn to_json(&self, problem: &Problem) -> serde_json::Value {
        let position = problem.span.as_ref().map(|span| self.position(span));
        serde_json::json!({
            "file": self.file,
            "line": position.map(|(line, _)| line),
            "column": position.map(|(_, column)| column),
            "found": problem.title,
            "expected": Some(&problem.expected).filter(|text| !text.is_empty()),
            "help": problem.help,
        })
    }

    fn group<'p>(&'p self, problem: &'p Problem) -> Group<'p> {
        let level = match problem.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let mut group = Group::with_title(level.primary_title(&problem.title));
        if let Some(span) = problem.span.as_ref().filter(|it| problem.secret || self.is_long(it)) {
            let (row, column) = self.position(span);
            let origin = Origin::path(&self.file).line(row).char_column(column);
            group = group.element(origin).element(Level::NOTE.message(&problem.expected));
        } else if let Some(span) = &problem.span {
            let span = self.visible(span);
            let related = problem.related.as_ref().map(|(span, label)| (self.visible(span), label));
            // The renderer reads all text that it gets. It gets only the lines from one position to the other.
            let other = related.as_ref().map_or(&span, |(span, _)| span);
            let (row, start) = self.line(span.start.min(other.start));
            let (last, _) = self.line(span.start.max(other.start));
            let end = self.starts.get(last).copied().unwrap_or(self.text.len());
            let local = |span: &Span| span.start - start..span.end - start;
            let mut snippet = Snippet::source(self.text.get(start..end).unwrap_or_default())
                .path(&self.file)
                .line_start(row)
                .annotation(AnnotationKind::Primary.span(local(&span)).label(&problem.expected));
            if let Some((span, label)) = related {
                let context = AnnotationKind::Context.span(local(&span));
                snippet = snippet.annotation(context.label(label));
            }
            group = group.element(snippet);
        }
        if let Some(help) = &problem.help {
            group = group.element(Level::HELP.message(help));
        }
        group
    }

    /// The line and the column at which `span` starts. Both count from 1, columns in characters.
    fn position(&self, span: &Span) -> (usize, usize) {
        let offset = self.boundary(span.start);
        let (row, start) = self.line(offset);
        let before = self.text.get(start..offset).unwrap_or_default();
        (row, before.chars().count() + 1)
    }

    /// The line of a byte, counted from 1, and the offset at which this line starts.
    fn line(&self, offset: usize) -> (usize, usize) {
        let row = self.starts.partition_point(|start| *start <= offset);
        (row, self.starts.get(row.saturating_sub(1)).copied().unwrap_or_default())
    }

    /// Whether the line where `span` starts is too long to read. Such a line is not shown.
    fn is_long(&self, span: &Span) -> bool {
        const LONGEST: usize = 10_000;
        let (row, start) = self.line(span.start);
        self.starts.get(row).copied().unwrap_or(self.text.len()) - start > LONGEST
    }

    /// The part of `span` on its first line. If a value has many lines, only the first line is underlined.
    fn visible(&self, span: &Span) -> Span {
        let (start, end) = (self.boundary(span.start), self.boundary(span.end));
        let text = self.text.get(start..end).unwrap_or_default();
        let first = text.split(['\n', '\r']).next().unwrap_or_default();
        start..start + first.len()
    }

    /// The start of the character that holds this byte.
    fn boundary(&self, offset: usize) -> usize {
        let is_boundary = |offset: &usize| self.text.is_char_boundary(*offset);
        (0..=offset.min(self.text.len())).rev().find(is_boundary).unwrap_or_default()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().collect::<Vec<_>>().join("\n"))
    }
}

impl std::error::Error for Problems {}

/// Where each line of a text starts.
pub(super) fn line_starts(text: &str) -> Vec<usize> {
    let breaks = text.match_indices('\n').map(|(newline, _)| newline + 1);
    std::iter::once(0).chain(breaks).collect()
}

/// Whether a text has escape codes for colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// For files and pipes.
    Never,
    /// For a terminal.
    Always,
}

/// The name in `names` that `found` was probably meant to be.
pub(crate) fn nearest<'n>(
    found: &str,
    names: impl IntoIterator<Item = &'n str>,
) -> Option<&'n str> {
    let found = found.to_lowercase().replace('_', "-");
    // A third of the letters may be wrong. In a short name, one letter may be wrong.
    let tolerance = (found.chars().count() / 3).max(1);
    let plain = |name: &str| name.to_lowercase().replace('_', "-");
    let names: Vec<&str> = names.into_iter().collect();
    let nearest = names
        .iter()
        .map(|name| (strsim::damerau_levenshtein(&found, &plain(name)), *name))
        .filter(|(distance, _)| *distance <= tolerance)
        .min_by_key(|(distance, _)| *distance);
    if let Some((_, name)) = nearest {
        return Some(name);
    }
    // `warning` for `warn`, `hash` for `hashed`: accepted if a single name begins alike.
    let mut alike = names.iter().filter(|name| {
        let name = plain(name);
        found.len().min(name.len()) >= SHORTEST_START
            && (name.starts_with(&found) || found.starts_with(&name))
    });
    alike.next().filter(|_| alike.next().is_none()).copied()
}

/// Two names begin alike if at least this number of letters at the beginning is the same.
const SHORTEST_START: usize = 3;

/// `a`, `b` and `c`, in backquotes.
pub(crate) fn enumerate<'n>(names: impl IntoIterator<Item = &'n str>, joint: &str) -> String {
    let mut names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    match names.pop() {
        None => String::new(),
        Some(last) if names.is_empty() => last,
        Some(last) => format!("{} {joint} {last}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests;
