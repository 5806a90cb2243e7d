//! One declaration for each setting. A table of `section/` lists its settings; how the file is read, the
//! JSON Schema, the rows of docs/reference.md and what a reload says of a change follow from that list.
//!
//! A setting whose value stands for itself is a [`Plain`] one: it has a place in the plan, and is read by
//! its kind. One that only means something beside others is a [`Field`], which its section reads.

use std::time::Duration;

use super::reader::{Item, Section, duration_text};
use super::shape::{Fallback, Field, Kind, Zero, field};

/// The settings of a table that becomes an `S`.
pub(super) type Settings<S> = &'static [&'static dyn Setting<S>];

/// The fields of a table, for its shape.
pub(super) fn fields<S>(settings: Settings<S>) -> Vec<&'static Field> {
    settings.iter().map(|setting| setting.field()).collect()
}

/// Reads the plain settings of a table.
pub(super) fn read<S>(settings: Settings<S>, section: &mut Section<'_>, spec: &mut S) {
    for setting in settings {
        setting.read(section, spec);
    }
}

/// What a reload makes of a setting that changed.
pub(super) enum Change {
    /// It holds from the next start.
    Restart,
    /// It is too long, or too secret, to be shown.
    Hidden,
    /// What it was, and what it is.
    Shown(String, String),
}

/// A setting of a table that becomes an `S`.
pub(super) trait Setting<S>: Sync {
    /// Its row in the table's shape.
    fn field(&self) -> &Field;
    /// Reads it, where it is a plain one.
    fn read(&self, section: &mut Section<'_>, spec: &mut S);
    /// What a reload says of it; `None` where it did not change, or where the section's code says it.
    fn change(&self, old: &S, new: &S) -> Option<Change>;
}

impl<S> Setting<S> for Field {
    fn field(&self) -> &Field {
        self
    }

