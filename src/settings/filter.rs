//! The filter of log lines: the texts that `log.level` and `RUST_LOG` may have.

use std::str::FromStr;

use tracing_subscriber::EnvFilter;

/// The names of the levels, the quietest first.
pub(crate) const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// A valid log filter: a level, or levels by target such as `info,tidegate::throttle=off`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogFilter(String);

impl LogFilter {
    /// The filter for a `tracing` subscriber. The library of HTTP/2 writes a warning for each connection that
    /// floods it. tidegate counts these connections itself, in a summary. Therefore the library is silent unless
    /// the filter names it.
    pub(crate) fn to_env_filter(&self) -> EnvFilter {
        // The text was checked when it was parsed, so the lossy parser drops nothing. Of two parts for the same
        // target the last one holds.
        EnvFilter::builder().parse_lossy(format!("h2=off,{}", self.0))
    }
}

impl Default for LogFilter {
    /// `info`.
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl FromStr for LogFilter {
    type Err = LogFilterError;

    /// Checks each part by itself: the error can then name the first wrong part.
    fn from_str(text: &str) -> Result<Self, LogFilterError> {
        let wrong = |part: &&str| {
            let readable = EnvFilter::builder().parse(part).is_ok();
            !readable || part.trim().is_empty() || is_misspelt_level(part)
        };
        // A text without a comma is one part, and so is an empty text.
        match text.split(',').find(wrong) {
            Some(part) => Err(LogFilterError { part: part.to_owned() }),
            None => Ok(Self(text.to_owned())),
        }
    }
}

/// `EnvFilter` reads an unknown word as a target: that target logs everything, and all others are silent.
/// For a misspelt level such as `warning` this is wrong. Only tidegate's own targets may stand alone.
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
pub(crate) struct LogFilterError {
    /// The wrong part: the text between two commas.
    pub(crate) part: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_a_level_or_says_what_to_write() {
        let good = ["info", "WARN", "off", "3", "tidegate", "info,tidegate::throttle=off"];
        for text in good {
            let filter: LogFilter = text.parse().unwrap();
            assert_eq!(filter.0, text);
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
            assert_eq!(text.parse::<LogFilter>().unwrap_err().part, part, "{text}");
        }
        let error = "warning".parse::<LogFilter>().unwrap_err().to_string();
        assert!(error.contains("`warning`") && error.contains("off, error, warn, info"), "{error}");
    }
}
