//! Routing: which route a request takes.
//!
//! A path is compared in its matching form, segment by segment. In a segment a literal wins over
//! `{parameter}`, and `{parameter}` wins over `{*rest}`. The first segment in which two patterns differ
//! decides between them. Among routes with the same path the conditions decide (`conditions.rs`). `table`
//! finds a request's route.

mod conditions;
mod foreign;
mod params;
mod pattern;
mod rewrite;
mod table;

pub use conditions::{Conditions, HostPattern};
pub(crate) use foreign::{is_pattern, read_pattern};
pub use params::PathParams;
pub use pattern::{Pattern, PatternError};
pub(crate) use rewrite::Rewrite;
pub use table::{NoRoute, RouteTable};
