//! The table: what each algorithm says to a few requests, worked out by hand.
//!
//! A row has limits as a file has them, all on one route, and lines of what happens: when (since the
//! row's begin), what, and behind the colon what each limit says.
//!
//! | happens | |
//! | --- | --- |
//! | `take 2` | a request of this cost |
//! | `take 2 now` | the same where nobody may be held any more |
//! | `rate 5/10s` | from here on the first limit has this rate, as after a reload |
//! | `end 1` | the first request has ended |
//! | `used 3 more`, `used 3 less` | the last request that passed used so many tokens more, or less, of the first limit |
//! | `used 3 back` | so many tokens of the first limit go back, of whichever requests |
//!
//! | said | |
//! | --- | --- |
//! | `go 5` | it passes, and five remain |
//! | `hold 2s 0` | it passes in two seconds, and none remain |
//! | `no 2s 1` | it is refused for two seconds, and one remains |
//! | `never 3` | it never passes, and three remain |

mod buckets;
mod lists;
mod together;
mod windows;

/// All rows.
pub(super) fn rows() -> impl Iterator<Item = &'static Row> {
    [buckets::ROWS, windows::ROWS, lists::ROWS, together::ROWS].into_iter().flatten()
}

/// A row of the table.
pub(super) struct Row {
    pub(super) name: &'static str,
    /// The lines of `[limits.NAME]`, of each limit. A candidate says what it says behind its limit.
    pub(super) limits: &'static [&'static str],
    /// The most that a request can take of the first limit, and the seconds in which that is there again.
    pub(super) quota: (u64, Option<u64>),
    pub(super) begin: &'static str,
    pub(super) lines: &'static str,
}

impl Row {
    /// Whether a line of its limits has this word.
    pub(super) fn is_of(&self, word: &str) -> bool {
        self.limits.iter().any(|lines| lines.contains(word))
    }
}

/// A Monday, and the begin of a window of each length.
const MONDAY: &str = "2024-01-01T00:00:00Z";

const fn row(
    name: &'static str,
    limits: &'static [&'static str],
    quota: (u64, Option<u64>),
    lines: &'static str,
) -> Row {
    Row { name, limits, quota, begin: MONDAY, lines }
}

const fn from(begin: &'static str, row: Row) -> Row {
    Row { begin, ..row }
}