    fn read(&self, _section: &mut Section<'_>, _spec: &mut S) {}

    fn change(&self, _old: &S, _new: &S) -> Option<Change> {
        None
    }
}

/// A setting with a place of its own in `S`.
pub(super) struct Plain<S, T> {
    field: Field,
    place: Place<S, T>,
    reader: Reader<T>,
    show: Option<fn(&T, &Kind) -> String>,
    restart: bool,
}

/// A setting's name, and its place in `S`. See [`at!`].
pub(super) struct Place<S, T> {
    pub(super) name: &'static str,
    pub(super) get: fn(&S) -> &T,
    pub(super) get_mut: fn(&mut S) -> &mut T,
}

/// The place of a setting in the type that the file calls `Spec`: by its name, or by a name and a path.
macro_rules! at {
    ($field:ident) => {
        at!(stringify!($field), $field)
    };
    ($name:expr, $($path:ident).+) => {
        crate::config::setting::Place {
            name: $name,
            get: |spec: &Spec| &spec.$($path).+,
            get_mut: |spec: &mut Spec| &mut spec.$($path).+,
        }
    };
}
pub(super) use at;

enum Reader<T> {
    /// The section's own code.
    Section,
    /// The kind says it all.
    Kind(fn(&Item<'_>, &Kind) -> Option<T>),
    /// A function of this setting.
    Parse(fn(&Item<'_>) -> Option<T>),
}

/// A setting that is read, and shown, by its kind.
pub(super) const fn plain<S, T: Value>(
    place: Place<S, T>,
    kind: Kind,
    default: Fallback,
    meaning: &'static str,
) -> Plain<S, T> {
    let field = field(place.name, kind, default, meaning);
    Plain { field, place, reader: Reader::Kind(T::read), show: Some(T::show), restart: false }
}

/// A setting that is one of a few words.
pub(super) const fn word<S, T: Spelled>(
    place: Place<S, T>,
    default: Fallback,
    meaning: &'static str,
) -> Plain<S, T> {
    plain(place, Kind::Word(spellings::<T>), default, meaning)
}

/// A setting that `parse` reads. A reload does not show it.
pub(super) const fn parsed<S, T: PartialEq + 'static>(
    place: Place<S, T>,
    kind: Kind,
    default: Fallback,
    meaning: &'static str,
    parse: fn(&Item<'_>) -> Option<T>,
) -> Plain<S, T> {
    let field = field(place.name, kind, default, meaning);
    Plain { field, place, reader: Reader::Parse(parse), show: None, restart: false }
}

/// A setting that its section reads, and of which a reload says no more than that it changed.
pub(super) const fn compared<S, T: PartialEq + 'static>(
    place: Place<S, T>,
    kind: Kind,
    default: Fallback,
    meaning: &'static str,
) -> Plain<S, T> {
    let field = field(place.name, kind, default, meaning);
    Plain { field, place, reader: Reader::Section, show: None, restart: false }
}

impl<S, T> Plain<S, T> {
    /// The same, where a change waits for the next start.
    pub(super) const fn restart(mut self) -> Self {
        self.restart = true;
        self
    }

    /// The same, shown by this function.
    pub(super) const fn shown(mut self, show: fn(&T, &Kind) -> String) -> Self {
        self.show = Some(show);
        self
    }
}

impl<S, T: PartialEq> Setting<S> for Plain<S, T> {
    fn field(&self) -> &Field {
        &self.field
    }

    fn read(&self, section: &mut Section<'_>, spec: &mut S) {
        let value = match self.reader {
            Reader::Section => return,
            Reader::Kind(read) => {
                section.value(self.field.name, |item| read(item, &self.field.kind))
            }
            Reader::Parse(parse) => section.value(self.field.name, parse),
        };
        if let Some(value) = value {
            *(self.place.get_mut)(spec) = value;
        }
    }

    fn change(&self, old: &S, new: &S) -> Option<Change> {
        let (old, new) = ((self.place.get)(old), (self.place.get)(new));
        if old == new {
            return None;
        }
        let text = |value| self.show.map(|show| show(value, &self.field.kind));
        match (text(old), text(new)) {
            _ if self.restart => Some(Change::Restart),
            (Some(old), Some(new)) => (old != new).then_some(Change::Shown(old, new)),
            _ => Some(Change::Hidden),
        }
    }
}

/// What a plain setting can hold.
pub(super) trait Value: PartialEq + Sized + 'static {
    /// The value of `item`; `None` where it is not of this kind, which is noted.
    fn read(item: &Item<'_>, kind: &Kind) -> Option<Self>;
    /// As an operator reads it.
    fn show(&self, kind: &Kind) -> String;
}

impl Value for bool {
    fn read(item: &Item<'_>, _kind: &Kind) -> Option<Self> {
        item.flag()
    }

    fn show(&self, _kind: &Kind) -> String {
        self.to_string()
    }
}

impl Value for Duration {
    fn read(item: &Item<'_>, kind: &Kind) -> Option<Self> {
        item.duration(if let Kind::Duration(zero) = kind { *zero } else { Zero::Allowed })
    }

    fn show(&self, _kind: &Kind) -> String {
        duration_text(*self)
    }
}

macro_rules! number {
    ($($type:ty),+) => {
        $(impl Value for $type {
            fn read(item: &Item<'_>, kind: &Kind) -> Option<Self> {
                let number = match *kind {
                    Kind::Whole { min, max } => item.whole(min..=max),
                    Kind::Size { min, max } => item.size(min..=max),
                    _ => None,
                };
                // A kind's bounds lie within the type of every setting that has it.
                number.and_then(|number| Self::try_from(number).ok())
            }

            fn show(&self, kind: &Kind) -> String {
                let unit = if matches!(kind, Kind::Size { .. }) { "B" } else { "" };
                format!("{self}{unit}")
            }
        })+
    };
}
number!(u8, u32, u64, usize);

impl<T: Value> Value for Option<T> {
    fn read(item: &Item<'_>, kind: &Kind) -> Option<Self> {
        T::read(item, kind).map(Some)
    }

    fn show(&self, kind: &Kind) -> String {
        self.as_ref().map_or("none".to_owned(), |value| value.show(kind))
    }
}

/// A value that the file spells as one of a few words.
pub(super) trait Spelled: Copy + PartialEq + Sized + 'static {
    /// Each word with what it means.
    const WORDS: &'static [(&'static str, Self)];
    /// Words of a later version.
    const LATER: &'static [&'static str] = &[];

    /// The word for it.
    fn spelling(self) -> &'static str {
        Self::WORDS.iter().find(|(_, value)| *value == self).map_or("", |(word, _)| word)
    }
}

/// The words of a value.
pub(super) fn spellings<T: Spelled>() -> Vec<&'static str> {
    T::WORDS.iter().map(|(word, _)| *word).collect()
}

impl<T: Spelled> Value for T {
    fn read(item: &Item<'_>, _kind: &Kind) -> Option<Self> {
        item.word(T::WORDS, T::LATER)
    }

    fn show(&self, _kind: &Kind) -> String {
        self.spelling().to_owned()
    }
}
