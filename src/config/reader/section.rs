//! One table of the file: takes its fields, and finds what nobody took.
//!
//! Every method that reads a value notes what is wrong with it and answers `None`: the caller goes on, so
//! that all problems of a file are found in one go, and what was built is thrown away in the end.

use toml::de::{DeTable, DeValue};

use super::context::Context;
use super::item::Item;
use super::problem::{Problem, Span, enumerate, nearest};
use crate::config::shape::{Fallback, Field, Shape};

/// A table of the file, field by field.
pub(in crate::config) struct Section<'c> {
    pub(in crate::config) cx: &'c Context<'c>,
    /// As messages name it: `[limits.per-client]`, `[[routes]]`, `cost`.
    pub(in crate::config) title: String,
    pub(in crate::config) span: Span,
    fields: Vec<&'static Field>,
    later: &'static [&'static str],
    /// Whether fields have their defaults where the file does not have them.
    defaults: bool,
    entries: Vec<FieldEntry<'c>>,
}

/// A name in the file with its value.
#[derive(Clone)]
pub(in crate::config) struct FieldEntry<'c> {
    pub(in crate::config) name: &'c str,
    pub(in crate::config) name_span: Span,
    pub(in crate::config) item: Item<'c>,
}

impl<'c> Section<'c> {
    pub(in crate::config) fn new(
        cx: &'c Context<'c>,
        table: &'c DeTable<'c>,
        span: Span,
        shape: &'static Shape,
    ) -> Self {
        Self { span, entries: entries(cx, table), ..Self::empty(cx, shape) }
    }

    /// A table that is not in the file.
    pub(in crate::config) fn empty(cx: &'c Context<'c>, shape: &'static Shape) -> Self {
        Self {
            cx,
            title: shape.title.to_owned(),
            span: 0..0,
            fields: (shape.fields)(),
            later: shape.later,
            defaults: true,
            entries: Vec::new(),
        }
    }

    /// The same, where a field that the file does not have has no value.
    pub(in crate::config) fn without_defaults(self) -> Self {
        Self { defaults: false, ..self }
    }

    /// The value of a field, if it is there.
    pub(in crate::config) fn take(&mut self, name: &str) -> Option<Item<'c>> {
        debug_assert!(self.fields.iter().any(|field| field.name == name), "{name}");
        self.take_entry(name).map(|entry| entry.item)
    }

    /// The value of a field that must be there; `example` shows one.
    pub(in crate::config) fn require(
        &mut self,
        name: &'static str,
        example: &str,
    ) -> Option<Item<'c>> {
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
    pub(in crate::config) fn has(&self, fits: impl Fn(&str) -> bool) -> bool {
        self.entries.iter().any(|entry| fits(entry.name))
    }

    /// Refuses a field that means nothing here, if it is there: why, and what to do.
    pub(in crate::config) fn refuse_field(&mut self, name: &str, title: &str, expected: &str) {
        if let Some(entry) = self.take_entry(name) {
            self.cx.note(Problem::error(entry.name_span, title, expected));
        }
    }

    /// Takes a field unread, where this table can have it.
    pub(in crate::config) fn forget(&mut self, name: &str) {
        self.take_entry(name);
    }

    fn take_entry(&mut self, name: &str) -> Option<FieldEntry<'c>> {
        if !self.fields.iter().any(|field| field.name == name) {
            return None;
        }
        let place = self.entries.iter().position(|entry| entry.name == name)?;
        Some(self.entries.swap_remove(place))
    }

    /// The value of a field, if it is there, which somebody else takes.
    pub(in crate::config) fn item(&self, name: &str) -> Option<Item<'c>> {
        let entry = self.entries.iter().find(|entry| entry.name == name)?;
        Some(entry.item.clone())
    }

    /// What `read` makes of a field's value, or of its default where the file does not have it, or has
    /// a wrong one. `None` where there is no default.
    pub(in crate::config) fn value<T>(
        &mut self,
        name: &str,
        read: impl Fn(&Item<'_>) -> Option<T>,
    ) -> Option<T> {
        let written = self.take(name).and_then(|item| read(&item));
        if !self.defaults {
            return written;
        }
        written.or_else(|| {
            let field = self.fields.iter().find(|field| field.name == name)?;
            let Fallback::Value(text) = field.default else { return None };
            let default = DeValue::parse(text).ok()?;
            // It has no place in the file.
            let mut item = Item::new(self.cx, field.name, &default);
            item.span = 0..0;
            read(&item)
        })
    }

    /// The items of a list, none where the field is not there.
    pub(in crate::config) fn list(&mut self, name: &str) -> Vec<Item<'c>> {
        self.take(name).and_then(|item| item.list()).unwrap_or_default()
    }

    /// Notes every field that nobody took.
    pub(in crate::config) fn finish(self) {
        for entry in &self.entries {
            self.cx.note(self.leftover(entry));
        }
    }

    fn leftover(&self, entry: &FieldEntry<'_>) -> Problem {
        let (name, span) = (entry.name, entry.name_span.clone());
        if self.later.contains(&name) {
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
                let names = self.fields.iter().map(|field| field.name);
                Problem::error(span, title, "no such field").help(format!(
                    "{} has {}",
                    self.title,
                    enumerate(names, "and")
                ))
            }
        }
    }

    fn nearest(&self, found: &str) -> Option<&'static str> {
        nearest(found, self.fields.iter().map(|field| field.name))
    }
}

/// A table's entries in the file's order.
fn entries<'c>(cx: &'c Context<'c>, table: &'c DeTable<'c>) -> Vec<FieldEntry<'c>> {
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

impl<'c> Item<'c> {
    /// A table with known fields, which messages call `title`.
    pub(in crate::config) fn section(
        &self,
        shape: &'static Shape,
        title: impl Into<String>,
    ) -> Option<Section<'c>> {
        let DeValue::Table(table) = self.value else {
            let fields = (shape.fields)();
            let example = fields.first().map_or("", |field| field.name);
            self.reject(format!("expected a table with fields such as `{example}`"));
            return None;
        };
        let mut section = Section::new(self.cx, table, self.span.clone(), shape);
        section.title = title.into();
        Some(section)
    }

    /// The entries of a table whose names are the operator's own.
    pub(in crate::config) fn entries(&self) -> Option<Vec<FieldEntry<'c>>> {
        let DeValue::Table(table) = self.value else {
            self.reject("expected a table: `{ name = … }`");
            return None;
        };
        Some(entries(self.cx, table))
    }
}
