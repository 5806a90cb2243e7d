//! The output for operators: log lines, throttle summaries, metrics, traces.
//!
//! This code never decides about a request, and never makes a request wait.

mod distinct;
pub(crate) mod error_log;
pub(crate) mod events;
mod format;
pub(crate) mod history;
pub(crate) mod log;
pub(crate) mod log_interval;
pub mod metrics;
pub(crate) mod near_limit;
pub(crate) mod pace;
pub(crate) mod panics;
pub(crate) mod repeated;
pub(crate) mod sink;
pub(crate) mod throttled;
pub(crate) mod top_keys;
pub(crate) mod trace;

#[cfg(test)]
pub(crate) mod testing;

use std::collections::hash_map::RandomState;
use std::fmt::{Display, Write as _};
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use uuid::Uuid;

use crate::limit::time::Timestamp;

/// Hashes keys. The secret is random, so that no client can find two keys with the same hash. All workers have the same
/// secret, so that their keys can be added up.
static KEY_HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The process: its machine's name and its number.
pub(crate) static PROCESS: LazyLock<String> =
    LazyLock::new(|| format!("{}:{}", host(), std::process::id()));

/// The number of the next access line of this process, from 1.
pub(crate) fn next_access_line() -> u64 {
    static LINES: AtomicU64 = AtomicU64::new(0);
    LINES.fetch_add(1, Ordering::Relaxed) + 1
}

/// A JSON object with these members, in ASCII alone: no character in a value misleads a reader of the log. The names
/// are those of limits, which need no escapes.
pub(crate) fn json_object<N: Display, V: Serialize>(
    members: impl IntoIterator<Item = (N, V)>,
) -> String {
    // Most lines have room.
    let mut text = String::with_capacity(128);
    for (name, value) in members {
        text.push(if text.is_empty() { '{' } else { ',' });
        // Writing into a string never fails, and values are texts, lists and numbers.
        let _ = write!(text, "\"{name}\":");
        text.push_str(&serde_json::to_string(&value).unwrap_or_default());
    }
    text.push_str(if text.is_empty() { "{}" } else { "}" });
    if text.is_ascii() {
        return text;
    }
    let mut ascii = String::with_capacity(2 * text.len());
    for c in text.chars() {
        match c.is_ascii() {
            true => ascii.push(c),
            false => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(ascii, "\\u{unit:04x}");
                }
            }
        }
    }
    ascii
}

/// The hash of a key. No client can find two keys with the same one.
pub(crate) fn key_hash(key: &[u8]) -> u64 {
    let mut hasher = KEY_HASHER.build_hasher();
    hasher.write(key);
    hasher.finish()
}

/// A new ID for an event at this time of day: a UUID of version 7 with microseconds (RFC 9562, 5.7 and 6.2).
pub(crate) fn new_uuid(wall: Timestamp) -> Uuid {
    let (millis, micros) = (wall.as_micros() / 1_000, wall.as_micros() % 1_000);
    Uuid::from_u64_pair(millis << 16 | 7 << 12 | micros << 2, 1 << 63 | fastrand::u64(..) >> 2)
}

/// The machine's name. Empty if it cannot be read.
pub(crate) fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Whole milliseconds, rounded down.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Whole milliseconds, rounded up: a client that waits for this time has waited long enough.
pub(crate) fn millis_up(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The first `most` bytes of a text that a client chose, or a few bytes less if a character would be cut.
pub(crate) fn start(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or(text)
}
