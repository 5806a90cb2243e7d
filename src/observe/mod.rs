//! What an operator sees: log lines, throttle summaries, metrics.
//!
//! Nothing here decides about a request, and nothing here makes one wait.

pub mod events;
mod format;
mod hashed;
pub mod log;
pub mod metrics;
pub mod repeated;
pub mod seldom;
mod sink;
pub mod throttled;

#[cfg(test)]
pub(crate) mod testing;
