//! Reads the file's tree, value by value, and notes what is wrong with each.
//!
//! `section` asks a [`Section`] for its fields, and an [`Item`] for what its field can hold. Neither knows
//! what the fields mean.

mod context;
pub(super) mod environment;
mod item;
mod plain;
mod problem;
mod section;
mod setting;
mod shape;
mod synonyms;
mod syntax;
mod value;
mod wrong;

pub(super) use self::context::{Context, NotedProblem};
pub(super) use self::item::Item;
pub(crate) use self::plain::Spelled;
pub(super) use self::plain::{PlainValue, one_word, spellings, words};
pub(super) use self::problem::Span;
pub use self::problem::{Colour, Problems};
pub(crate) use self::problem::{Problem, Severity, enumerate, nearest};
pub(super) use self::section::{FieldEntry, Section};
pub(super) use self::setting::{SettingList, at, field, fields, read, setting};
pub(super) use self::shape::Fallback::{Count, Required, Table, Value, Words};
pub(super) use self::shape::{Elsewhere, Fallback, Field, Kind, Mask, Shape};
pub(super) use self::syntax::first as first_syntax_error;
pub use self::value::duration;
pub(crate) use self::value::{DurationError, duration_text, size};
pub(super) use self::value::{NETWORK, network, size_text};
pub(super) use self::wrong::Wrong;
