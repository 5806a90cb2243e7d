//! The output for operators: log lines, throttle summaries, metrics, traces.
//!
//! This code never decides about a request, and never makes a request wait.

pub(crate) mod candidate_log;
pub mod candidates;
pub mod events;
mod format;
pub(crate) mod history;
pub mod log;
pub mod metrics;
pub mod repeated;
pub mod seldom;
mod sink;
pub mod throttled;
pub(crate) mod top_keys;
pub mod trace;

#[cfg(test)]
pub(crate) mod testing;
