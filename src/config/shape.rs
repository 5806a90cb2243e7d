//! What the tables of `proxy.toml` look like: their settings, and of each the name, the kind of value, the
//! default and the meaning. `section` declares them, the reader and `schema` go by them.

/// A table of the file.
#[derive(Debug)]
pub(super) struct Shape {
    /// As messages and headings name it.
    pub(super) title: &'static str,
    /// Its fields, in the order of docs/reference.md.
    pub(super) fields: fn() -> Vec<&'static Field>,
    /// Names that are refused with "not supported yet".
    pub(super) later: &'static [&'static str],
}

/// One field of a table.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) default: Fallback,
    /// In one line.
    pub(super) meaning: &'static str,
}

/// What holds where a field is not there.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fallback {
    /// It must be there.
    Required,
    /// This value, in TOML.
    Value(&'static str),
    /// What these words say.
    Words(&'static str),
}

/// What a field may hold.
#[derive(Debug)]
pub(super) enum Kind {
    Flag,
    Whole {
        min: u64,
        max: u64,
    },
    Duration(Zero),
    /// Bytes.
    Size {
        min: u64,
        max: u64,
    },
    Rate,
    Network,
    Text,
    /// One of these words.
    Word(fn() -> Vec<&'static str>),
    /// One of these words, or any other text.
    WordOrText(&'static [&'static str]),
    /// A table of any names, each with a text.
    Texts,
    Table(&'static Shape),
    /// A table of names, each with such a table: `[limits.NAME]`.
    Named(&'static Shape),
    List(&'static Self),
    /// Any of these.
    Either(&'static [Self]),
}

/// Whether a duration may be zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zero {
    Allowed,
    Refused,
}

impl Kind {
    /// A time of more than zero.
    pub(super) const TIME: Self = Self::Duration(Zero::Refused);
    /// A list of texts.
    pub(super) const TEXTS: Self = Self::List(&Self::Text);

    /// Bytes, at least one.
    pub(super) const BYTES: Self = Self::Size { min: 1, max: u64::MAX };

    /// A whole number in this range.
    pub(super) const fn whole(min: u64, max: u64) -> Self {
        Self::Whole { min, max }
    }
}

/// A field that its section reads by code of its own.
pub(super) const fn field(
    name: &'static str,
    kind: Kind,
    default: Fallback,
    meaning: &'static str,
) -> Field {
    Field { name, kind, default, meaning }
}
