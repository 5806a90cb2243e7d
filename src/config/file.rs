//! Reads the file's tree: takes fields, notes problems, and finds what nobody took.
//!
//! Every method that reads a value notes what is wrong with it and answers `None`, or the default
//! that it was given: the caller goes on, so that all problems of a file are found in one go, and
//! what was built is thrown away in the end.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use toml::de::DeTable;

use super::fields::Shape;
pub(super) use super::item::{Item, Text, Zero};
use super::problem::{Problem, Span, enumerate, nearest};

/// What all of reading shares: the text, where it stands, the environment, and the problems so far.
pub(super) struct Context<'c> {
    pub(super) source: &'c str,
    /// Other files that the text names are looked for here.
    pub(super) folder: &'c Path,
    pub(super) env: &'c dyn Fn(&str) -> Option<String>,
    problems: RefCell<Vec<Problem>>,
}

impl<'c> Context<'c> {
    pub(super) fn new(
        source: &'c str,
        folder: &'c Path,
        env: &'c dyn Fn(&str) -> Option<String>,
    ) -> Self {
        Self { source, folder, env, problems: RefCell::new(Vec::new()) }
    }

    pub(super) fn note(&self, problem: Problem) {
        self.problems.borrow_mut().push(problem);
    }

    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.problems.into_inner()
    }
}

/// A table of the file, field by field.
pub(super) struct Section<'c> {
    pub(super) cx: &'c Context<'c>,
    /// As messages name it: `[limits.per-client]`, `[[routes]]`, `cost`.
    pub(super) title: String,
    pub(super) span: Span,
    shape: &'static Shape,
    entries: Vec<FieldEntry<'c>>,
}

/// A name in the file with its value.
#[derive(Clone)]
pub(super) struct FieldEntry<'c> {
    pub(super) name: &'c str,
    pub(super) name_span: Span,
    pub(super) item: Item<'c>,
}

impl<'c> Section<'c> {
    pub(super) fn new(
        cx: &'c Context<'c>,
        table: &'c DeTable<'c>,
        span: Span,
        shape: &'static Shape,
    ) -> Self {
        let title = shape.title.to_owned();
        Self { cx, title, span, shape, entries: entries(cx, table) }
    }

    /// A table that is not in the file.
    pub(super) fn empty(cx: &'c Context<'c>, shape: &'static Shape) -> Self {
        Self { cx, title: shape.title.to_owned(), span: 0..0, shape, entries: Vec::new() }
    }

    /// The value of a field, if it is there.
    pub(super) fn take(&mut self, name: &str) -> Option<Item<'c>> {
        debug_assert!(self.shape.fields.iter().any(|field| field.name == name), "{name}");
        let place = self.entries.iter().position(|entry| entry.name == name)?;
        Some(self.entries.swap_remove(place).item)
    }

    /// The value of a field that must be there; `example` shows one.
    pub(super) fn require(&mut self, name: &'static str, example: &str) -> Option<Item<'c>> {
        let item = self.take(name);
        // A misspelt name is one problem, not two.
        let misspelt = self.entries.iter().any(|entry| self.nearest(entry.name) == Some(name));
        if item.is_none() && !misspelt {
            self.cx.note(Problem::error(
                self.span.clone(),
                format!("{} has no `{name}`", self.title),
                format!("expected `{name} = {example}` here"),
            ));
        }
        item
    }

    /// Whether the file has such a field that nobody took yet.
    pub(super) fn has(&self, fits: impl Fn(&str) -> bool) -> bool {
        self.entries.iter().any(|entry| fits(entry.name))
    }

    /// Refuses a field that stands there and means nothing: `name` `title`, and what to do.
    pub(super) fn refuse_field(&mut self, name: &str, title: &str, expected: &str) {
        if let Some(place) = self.entries.iter().position(|entry| entry.name == name) {
            let entry = self.entries.remove(place);
            let title = format!("`{name}` {title}");
            self.cx.note(Problem::error(entry.name_span, title, expected));
        }
    }

    pub(super) fn duration(&mut self, name: &str, zero: Zero, default: Duration) -> Duration {
        self.take(name).and_then(|item| item.duration(zero)).unwrap_or(default)
    }

    pub(super) fn whole(&mut self, name: &str, range: RangeInclusive<u64>, default: u64) -> u64 {
        self.take(name).and_then(|item| item.whole(range)).unwrap_or(default)
    }

    pub(super) fn flag(&mut self, name: &str, default: bool) -> bool {
        self.take(name).and_then(|item| item.flag()).unwrap_or(default)
    }

    pub(super) fn word<T: Copy>(&mut self, name: &str, words: &[(&str, T)], default: T) -> T {
        self.take(name).and_then(|item| item.word(words, &[])).unwrap_or(default)
    }

    /// The items of a list, none where the field is not there.
    pub(super) fn list(&mut self, name: &str) -> Vec<Item<'c>> {
        self.take(name).and_then(|item| item.list()).unwrap_or_default()
    }

    /// Notes every field that nobody took.
    pub(super) fn finish(self) {
        for entry in &self.entries {
            self.cx.note(self.leftover(entry));
        }
    }

    fn leftover(&self, entry: &FieldEntry<'_>) -> Problem {
        let (name, span) = (entry.name, entry.name_span.clone());
        if self.shape.later.contains(&name) {
            return Problem::error(
                span,
                format!("`{name}` in {} is not supported yet", self.title),
                "remove it",
            );
        }
        let title = format!("unknown field `{name}` in {}", self.title);
        match self.nearest(name) {
            Some(near) => Problem::error(span, title, format!("did you mean `{near}`?")),
            None => {
                let names = self.shape.fields.iter().map(|field| field.name);
                Problem::error(span, title, "no such field").help(format!(
                    "{} has {}",
                    self.title,
                    enumerate(names, "and")
                ))
            }
        }
    }

    fn nearest(&self, found: &str) -> Option<&'static str> {
        nearest(found, self.shape.fields.iter().map(|field| field.name))
    }
}

/// A table's entries in the file's order.
pub(super) fn entries<'c>(cx: &'c Context<'c>, table: &'c DeTable<'c>) -> Vec<FieldEntry<'c>> {
    let mut entries: Vec<FieldEntry<'c>> = table
        .iter()
        .map(|(name, value)| {
            let field = name.get_ref().as_ref();
            FieldEntry { name: field, name_span: name.span(), item: Item::new(cx, field, value) }
        })
        .collect();
    entries.sort_by_key(|entry| entry.name_span.start);
    entries
}
