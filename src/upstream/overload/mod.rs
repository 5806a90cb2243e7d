//! The limit that finds itself: how many requests may wait at once for an API whose answers come too late.
//!
//! `rule` says how many, by what `window` has counted, and `turns` says who is next. These are pure. `report` is what
//! operators see.

pub(crate) mod report;
pub(crate) mod rule;
pub(super) mod turns;
pub(super) mod window;

#[cfg(test)]
mod rule_tests;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
