//! The limit that finds itself: how many requests may wait at once for an API whose answers come too late.
//!
//! `rule` says how many, by what `window` has counted, and `turns` says who is next. All of it is pure.

mod rule;
mod turns;
mod window;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
