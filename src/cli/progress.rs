//! A progress bar for commands that take longer than a second. It is shown on standard error, if that is a
//! terminal.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use tokio::time::Instant;

use crate::replay::log::LogProgress;
use crate::replay::report::number;

/// Nothing is shown before this time.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two updates of the line.
const BETWEEN: Duration = Duration::from_millis(200);
/// The time is read once in this many lines.
const LINES: u64 = 1 << 12;
/// The columns of the bar.
const COLUMNS: usize = 30;

/// A line that is written over again and again.
pub(super) struct ProgressBar {
    began: Instant,
    shown: Option<Instant>,
    is_wanted: bool,
}

impl ProgressBar {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), shown: None, is_wanted: io::stderr().is_terminal() }
    }

    /// Shows the progress, unless it was shown just before.
    pub(super) fn show(&mut self, lines: u64, progress: impl FnOnce() -> LogProgress) {
        if !self.is_wanted || !lines.is_multiple_of(LINES) {
            return;
        }
        let now = Instant::now();
        let is_due = match self.shown {
            Some(shown) => now - shown >= BETWEEN,
            None => now - self.began >= PATIENCE,
        };
        if is_due {
            self.shown = Some(now);
            let text = line(lines, progress(), now - self.began);
            let _ = write!(io::stderr(), "\r\x1b[K{text}");
        }
    }

    /// Clears the line.
    pub(super) fn end(self) {
        if self.shown.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(lines: u64, progress: LogProgress, took: Duration) -> String {
    let lines = number(lines);
    let Some(total) = progress.total.filter(|total| *total > 0) else {
        return format!("{lines} lines");
    };
    let read = progress.read.min(total);
    let done = usize::try_from(u128::from(read) * COLUMNS as u128 / u128::from(total));
    let done = done.unwrap_or(COLUMNS);
    let left = match read {
        0 => String::new(),
        read => {
            let micros = took.as_micros() * u128::from(total - read) / u128::from(read);
            format!(", {} s left", micros.div_ceil(1_000_000))
        }
    };
    let percent = u128::from(read) * 100 / u128::from(total);
    let (done, rest) = ("█".repeat(done), "░".repeat(COLUMNS - done));
    format!("{done}{rest} {percent} %, {lines} lines{left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_much_is_left() {
        let took = Duration::from_secs(10);
        let half = line(1_234_567, LogProgress { read: 50, total: Some(100) }, took);
        assert_eq!(
            half,
            format!("{}{} 50 %, 1,234,567 lines, 10 s left", "█".repeat(15), "░".repeat(15))
        );
        assert_eq!(line(1, LogProgress { read: 50, total: None }, took), "1 lines");
        assert_eq!(
            line(0, LogProgress { read: 0, total: Some(9) }, took),
            format!("{} 0 %, 0 lines", "░".repeat(30))
        );
        assert!(
            line(9, LogProgress { read: 12, total: Some(9) }, took).starts_with(&"█".repeat(30))
        );
    }
}
