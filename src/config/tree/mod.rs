//! The settings that a file puts in force, as a tree: the file's values, the defaults of all other settings, and what
//! may be shown of each value. The admin endpoint shows this tree, and a reload compares two of them.

use std::borrow::Cow;
use std::ptr;
use std::sync::Arc;

use serde_json::Value as Json;
use sha2::{Digest as _, Sha256};
use toml::de::{DeTable, DeValue};

use super::Overrides;
use super::reader::{
    Fallback, Field, Kind, Mask, Shape, duration, duration_text, environment, size, size_text,
};
use super::section::limit::algorithm::has_field;
use super::section::limit::{CANDIDATE, LIMIT, OVERRIDE, PLAN};
use super::section::{REJECT, ROOT};

/// Stands for a secret.
pub(super) const MASKED: &str = "********";

/// The text of a file that was loaded, with what the command line put in place of its settings.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileText {
    pub(super) text: Arc<str>,
    pub(super) overrides: Overrides,
}

impl FileText {
    /// A short name of what the file and the command line say: if they say the same, the name is the same on each
    /// machine. Comments and secrets do not count, nor does where a process listens: several on one machine listen at
    /// several addresses.
    pub(crate) fn version(&self) -> String {
        let mut said = self.tree(&|_| None);
        said.forget_addresses();
        let digest = Sha256::digest(said.text());
        digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
    }

    /// The line of the last of these names, each of which stands in the table of the one before.
    pub(super) fn line_of(&self, names: &[&str]) -> Option<usize> {
        let file = DeTable::parse(&self.text).ok()?;
        let (mut table, mut start) = (Some(file.get_ref()), 0);
        for name in names {
            let (name, value) = table?.get_key_value(*name)?;
            (start, table) = (name.span().start, value.get_ref().as_table());
        }
        Some(self.text.get(..start)?.matches('\n').count() + 1)
    }
}

/// The value of a setting.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tree {
    /// The file has no value, and there is no fixed default.
    None,
    Value(Scalar),
    List(Vec<Self>),
    Table(Vec<SettingEntry>),
}

/// A number, a flag or a text.
#[derive(Clone, Debug)]
pub(super) struct Scalar {
    /// The value itself, which may be a secret. Two spellings of one duration or size are the same here.
    pub(super) plain: String,
    /// What may be shown of the value.
    shown: Json,
    /// Whether a part of the value came from the environment.
    pub(super) is_foreign: bool,
}

/// A field of a table, with its value.
#[derive(Clone, Debug)]
pub(super) struct SettingEntry {
    pub(super) name: Cow<'static, str>,
    /// Whether the file has the field. Otherwise the value is the default.
    pub(super) is_written: bool,
    /// Whether only a restart applies a change of the field.
    pub(super) restart: bool,
    pub(super) value: Tree,
}

impl FileText {
    /// The settings of the file, which has been loaded before. `env` returns the value of an environment
    /// variable.
    pub(super) fn tree(&self, env: &dyn Fn(&str) -> Option<String>) -> Tree {
        let Ok(mut file) = DeTable::parse(&self.text) else { return Tree::None };
        if self.overrides.apply(file.get_mut(), env).is_some() {
            return Tree::None;
        }
        let file = file.get_ref();
        let reject = file.get("reject").and_then(|reject| reject.get_ref().as_table());
        let walk = Walk { env, reject };
        let context = SettingContext { mask: Mask::Open, restart: false, algorithm: "" };
        walk.table(&ROOT, Some(file), context)
    }
}

impl Tree {
    /// The fields of a table. Empty for any other value.
    pub(super) fn entries(&self) -> &[SettingEntry] {
        if let Self::Table(entries) = self { entries } else { &[] }
    }

    /// The value of a field of a table.
    pub(super) fn get(&self, name: &str) -> &Self {
        let entry = self.entries().iter().find(|entry| entry.name == name);
        entry.map_or(&Self::None, |entry| &entry.value)
    }

    /// The items of a list. Empty for any other value.
    pub(super) fn items(&self) -> &[Self] {
        if let Self::List(items) = self { items } else { &[] }
    }

    /// The value as JSON, with secrets masked.
    pub(super) fn json(&self) -> Json {
        match self {
            Self::None => Json::Null,
            Self::Value(scalar) => scalar.shown.clone(),
            Self::List(items) => items.iter().map(Self::json).collect(),
            Self::Table(entries) => {
                entries.iter().map(|entry| (entry.name.to_string(), entry.value.json())).collect()
            }
        }
    }

