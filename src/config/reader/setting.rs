//! One declaration for each setting. Each table in `section/` lists its settings. Five things use this
//! list: the reading of the file, the JSON Schema, the rows of docs/reference.md, the report of a reload, and
//! the settings that the admin endpoint shows.
//!
//! A setting is declared in one of these two forms:
//!
//! | function | who reads the file | who writes the settings |
//! | --- | --- | --- |
//! | [`setting`] | the value's type, or a function that [`at!`] names | this file |
//! | [`field`] | the section's code | the section's code |

use super::item::Item;
use super::section::Section;
use super::shape::{Fallback, Field, Kind, Mask};

/// The settings of a table. The table becomes an `S` in the settings, such as a `ServerSpec`. `S` is `()` if the
/// section's code reads all of them.
pub(crate) type SettingList<S> = &'static [Setting<S>];

/// A setting of a table. The table becomes an `S` in the settings.
pub(crate) struct Setting<S> {
    field: Field,
    /// `None` if the section's code reads the setting.
    read: Option<Read<S>>,
}

/// Reads a value of this kind into the settings. If the value is wrong, notes the problem and returns `None`.
type Read<S> = fn(&Item<'_>, &Kind, &mut S) -> Option<()>;

/// The fields of a table, for its shape.
pub(crate) fn fields<S>(settings: SettingList<S>) -> Vec<&'static Field> {
    settings.iter().map(|setting| &setting.field).collect()
}

/// Reads the settings of a table into `spec`. The section's code has read its own settings before. A missing or
/// wrong setting gets its declared default. Without a default, `spec` keeps its value. A field that is left in
/// the table is an error.
pub(crate) fn read<S>(settings: SettingList<S>, mut section: Section<'_>, mut spec: S) -> S {
    for Setting { field, read } in settings {
        if let Some(read) = read {
            section.value(field.name, |item| read(item, &field.kind, &mut spec));
        }
    }
    section.finish();
    spec
}

/// The name of a setting, and how its value gets into the type `Spec`, which each section's file defines.
///
/// In `at!(workers)`, setting and field have the same name, and the field's type reads the value. `at!(level, level)`
/// names a function that reads the value. `at!("trusted_proxies", trust.networks, networks)` gives the name of the
/// setting and the path in `Spec`.
macro_rules! at {
    ($field:ident $(, $read:expr)?) => {
        at!(stringify!($field), $field $(, $read)?)
    };
    ($name:expr, $($path:ident).+) => {
        ($name, |item, kind, spec: &mut Spec| {
            spec.$($path).+ = crate::config::reader::PlainValue::read(item, kind)?;
            Some(())
        })
    };
    ($name:expr, $($path:ident).+, $read:expr) => {
        ($name, |item, _, spec: &mut Spec| {
            spec.$($path).+ = $read(item)?.into();
            Some(())
        })
    };
}
pub(crate) use at;

/// A setting that is read as [`at!`] says.
pub(crate) const fn setting<S>(
    (name, read): (&'static str, Read<S>),
    kind: Kind,
    default: Fallback,
    meaning: &'static str,
) -> Setting<S> {
    Setting { read: Some(read), ..field(name, kind, default, meaning) }
}

/// A setting that the section's code reads.
pub(crate) const fn field<S>(
    name: &'static str,
    kind: Kind,
    default: Fallback,
    meaning: &'static str,
) -> Setting<S> {
    let field = Field { name, kind, default, meaning, mask: Mask::Open, restart: false };
    Setting { field, read: None }
}

impl<S> Setting<S> {
    /// The same setting, if a change applies only after a restart.
    pub(crate) const fn restart(mut self) -> Self {
        self.field.restart = true;
        self
    }

    /// The same setting, with `mask` for what is shown of it.
    pub(crate) const fn masked(mut self, mask: Mask) -> Self {
        self.field.mask = mask;
        self
    }
}
