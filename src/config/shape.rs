//! The form of the tables of `proxy.toml`. Each field of a table has a name, a kind of value, a default and
//! a meaning. `section` declares the tables; `reader` and `schema` use the declarations.

/// A table of the file.
#[derive(Debug)]
pub(super) struct Shape {
    /// The table's name in messages.
    pub(super) title: &'static str,
    /// The table's fields, in the order of docs/reference.md.
    pub(super) fields: fn() -> Vec<&'static Field>,
    /// What other programs call these fields.
    pub(super) elsewhere: &'static [Elsewhere],
    /// Fields of which the table must have exactly one. Empty where there are none.
    pub(super) one_of: &'static [&'static str],
}

/// The name that a field has in other programs.
#[derive(Debug)]
pub(super) struct Elsewhere {
    /// The name in lower case, without `_` and `-`.
    pub(super) name: &'static str,
    /// The field here.
    pub(super) ours: &'static str,
    /// What else is different here.
    pub(super) help: Option<&'static str>,
}

impl Shape {
    pub(super) const fn new(title: &'static str, fields: fn() -> Vec<&'static Field>) -> Self {
        Self { title, fields, elsewhere: &[], one_of: &[] }
    }

    /// The same table, whose fields have these names in other programs.
    pub(super) const fn called_elsewhere(self, elsewhere: &'static [Elsewhere]) -> Self {
        Self { elsewhere, ..self }
    }

    /// The same table, which must have exactly one of these fields. The section's code refuses a file with
    /// none or several.
    pub(super) const fn with_one_of(self, one_of: &'static [&'static str]) -> Self {
        Self { one_of, ..self }
    }
}

/// One field of a table.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) default: Fallback,
    /// One line for docs/reference.md and the JSON Schema.
    pub(super) meaning: &'static str,
    /// What may be shown of the value.
    pub(super) mask: Mask,
    /// Whether a change applies only after a restart.
    pub(super) restart: bool,
}

/// What the admin endpoint and the report of a reload show of the texts of a field, and of the fields of its
/// table. A text that came from the environment is never shown.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mask {
    /// The text.
    Open,
    /// Nothing.
    Secret,
    /// What this function leaves of the text.
    Shown(fn(&str) -> String),
}

/// The value of a field that the file does not have.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fallback {
    /// There is no default: the table must always have the field.
    Required,
    /// This value, written as TOML.
    Value(&'static str),
    /// The table's own defaults.
    Table,
    /// The count of the `rate` beside the field. These words describe it in the reference.
    Count(&'static str),
    /// A default that is not a fixed value, or no default at all. These words describe it in the reference.
    /// The section's code has the default, or refuses a file without the field.
    Words(&'static str),
}

impl Fallback {
    /// The words for a default that is no fixed value.
    pub(super) fn words(self) -> Option<&'static str> {
        match self {
            Self::Required | Self::Value(_) => None,
            Self::Table => Some("its defaults"),
            Self::Count(words) | Self::Words(words) => Some(words),
        }
    }
}

/// What a field may hold.
#[derive(Debug)]
pub(super) enum Kind {
    Flag,
    /// A whole number from the first bound to the second, both included.
    Whole(u64, u64),
    /// A number from 0 to 1.
    Share,
    /// A whole number from 0 to 100 with a percent sign.
    Percent,
    Duration(Zero),
    /// Bytes, from the first bound to the second, both included.
    Size(u64, u64),
    Rate,
    Network,
    Text,
    /// A text of the form that this regular expression describes to editors. The section's code refuses others, and
    /// may be stricter.
    Form(&'static str),
    /// One of these words.
    Word(fn() -> Vec<&'static str>),
    /// One of these words, or any other text.
    WordOrText(&'static [&'static str]),
    /// A table of any names, each with a text.
    TextTable,
    Table(&'static Shape),
    /// A table of any names, each with a table of this shape: `[limits.NAME]`.
    Named(&'static Shape),
    List(&'static Self),
    /// A value of any of these kinds.
    Either(&'static [Self]),
}

/// Whether a duration may be zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zero {
    Allowed,
    Refused,
}

impl Kind {
    /// A duration of more than zero.
    pub(super) const TIME_ABOVE_ZERO: Self = Self::Duration(Zero::Refused);
    pub(super) const TEXT_LIST: Self = Self::List(&Self::Text);

    /// A path pattern.
    pub(super) const PATH: Self = Self::Form(
        r"/(\{\*[\w-]+\}|(\{[\w-]+\}|[^/{}()*<:;?#\[\]\\^ ][^/{}()*;?#\[\]\\^ ]*)(/(\{[\w-]+\}|[^/{}()*<:;?#\[\]\\^ ][^/{}()*;?#\[\]\\^ ]*))*(/(\{\*[\w-]+\})?)?)?",
    );
    /// A part of a key, or several alternatives.
    pub(super) const KEY_SOURCES: Self = Self::List(&Self::Form(
        r"(ip|path|method|host|route|cert|(header|cookie|query|param):[^|]+)(\s*\|\s*(ip|path|method|host|route|cert|(header|cookie|query|param):[^|]+))*",
    ));
    /// An upstream's server.
    pub(super) const SERVER_URL: Self = Self::Form(r"(https?|h2c)://[^/?#@\s]+/?|unix:/.+");
    /// An address to listen on.
    pub(super) const ADDRESS: Self = Self::Form(r"([\d.]+|\[[\da-fA-F:.%]+\]):\d+|unix:/.+");
    /// A name of a limit or an upstream.
    pub(super) const NAME: Self = Self::Form(r"[A-Za-z0-9_.-]{1,64}");
    /// The name of a header.
    pub(super) const HEADER: Self = Self::Form(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+");
    /// A path of a request.
    pub(super) const ABSOLUTE: Self = Self::Form(r"/.*");

    /// Bytes, at least one.
    pub(super) const SIZE_ABOVE_ZERO: Self = Self::Size(1, u64::MAX);
}

/// A field of a table. Used alone in a table, it is a field that the section's code reads.
pub(super) const fn field(
    name: &'static str,
    kind: Kind,
    default: Fallback,
    meaning: &'static str,
) -> Field {
    Field { name, kind, default, meaning, mask: Mask::Open, restart: false }
}

impl Field {
    /// The same field, where a change applies only after a restart.
    pub(super) const fn restart(self) -> Self {
        Self { restart: true, ..self }
    }

    /// The same field, of which no more than this is shown.
    pub(super) const fn masked(self, mask: Mask) -> Self {
        Self { mask, ..self }
    }
}