    /// The value in one line of text, with secrets masked. Defaults of a table are left out.
    pub(super) fn text(&self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Value(Scalar { shown: Json::String(text), .. }) => text.clone(),
            Self::Value(scalar) => scalar.plain.clone(),
            Self::List(items) => {
                format!("[{}]", items.iter().map(Self::text).collect::<Vec<_>>().join(", "))
            }
            Self::Table(_) => format!("{{ {} }}", self.written()),
        }
    }

    /// The fields of a table that the file has, with their values.
    pub(super) fn written(&self) -> String {
        let written = self.entries().iter().filter(|entry| entry.is_written);
        let written = written.map(|entry| format!("{} {}", entry.name, entry.value.text()));
        written.collect::<Vec<_>>().join(", ")
    }

    /// Removes each `listen`.
    fn forget_addresses(&mut self) {
        if let Self::Table(entries) = self {
            entries.retain(|entry| entry.name != "listen" || !entry.restart);
            entries.iter_mut().for_each(|entry| entry.value.forget_addresses());
        }
    }

    /// The texts of a list, unmasked. An item that is no text becomes an empty text.
    pub(super) fn plain(&self) -> Vec<&str> {
        let plain = self.items().iter().map(|item| match item {
            Self::Value(value) => &*value.plain,
            _ => "",
        });
        plain.collect()
    }
}

/// Compares what the values mean. What may be shown of them does not matter.
impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.plain == other.plain
    }
}

impl PartialEq for SettingEntry {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, &self.value) == (&other.name, &other.value)
    }
}

/// Copies the setting at this path, such as `server.listen`, from other settings. If one of the two has no
/// such table, copies the table.
pub(super) fn keep(settings: &mut Json, other: &Json, path: &str) {
    let pointer = format!("/{}", path.replace('.', "/"));
    match (settings.pointer_mut(&pointer), other.pointer(&pointer), path.rsplit_once('.')) {
        (Some(entry), Some(value), _) => *entry = value.clone(),
        (_, _, Some((table, _))) => keep(settings, other, table),
        _ => {}
    }
}

/// What the tables around a value decide about it.
#[derive(Clone, Copy)]
struct SettingContext<'p> {
    mask: Mask,
    restart: bool,
    /// The algorithm of the limit. Empty if the limit names none.
    algorithm: &'p str,
}

struct Walk<'w> {
    env: &'w dyn Fn(&str) -> Option<String>,
    /// The file's `[reject]`.
    reject: Option<&'w DeTable<'w>>,
}

