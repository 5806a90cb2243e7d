//! Runs the requests of access logs through the limits of a file: `tidegate replay`.
//!
//! `log` reads the lines. [`Replay::request`] takes each request through the limits of one file, or of two
//! files that are compared: `judge` decides by the code and the buckets of real requests, and `tally` counts.
//! `fact` knows what a log may not tell. `report` makes the answer of the counts, and writes it. `cases`
//! tries the `[[tests]]` of a file in the same way, and `suggest` finds limits for a log.

pub(crate) mod cases;
pub(crate) mod fact;
pub mod judge;
pub mod log;
pub(crate) mod report;
pub(crate) mod suggest;
pub(crate) mod tally;
pub(crate) mod timeline;

use self::fact::Assumption;
use self::judge::{Judge, Untold};
use self::log::LogRecord;
use self::tally::ReplayTally;
use crate::limit::Mode;
use crate::limit::time::Timestamp;
use crate::plan::Plan;

/// The requests of a log on their way through the limits of one file, or of two.
pub(crate) struct Replay<'p> {
    /// The files, in the order in which they were given.
    pub(crate) sides: Vec<Side<'p>>,
    /// The log's time.
    pub(crate) clock: LogClock,
}

/// One of the files whose limits are replayed.
pub(crate) struct Side<'p> {
    /// The file's limits, with buckets of their own.
    pub(crate) judge: Judge<'p>,
    /// What the limits decided, as counts.
    pub(crate) tally: ReplayTally<'p>,
}

/// The clock of a log: the latest time of all lines so far. It never steps back. A line that is earlier than a
/// line before it counts at that line's time. Otherwise a bucket would refill twice in the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogClock {
    /// The first and the latest time. `None` before the first line.
    pub(crate) span: Option<(Timestamp, Timestamp)>,
    /// The lines that are earlier than the line right before them.
    pub(crate) steps_back: u64,
    /// The lines that are earlier than the latest time, and count at that time.
    pub(crate) late: u64,
    /// How far a line is behind the latest time at most, in microseconds.
    pub(crate) furthest_back: u64,
    /// The time of the line before.
    previous: Timestamp,
}

impl LogClock {
    /// The time of a line that says `time`.
    pub(crate) fn at(&mut self, time: Timestamp) -> Timestamp {
        let (_, latest) = self.span.get_or_insert((time, time));
        self.steps_back += u64::from(time < self.previous);
        self.late += u64::from(time < *latest);
        self.previous = time;
        self.furthest_back = self.furthest_back.max(latest.micros_since(time));
        *latest = time.max(*latest);
        *latest
    }
}

impl<'p> Replay<'p> {
    /// A replay with new buckets, through the limits of each of these plans apart.
    pub(crate) fn new(
        plans: impl IntoIterator<Item = &'p Plan>,
        assumptions: &[Assumption],
    ) -> Self {
        let side =
            |plan| Side { judge: Judge::new(plan, assumptions), tally: ReplayTally::new(plan) };
        let sides = plans.into_iter().map(side).collect();
        Self { sides, clock: LogClock::default() }
    }

    /// Takes the log's next request through the limits.
    pub(crate) fn request(&mut self, record: &LogRecord<'_>) {
        let now = self.clock.at(record.time);
        for Side { judge, tally } in &mut self.sides {
            let (mut is_whole, plan) = (true, judge.plan);
            let judged = judge.judge(record, now, |untold| {
                is_whole &= match untold {
                    Untold::Limit(limit, _) => plan.limits[limit].mode != Mode::Enforce,
                    Untold::Route(..) => false,
                };
                tally.untold(untold);
            });
            tally.count(&judged, is_whole, now);
        }
    }
}
