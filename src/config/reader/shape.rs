//! The form of the tables of `proxy.toml`. Each field of a table has a name, a kind of value, a default and
//! a meaning. `section` declares the tables.

/// A table of the file.
#[derive(Debug)]
pub(crate) struct Shape {
    /// The table's name in messages.
    pub(crate) title: &'static str,
    /// The table's fields, in the order of docs/reference.md.
    pub(crate) fields: fn() -> Vec<&'static Field>,
    /// The names that other programs have for these fields.
    pub(crate) elsewhere: &'static [Elsewhere],
    /// The table must have exactly one of these fields. Empty if there is no such rule. The section's code refuses a
    /// file with none or several of them.
    pub(crate) one_of: &'static [&'static str],
    /// Fields that exclude each other. Empty if there are none. The section's code refuses a file with all of them.
    pub(crate) not_both: &'static [&'static str],
}

/// The name that a field has in other programs, in lower case, without `_` and `-`; the field here; and what else is
/// different here.
pub(crate) type Elsewhere = (&'static str, &'static str, Option<&'static str>);

impl Shape {
    pub(crate) const fn new(title: &'static str, fields: fn() -> Vec<&'static Field>) -> Self {
        Self { title, fields, elsewhere: &[], one_of: &[], not_both: &[] }
    }
}

/// One field of a table.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) default: Fallback,
    /// One line for docs/reference.md and the JSON Schema.
    pub(crate) meaning: &'static str,
    /// What may be shown of the value.
    pub(crate) mask: Mask,
    /// Whether a change applies only after a restart.
    pub(crate) restart: bool,
}

/// What the admin endpoint and the report of a reload show of the texts of a field, and of the fields of its
/// table. A text that came from the environment is never shown.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mask {
    /// The text.
    Open,
    /// Nothing.
    Secret,
    /// What this function leaves of the text.
    Shown(fn(&str) -> String),
}

/// The value of a field that the file does not have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fallback {
    /// There is no default: the table must always have the field.
    Required,
    /// This value, written as TOML.
    Value(&'static str),
    /// The table's own defaults.
    Table,
    /// The count of the table's `rate`. These words describe the default in the reference.
    Count(&'static str),
    /// A default that is not a fixed value, or no default at all. These words describe it in the reference.
    /// The section's code has the default, or refuses a file without the field.
    Words(&'static str),
}

impl Fallback {
    /// The words for a default that is no fixed value.
    pub(crate) fn words(self) -> Option<&'static str> {
        match self {
            Self::Required | Self::Value(_) => None,
            Self::Table => Some("its defaults"),
            Self::Count(words) | Self::Words(words) => Some(words),
        }
    }
}

/// What a field may hold.
#[derive(Debug)]
pub(crate) enum Kind {
    Flag,
    /// A whole number from the first bound to the second, both included.
    Whole(u64, u64),
    /// A number from 0 to 1.
    Share,
    /// A whole number from 0 to 100 with a percent sign.
    Percent,
    /// A duration of at least so many milliseconds, and what is said of a shorter one.
    Duration(u64, &'static str),
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
    /// A table of at least this number of names, each with a value of this kind.
    TableOf(usize, &'static Self),
    /// A table of any names and values.
    Object,
    Table(&'static Shape),
    /// A table of any names, each with a table of this shape: `[limits.NAME]`.
    Named(&'static Shape),
    /// A list of at least this number of values of this kind.
    List(usize, &'static Self),
    /// A value of any of these kinds.
    Either(&'static [Self]),
}

impl Kind {
    /// A duration, also zero.
    pub(crate) const TIME: Self = Self::Duration(0, "");
    /// A duration of more than zero.
    pub(crate) const TIME_ABOVE_ZERO: Self = Self::Duration(1, "expected more than zero");
    pub(crate) const TEXT_LIST: Self = Self::List(0, &Self::Text);

    /// A path pattern.
    pub(crate) const PATH: Self = Self::Form(
        r"/(\{\*[\w-]+\}|(\{[\w-]+\}|[^/{}()*<:;?#\[\]\\^ ][^/{}()*;?#\[\]\\^ ]*)(/(\{[\w-]+\}|[^/{}()*<:;?#\[\]\\^ ][^/{}()*;?#\[\]\\^ ]*))*(/(\{\*[\w-]+\})?)?)?",
    );
    pub(crate) const TEXT_TABLE: Self = Self::TableOf(0, &Self::Text);
    /// A part of a key, or several alternatives.
    pub(crate) const KEY_SOURCE: Self = Self::Form(
        r"(ip|path|method|host|route|cert|(header|cookie|query|param|jwt|body):[^|]+)(\s*\|\s*(ip|path|method|host|route|cert|(header|cookie|query|param|jwt|body):[^|]+))*",
    );
    /// The parts of a key that is no limit's.
    pub(crate) const KEY_SOURCES: Self = Self::List(1, &Self::KEY_SOURCE);
    /// An upstream's server.
    pub(crate) const SERVER_URL: Self = Self::Form(r"(https?|h2c)://[^/?#@\s]+/?|unix:/.+");
    /// An address to listen on.
    pub(crate) const ADDRESS: Self = Self::Form(r"([\d.]+|\[[\da-fA-F:.%]+\]):\d+|unix:/.+");
    /// A name of a limit or an upstream.
    pub(crate) const NAME: Self = Self::Form(r"[A-Za-z0-9_.-]{1,64}");
    /// The name of a header.
    pub(crate) const HEADER: Self = Self::Form(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+");
    /// A path of a request.
    pub(crate) const ABSOLUTE: Self = Self::Form(r"/.*");

    /// Bytes, at least one.
    pub(crate) const SIZE_ABOVE_ZERO: Self = Self::Size(1, u64::MAX);
}
