//! The output for operators: log lines, throttle summaries, metrics, traces.
//!
//! This code never decides about a request, and never makes a request wait.

pub(crate) mod candidate_log;
pub mod candidates;
pub(crate) mod events;
mod format;
pub(crate) mod history;
pub(crate) mod log;
pub mod metrics;
pub(crate) mod repeated;
pub(crate) mod seldom;
mod sink;
pub(crate) mod throttled;
pub(crate) mod top_keys;
pub(crate) mod trace;

#[cfg(test)]
pub(crate) mod testing;
