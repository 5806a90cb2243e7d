//! What an operator sees: log lines, throttle summaries, metrics.
//!
//! Nothing here decides about a request, and nothing here makes one wait.

pub mod events;
pub mod failed;
mod format;
mod hashed;
pub mod log;
pub mod malformed;
pub mod metrics;
mod repeated;
mod sink;
pub mod throttled;

#[cfg(test)]
pub(crate) mod testing;