impl Walk<'_> {
    /// A table with all its fields.
    fn table(
        &self,
        shape: &'static Shape,
        table: Option<&DeTable<'_>>,
        context: SettingContext<'_>,
    ) -> Tree {
        let written = |name: &str| table.and_then(|table| Some(table.get(name)?.get_ref()));
        let algorithm = match written("algorithm").and_then(DeValue::as_str) {
            Some(algorithm) if ptr::eq(shape, &LIMIT) => algorithm,
            _ => context.algorithm,
        };
        let of_limit = [&LIMIT, &OVERRIDE, &CANDIDATE, &PLAN].iter().any(|it| ptr::eq(shape, *it));
        let applies = |field: &&Field| {
            !of_limit || has_field(algorithm, field.name, written(field.name).is_some())
        };
        let entry = |field: &'static Field| {
            let mask = if matches!(context.mask, Mask::Open) { field.mask } else { context.mask };
            let restart = context.restart || field.restart;
            let value =
                self.field(shape, field, table, SettingContext { mask, restart, algorithm });
            let is_written = written(field.name).is_some();
            SettingEntry { name: field.name.into(), is_written, restart, value }
        };
        Tree::Table((shape.fields)().into_iter().filter(applies).map(entry).collect())
    }

    /// The value of a field: that of the file's `table`, or the default.
    fn field(
        &self,
        shape: &'static Shape,
        field: &'static Field,
        table: Option<&DeTable<'_>>,
        context: SettingContext<'_>,
    ) -> Tree {
        // A limit's `reject` takes its missing fields from the file's `[reject]`.
        let reject = self.reject.filter(|_| ptr::eq(shape, &REJECT));
        let written = table.and_then(|table| table.get(field.name));
        match (written.or_else(|| reject?.get(field.name)), field.default, &field.kind) {
            (Some(value), _, kind) => self.value(kind, value.get_ref(), context),
            (None, Fallback::Value(value), kind) => DeValue::parse(value)
                .map_or(Tree::None, |value| self.value(kind, value.get_ref(), context)),
            (None, Fallback::Table, Kind::Table(shape)) => self.table(shape, None, context),
            (None, Fallback::Count(_), _) => self.count(table, context.mask).unwrap_or(Tree::None),
            (None, _, Kind::Named(_)) => Tree::Table(Vec::new()),
            (None, _, Kind::List(_, Kind::Table(_))) => Tree::List(Vec::new()),
            (None, ..) => Tree::None,
        }
    }

    /// The count of the table's `rate`. `None` for `unlimited` and for a count of zero.
    fn count(&self, table: Option<&DeTable<'_>>, mask: Mask) -> Option<Tree> {
        let Tree::Value(rate) =
            self.text(&Kind::Rate, table?.get("rate")?.get_ref().as_str()?, mask)
        else {
            return None;
        };
        let count: u64 = rate.plain.split('/').next()?.parse().ok()?;
        let shown = if rate.is_foreign { MASKED.into() } else { count.into() };
        let value = Scalar { plain: count.to_string(), shown, ..rate };
        (count > 0).then_some(Tree::Value(value))
    }

    fn value(&self, kind: &Kind, value: &DeValue<'_>, context: SettingContext<'_>) -> Tree {
        let list = find(kind, &|kind| matches!(kind, Kind::List(..)));
        match value {
            DeValue::Array(items) => {
                let kind = if let Some(Kind::List(_, kind)) = list { kind } else { &Kind::Text };
                Tree::List(items.iter().map(|it| self.value(kind, it.get_ref(), context)).collect())
            }
            DeValue::Table(table) => match find(kind, &is_of_tables) {
                Some(Kind::Table(shape)) => self.table(shape, Some(table), context),
                Some(Kind::Named(shape)) => named(table, |value| match value {
                    DeValue::Table(table) => self.table(shape, Some(table), context),
                    _ => Tree::None,
                }),
                Some(Kind::TableOf(_, kind)) => {
                    named(table, |value| self.value(kind, value, context))
                }
                _ => named(table, |value| self.value(&Kind::Text, value, context)),
            },
            // One value stands for a list of one.
            value if list.is_some() => Tree::List(vec![self.value(&Kind::Text, value, context)]),
            DeValue::String(text) => self.text(kind, text, context.mask),
            DeValue::Integer(number) => {
                scalar(i64::from_str_radix(number.as_str(), number.radix()).unwrap_or_default())
            }
            DeValue::Float(number) => scalar(number.as_str().parse::<f64>().unwrap_or_default()),
            DeValue::Boolean(flag) => scalar(*flag),
            DeValue::Datetime(time) => scalar(time.to_string()),
        }
    }

    /// A text with its variables replaced. What came from the environment is a secret.
    fn text(&self, kind: &Kind, text: &str, mask: Mask) -> Tree {
        let Ok(replaced) = environment::replace(text, self.env) else {
            let shown = MASKED.into();
            return Tree::Value(Scalar { plain: text.to_owned(), shown, is_foreign: true });
        };
        let (text, is_foreign) = (replaced.text, replaced.foreign);
        let shown = match mask {
            Mask::Open if !is_foreign => text.clone(),
            Mask::Shown(show) if !is_foreign => show(&text),
            _ => MASKED.to_owned(),
        };
        let plain = match kind {
            Kind::Duration(..) => duration(&text).ok().map(duration_text),
            Kind::Size(..) => size(&text).map(size_text),
            _ => None,
        };
        Tree::Value(Scalar { plain: plain.unwrap_or(text), shown: shown.into(), is_foreign })
    }
}

/// A value that is no secret.
fn scalar<T: ToString + Into<Json>>(value: T) -> Tree {
    Tree::Value(Scalar { plain: value.to_string(), shown: value.into(), is_foreign: false })
}

/// A table of any names.
fn named(table: &DeTable<'_>, read: impl Fn(&DeValue<'_>) -> Tree) -> Tree {
    let entries = table.iter().map(|(name, value)| SettingEntry {
        name: name.get_ref().to_string().into(),
        is_written: true,
        restart: false,
        value: read(value.get_ref()),
    });
    Tree::Table(entries.collect())
}

fn is_of_tables(kind: &Kind) -> bool {
    matches!(kind, Kind::Table(_) | Kind::Named(_) | Kind::TableOf(..) | Kind::Object)
}

/// The kind itself, if it fits. Of several alternatives, the first one that fits.
fn find<'k>(kind: &'k Kind, fits: &dyn Fn(&Kind) -> bool) -> Option<&'k Kind> {
    match kind {
        Kind::Either(kinds) => kinds.iter().find_map(|kind| find(kind, fits)),
        kind => fits(kind).then_some(kind),
    }
}

#[cfg(test)]
mod tests;
