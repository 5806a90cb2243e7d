//! The number of lines that were read, for commands that take longer than a second. It is shown on standard error,
//! if that is a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use tokio::time::Instant;

use crate::replay::report::number;

/// Nothing is shown before this time.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two updates of the line.
const BETWEEN: Duration = Duration::from_millis(200);
/// The time is read once in this many lines.
const LINES: u64 = 1 << 12;

/// A line that is written over again and again.
pub(super) struct LineCounter {
    /// When the number is shown next.
    due: Instant,
    is_shown: bool,
    is_wanted: bool,
}

impl LineCounter {
    pub(super) fn new() -> Self {
        let is_wanted = io::stderr().is_terminal();
        Self { due: Instant::now() + PATIENCE, is_shown: false, is_wanted }
    }

    /// Shows the number of lines so far, unless it was shown just before.
    pub(super) fn show(&mut self, lines: u64) {
        if !self.is_wanted || !lines.is_multiple_of(LINES) || Instant::now() < self.due {
            return;
        }
        self.is_shown = true;
        self.due = Instant::now() + BETWEEN;
        let _ = write!(io::stderr(), "\r\x1b[K{} lines", number(lines));
    }

    /// Clears the line.
    pub(super) fn end(self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
