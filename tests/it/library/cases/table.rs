//! The table: what each algorithm says to a few requests, worked out by hand.
//!
//! A row of `table/` begins with its name. Then come notes, the begin (a Monday, the begin of a window of each length,
//! where nothing else is said), the most that a request can take of the first limit with the seconds in which that is
//! there again, and limits as a file has them, all on one route, with `--` between them. A candidate says what it says
//! behind its limit. Behind an empty line is what happens: when (since the begin), what, and behind the colon what each
//! limit says.
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

const TABLES: [&str; 4] = [
    include_str!("table/buckets.txt"),
    include_str!("table/windows.txt"),
    include_str!("table/lists.txt"),
    include_str!("table/together.txt"),
];

/// A row of the table.
pub(super) struct Row {
    pub(super) name: &'static str,
    /// The lines of `[limits.NAME]`, of each limit.
    pub(super) limits: Vec<String>,
    pub(super) quota: (u64, Option<u64>),
    pub(super) begin: &'static str,
    pub(super) lines: &'static str,
}

/// All rows.
pub(super) fn rows() -> impl Iterator<Item = Row> {
    TABLES.into_iter().flat_map(|table| table.split("\n== ").skip(1).map(row))
}

fn row(text: &'static str) -> Row {
    let (head, lines) = text.trim_end().split_once("\n\n").expect(text);
    let (name, head) = head.split_once('\n').expect(text);
    let mut row = Row {
        name,
        limits: vec![String::new()],
        quota: (0, None),
        begin: "2024-01-01T00:00:00Z",
        lines,
    };
    for line in head.lines().filter(|line| !line.starts_with('#')) {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["--"] => row.limits.push(String::new()),
            ["begin", begin] => row.begin = begin,
            ["quota", most] => row.quota = (most.parse().unwrap(), None),
            ["quota", most, "in", seconds, "s"] => {
                row.quota = (most.parse().unwrap(), Some(seconds.parse().unwrap()));
            }
            _ => *row.limits.last_mut().unwrap() += &format!("{line}\n"),
        }
    }
    row
}

impl Row {
    /// Whether a line of its limits has this word.
    pub(super) fn is_of(&self, word: &str) -> bool {
        self.limits.iter().any(|lines| lines.contains(word))
    }
}
