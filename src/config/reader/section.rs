//! One table of the file. The code of a section takes the fields one by one. A field that is left over is
//! an error.
//!
//! A method that reads a wrong value notes the problem and returns `None`. The caller goes on, to find all
//! problems of the file at once. Settings with errors are thrown away in the end.

use serde_json::{Map, Value as Json};
use toml::de::{DeTable, DeValue};

use super::context::{Context, NotedProblem};
use super::item::Item;
use super::plain::PlainValue;
use super::problem::{Span, enumerate, nearest};
use super::shape::{Elsewhere, Fallback, Field, Shape};

/// A table of the file, field by field.
pub(crate) struct Section<'c> {
    pub(crate) cx: &'c Context<'c>,
    /// The table's name in messages: `[limits.per-client]`, `[[routes]]`, `cost`.
    pub(crate) title: String,
    pub(crate) span: Span,
    fields: Vec<&'static Field>,
    elsewhere: &'static [Elsewhere],
    /// Whether a field that the file does not have gets its default.
    defaults: bool,
    entries: Vec<FieldEntry<'c>>,
}

/// A name in the file with its value.
#[derive(Clone)]
pub(crate) struct FieldEntry<'c> {
    pub(crate) name: &'c str,
    pub(crate) name_span: Span,
    pub(crate) item: Item<'c>,
}

impl<'c> Section<'c> {
    pub(crate) fn new(
        cx: &'c Context<'c>,
        table: &'c DeTable<'c>,
        span: Span,
        shape: &'static Shape,
    ) -> Self {
        Self { span, entries: entries(cx, table), ..Self::empty(cx, shape) }
    }

    /// A table that is not in the file.
    pub(crate) fn empty(cx: &'c Context<'c>, shape: &'static Shape) -> Self {
        Self {
            cx,
            title: shape.title.to_owned(),
            span: 0..0,
            fields: (shape.fields)(),
            elsewhere: shape.elsewhere,
            defaults: true,
            entries: Vec::new(),
        }
    }

    /// The same table without defaults: a missing field has no value.
    pub(crate) fn without_defaults(self) -> Self {
        Self { defaults: false, ..self }
    }

