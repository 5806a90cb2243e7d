//! The output for operators: log lines, throttle summaries, metrics, traces.
//!
//! This code never decides about a request, and never makes a request wait.

pub(crate) mod candidate_log;
pub mod candidates;
pub(crate) mod error_log;
pub(crate) mod events;
mod format;
pub(crate) mod history;
pub(crate) mod log;
pub(crate) mod log_interval;
pub mod metrics;
pub(crate) mod panics;
pub(crate) mod repeated;
mod sink;
pub(crate) mod throttled;
pub(crate) mod top_keys;
pub(crate) mod trace;

#[cfg(test)]
pub(crate) mod testing;

/// The first `most` bytes of a text that a client chose, or a few bytes less where a character would be cut.
fn start(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or(text)
}
