//! Which log lines are written: what `log.level` and `RUST_LOG` may say.

use std::fmt;
use std::str::FromStr;

use tracing_subscriber::EnvFilter;

/// The names of the levels, the quietest first.
pub const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// A log filter that can be used: a level, or levels by target such as
/// `info,tidegate::throttle=off`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(String);

impl LogFilter {
    /// As written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// For a subscriber.
    pub fn to_env_filter(&self) -> EnvFilter {
        // It was read once before, so nothing in it is left out.
        EnvFilter::builder().parse_lossy(&self.0)
    }
}

impl Default for LogFilter {
    /// `info`.
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for LogFilter {
    type Err = LogFilterError;

    /// Looks at each part by itself, so that the error can name the first one that is wrong.
    fn from_str(text: &str) -> Result<Self, LogFilterError> {
        let wrong = |part: &&str| {
            let readable = EnvFilter::builder().parse(part).is_ok();
            !readable || part.trim().is_empty() || is_misspelt_level(part)
        };
        // A text without a comma is its only part, an empty one too.
        match text.split(',').find(wrong) {
            Some(part) => Err(LogFilterError { part: part.to_owned() }),
            None => Ok(Self(text.to_owned())),
        }
    }
}

/// A word by itself is read as a target, with all of its lines, and everything else is silent:
/// not what somebody wants who wrote `warning`. Only our own targets may stand alone.
fn is_misspelt_level(part: &str) -> bool {
    let word = part.trim();
    let level = LEVELS.iter().any(|level| word.eq_ignore_ascii_case(level));
    let number = word.len() == 1 && word.bytes().all(|digit| (b'0'..=b'5').contains(&digit));
    let target = word.contains(['=', '[']) || word.starts_with(env!("CARGO_PKG_NAME"));
    !(level || number || target)
}

/// The part of a filter that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{part}` is no log filter: write a level ({levels}), or TARGET=LEVEL such as `info,tidegate::throttle=off`",
    levels = LEVELS.join(", ")
)]
pub struct LogFilterError {
    part: String,
}

impl LogFilterError {
    /// What is wrong: one part of the text between commas.
    pub fn part(&self) -> &str {
        &self.part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_a_level_or_says_what_to_write() {
        let good = ["info", "WARN", "off", "3", "tidegate", "info,tidegate::throttle=off"];
        for text in good {
            let filter: LogFilter = text.parse().unwrap();
            assert_eq!(filter.as_str(), text);
        }
        let bad = [
            ("", ""),
            ("warning", "warning"),
            ("info,debgu", "debgu"),
            ("info,", ""),
            ("tidegate=loud", "tidegate=loud"),
            ("9", "9"),
        ];
        for (text, part) in bad {
            assert_eq!(text.parse::<LogFilter>().unwrap_err().part(), part, "{text}");
        }
        let error = "warning".parse::<LogFilter>().unwrap_err().to_string();
        assert!(error.contains("`warning`") && error.contains("off, error, warn, info"), "{error}");
    }
}