    /// Takes the value of a field out of the table, if the file has the field.
    pub(crate) fn take(&mut self, name: &str) -> Option<Item<'c>> {
        debug_assert!(self.fields.iter().any(|field| field.name == name), "{name}");
        self.take_entry(name).map(|entry| entry.item)
    }

    /// Takes a table. If the file does not have the table, returns an empty one, which has all defaults.
    pub(crate) fn table(&mut self, name: &str, shape: &'static Shape) -> Self {
        let item = self.take(name);
        let section = item.and_then(|item| item.section(shape, shape.title));
        section.unwrap_or_else(|| Self::empty(self.cx, shape))
    }

    /// Takes the value of a required field. If the field is missing, notes an error that shows `example`.
    pub(crate) fn require(&mut self, name: &'static str, example: &str) -> Option<Item<'c>> {
        let item = self.take(name);
        if item.is_none() && !self.is_misspelt(name) {
            self.fault(
                format!("{} has no `{name}`", self.title),
                format!("expected `{name} = {example}` here"),
            );
        }
        item
    }

    /// Whether a field that is left was perhaps meant to have this name. Such a field is reported once, as unknown.
    pub(crate) fn is_misspelt(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| self.nearest(entry.name) == Some(name))
    }

    /// Notes an error about the table as a whole.
    pub(crate) fn fault(
        &self,
        title: impl Into<String>,
        expected: impl Into<String>,
    ) -> NotedProblem<'c> {
        self.cx.error(&self.span, title, expected)
    }

    /// Whether the table has a field, not taken yet, whose name `fits`.
    pub(crate) fn has(&self, fits: impl Fn(&str) -> bool) -> bool {
        self.entries.iter().any(|entry| fits(entry.name))
    }

    /// Takes a field that means nothing here, if the file has the field, and notes an error. `title` says
    /// why, `expected` says what to do.
    pub(crate) fn refuse_field(&mut self, name: &str, title: &str, expected: &str) {
        if let Some(entry) = self.take_entry(name) {
            self.cx.error(&entry.name_span, title, expected);
        }
    }

    /// Takes a field without reading it, if this table can have the field and the file has it.
    pub(crate) fn skip(&mut self, name: &str) {
        self.take_entry(name);
    }

    /// Takes a field with its name, if this table can have the field and the file has it.
    fn take_entry(&mut self, name: &str) -> Option<FieldEntry<'c>> {
        if !self.fields.iter().any(|field| field.name == name) {
            return None;
        }
        let index = self.entries.iter().position(|entry| entry.name == name)?;
        Some(self.entries.swap_remove(index))
    }

    /// The value of a field, if the file has the field. The field stays in the table: other code takes it.
    pub(crate) fn item(&self, name: &str) -> Option<Item<'c>> {
        let entry = self.entries.iter().find(|entry| entry.name == name)?;
        Some(entry.item.clone())
    }

    /// Like [`Self::value`], for a type that reads its value by the field's kind.
    pub(crate) fn plain<T: PlainValue>(&mut self, name: &str) -> Option<T> {
        let field = self.fields.iter().find(|field| field.name == name)?;
        self.value(name, |item| T::read(item, &field.kind))
    }

    /// Takes a field and reads its value with `read`. If the field is missing or wrong, reads its
    /// default. `None` if there is no default.
    pub(crate) fn value<T>(
        &mut self,
        name: &str,
        mut read: impl FnMut(&Item<'_>) -> Option<T>,
    ) -> Option<T> {
        self.exact(name, &mut read).or_else(|| self.default(name, read))
    }

    /// Takes a field and reads its value with `read`. If the field is missing, reads its default. `None`
    /// if the field is wrong, or there is no default.
    pub(crate) fn exact<T>(
        &mut self,
        name: &str,
        mut read: impl FnMut(&Item<'_>) -> Option<T>,
    ) -> Option<T> {
        match self.take(name) {
            Some(item) => read(&item),
            None => self.default(name, read),
        }
    }

    fn default<T>(&self, name: &str, mut read: impl FnMut(&Item<'_>) -> Option<T>) -> Option<T> {
        let field = self.fields.iter().find(|field| field.name == name && self.defaults)?;
        let Fallback::Value(text) = field.default else { return None };
        let default = DeValue::parse(text).ok()?;
        // The default has no position in the file.
        let mut item = Item::new(self.cx, field.name, &default);
        item.span = 0..0;
        read(&item)
    }

    /// Takes a field and returns the items of its list. Empty if the field is missing.
    pub(crate) fn list(&mut self, name: &str) -> Vec<Item<'c>> {
        self.take(name).and_then(|item| item.list()).unwrap_or_default()
    }

    /// Notes an error for every field that was not taken.
    pub(crate) fn finish(self) {
        for entry in &self.entries {
            self.leftover(entry);
        }
    }

    fn leftover(&self, entry: &FieldEntry<'_>) {
        let (name, span) = (entry.name, &entry.name_span);
        let title = format!("unknown field `{name}` in {}", self.title);
        match self.nearest(name) {
            Some(near) => {
                let problem = self.cx.error(span, title, format!("did you mean `{near}`?"));
                match self.called_elsewhere(name).and_then(|(_, _, help)| *help) {
                    Some(help) => problem.help(help),
                    None => problem,
                }
            }
            None => {
                let names = enumerate(self.fields.iter().map(|field| field.name), "and");
                self.cx
                    .error(span, title, "no such field")
                    .help(format!("{} has {names}", self.title))
            }
        };
    }

    fn nearest(&self, found: &str) -> Option<&'static str> {
        let elsewhere = self.called_elsewhere(found).map(|(_, ours, _)| *ours);
        elsewhere.or_else(|| nearest(found, self.fields.iter().map(|field| field.name)))
    }

    fn called_elsewhere(&self, found: &str) -> Option<&'static Elsewhere> {
        let plain = found.to_lowercase().replace(['_', '-'], "");
        self.elsewhere.iter().find(|(name, ..)| *name == plain)
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
    /// The value as a table with the fields of `shape`. Messages call the table `title`.
    pub(crate) fn section(
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

    /// The value as a JSON object, with the variables in its texts replaced.
    pub(crate) fn json_object(&self) -> Option<Map<String, Json>> {
        let entries = self.entries()?;
        entries.iter().map(|entry| Some((entry.name.to_owned(), entry.item.json()?))).collect()
    }

    fn json(&self) -> Option<Json> {
        Some(match self.value {
            DeValue::String(_) => self.text()?.into(),
            DeValue::Integer(number) => {
                i64::from_str_radix(number.as_str(), number.radix()).ok()?.into()
            }
            DeValue::Float(number) => number.as_str().parse::<f64>().ok()?.into(),
            DeValue::Boolean(flag) => (*flag).into(),
            DeValue::Datetime(time) => time.to_string().into(),
            DeValue::Array(_) => {
                self.list()?.iter().map(Self::json).collect::<Option<Vec<_>>>()?.into()
            }
            DeValue::Table(_) => self.json_object()?.into(),
        })
    }

    /// The value as a table whose names the operator chooses.
    pub(crate) fn entries(&self) -> Option<Vec<FieldEntry<'c>>> {
        let DeValue::Table(table) = self.value else {
            self.reject(match self.is_list() {
                true => format!("expected `[{}.NAME]` for each one", self.field),
                false => "expected a table: `{ name = … }`".to_owned(),
            });
            return None;
        };
        Some(entries(self.cx, table))
    }
}
