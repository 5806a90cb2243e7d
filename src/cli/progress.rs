//! How far a log has been read, for commands that take longer than a second. It is shown on standard error, if that
//! is a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use tokio::time::Instant;

use crate::limit::time::Timestamp;
use crate::replay::report::{number, time};

/// Nothing is shown before this time.
const PATIENCE: Duration = Duration::from_secs(1);
/// The least time between two updates of the line.
const BETWEEN: Duration = Duration::from_millis(200);
/// The clock is asked once in this number of lines, because that takes time.
const LINES: u64 = 1 << 12;

/// A line on the terminal. Each update replaces its text.
pub(super) struct ProgressLine {
    /// When it is updated next.
    next: Instant,
    is_wanted: bool,
    is_shown: bool,
}

impl ProgressLine {
    pub(super) fn new() -> Self {
        let (next, is_wanted) = (Instant::now() + PATIENCE, io::stderr().is_terminal());
        Self { next, is_wanted, is_shown: false }
    }

    /// Shows how many lines were read, and up to which time of the log. Does nothing until the next update is due.
    pub(super) fn show(&mut self, lines: u64, reached: Timestamp) {
        if !self.is_wanted || !lines.is_multiple_of(LINES) || Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + BETWEEN;
        self.is_shown = true;
        let (lines, reached) = (number(lines), time(reached));
        let _ = write!(io::stderr(), "\r\x1b[K{lines} lines, up to {reached}");
    }

    /// Clears the line.
    pub(super) fn end(self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
