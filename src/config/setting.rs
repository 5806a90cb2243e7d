//! One declaration for each setting. Each table in `section/` lists its settings. Five things use this
//! list: the reading of the file, the JSON Schema, the rows of docs/reference.md, the report of a reload, and
//! the settings that the admin endpoint shows.
//!
//! A setting is declared in one of these three forms:
//!
//! | function | who reads the file | who writes the plan |
//! | --- | --- | --- |
//! | [`plain`] | the value's type, by the kind | this file |
//! | [`parsed`] | a function of the setting | this file |
//! | [`field`] | the section's code | the section's code |

use std::time::Duration;

use http::StatusCode;

use super::reader::{Item, Section};
use super::shape::{Fallback, Field, Kind, Mask, Zero, field};

/// The settings of a table. The table becomes an `S` in the plan, such as a `ServerSpec`. `S` is `()` where
/// the table has [`Field`]s alone.
pub(super) type Settings<S> = &'static [&'static dyn Setting<S>];

/// The fields of a table, for its shape.
pub(super) fn fields<S>(settings: Settings<S>) -> Vec<&'static Field> {
    settings.iter().map(|setting| setting.field()).collect()
}

/// Reads the settings of a table into `spec`. The section's code has read its own settings before. A missing or
/// wrong setting gets its declared default. Without a default, `spec` keeps its value. A field that is left in
/// the table is an error.
pub(super) fn read<S>(settings: Settings<S>, mut section: Section<'_>, mut spec: S) -> S {
    for setting in settings {
        setting.read(&mut section, &mut spec);
    }
    section.finish();
    spec
}

/// A setting of a table. The table becomes an `S` in the plan.
pub(super) trait Setting<S>: Sync {
    /// The name, kind, default and meaning of the setting.
    fn field(&self) -> &Field;
    /// Reads the setting into `spec`. Does nothing where the section's code reads the setting.
    fn read(&self, section: &mut Section<'_>, spec: &mut S);
}

impl<S> Setting<S> for Field {
    fn field(&self) -> &Field {
        self
    }

    fn read(&self, _section: &mut Section<'_>, _spec: &mut S) {}
}

/// A setting with a place of its own in `S`.
pub(super) struct PlacedSetting<S, T> {
    field: Field,
    get_mut: fn(&mut S) -> &mut T,
    read: fn(&Item<'_>, &Kind) -> Option<T>,
}

/// A setting's name, and the access to its value in `S`. Made by [`at!`].
pub(super) struct SettingPlace<S, T> {
    pub(super) name: &'static str,
    pub(super) get_mut: fn(&mut S) -> &mut T,
}

/// The [`SettingPlace`] of a setting in the type `Spec`, which each section's file defines. In `at!(workers)`,
/// setting and field have the same name. `at!("url", location)` gives the name of the setting and the path
/// in `Spec`.
macro_rules! at {
    ($field:ident) => {
        at!(stringify!($field), $field)
    };
    ($name:expr, $($path:ident).+) => {
        crate::config::setting::SettingPlace {
            name: $name,
            get_mut: |spec: &mut Spec| &mut spec.$($path).+,
        }
    };
}
pub(super) use at;

/// A setting that its type and its kind read.
pub(super) const fn plain<S, T: PlainValue>(
    place: SettingPlace<S, T>,
    kind: Kind,
    default: Fallback,
    meaning: &'static str,
) -> PlacedSetting<S, T> {
    parsed(place, kind, default, meaning, T::read)
}

/// A setting that `read` reads.
pub(super) const fn parsed<S, T>(
    place: SettingPlace<S, T>,
    kind: Kind,
    default: Fallback,
    meaning: &'static str,
    read: fn(&Item<'_>, &Kind) -> Option<T>,
) -> PlacedSetting<S, T> {
    let field = field(place.name, kind, default, meaning);
    PlacedSetting { field, get_mut: place.get_mut, read }
}

impl<S, T> PlacedSetting<S, T> {
    /// The same setting, where a change applies only after a restart.
    pub(super) const fn restart(mut self) -> Self {
        self.field.restart = true;
        self
    }

    /// The same setting, of which no more than this is shown.
    pub(super) const fn masked(mut self, mask: Mask) -> Self {
        self.field.mask = mask;
        self
    }
}

impl<S, T> Setting<S> for PlacedSetting<S, T> {
    fn field(&self) -> &Field {
        &self.field
    }

    fn read(&self, section: &mut Section<'_>, spec: &mut S) {
        let Field { name, kind, .. } = &self.field;
        if let Some(value) = section.value(name, |item| (self.read)(item, kind)) {
            *(self.get_mut)(spec) = value;
        }
    }
}

/// A type of value that [`plain`] settings can have.
pub(super) trait PlainValue: Sized + 'static {
    /// The value of `item`. Where `item` is not of this kind, notes the problem and returns `None`.
    fn read(item: &Item<'_>, kind: &Kind) -> Option<Self>;
}

impl PlainValue for bool {
    fn read(item: &Item<'_>, _kind: &Kind) -> Option<Self> {
        item.flag()
    }
}

impl PlainValue for Duration {
    fn read(item: &Item<'_>, kind: &Kind) -> Option<Self> {
        item.duration(if let Kind::Duration(zero) = kind { *zero } else { Zero::Allowed })
    }
}

macro_rules! number {
    ($($type:ty),+) => {
        $(impl PlainValue for $type {
            fn read(item: &Item<'_>, kind: &Kind) -> Option<Self> {
                let number = match *kind {
                    Kind::Whole(min, max) => item.whole(min..=max),
                    Kind::Size(min, max) => item.size(min..=max),
                    _ => None,
                };
                // This conversion does not fail: the bounds of a setting's kind lie within the setting's
                // type.
                number.and_then(|number| Self::try_from(number).ok())
            }
        })+
    };
}
number!(u8, u16, u32, u64, usize);

impl PlainValue for StatusCode {
    fn read(item: &Item<'_>, kind: &Kind) -> Option<Self> {
        u16::read(item, kind).and_then(|number| Self::from_u16(number).ok())
    }
}

impl<T: PlainValue> PlainValue for Option<T> {
    fn read(item: &Item<'_>, kind: &Kind) -> Option<Self> {
        T::read(item, kind).map(Some)
    }
}

/// A value that the file writes as one of a few words. Mostly implemented by [`words!`].
pub(super) trait Spelled: Copy + PartialEq + Sized + 'static {
    /// Each word with its value.
    const WORDS: &'static [(&'static str, Self)];

    /// The word for this value.
    fn spelling(self) -> &'static str {
        Self::WORDS.iter().find(|(_, value)| *value == self).map_or("", |(word, _)| word)
    }
}

/// Implements [`Spelled`] for an enum: each word with its variant.
macro_rules! words {
    ($type:ty { $($word:literal => $variant:ident),+ $(,)? }) => {
        impl crate::config::setting::Spelled for $type {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$variant)),+];
        }
    };
}
pub(super) use words;

/// Reads one of the words of a type.
pub(super) fn one_word<T: Spelled>(item: &Item<'_>) -> Option<T> {
    item.word(T::WORDS)
}

/// All words of a type.
pub(super) fn spellings<T: Spelled>() -> Vec<&'static str> {
    T::WORDS.iter().map(|(word, _)| *word).collect()
}

impl<T: Spelled> PlainValue for T {
    fn read(item: &Item<'_>, _kind: &Kind) -> Option<Self> {
        one_word(item)
    }
}
