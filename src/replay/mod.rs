//! Runs the requests of access logs through the limits of a file: `tidegate replay`.
//!
//! `log` reads the lines. [`Replay::request`] takes each request through the limits of one file, or of two files that
//! are compared: `judge` decides by the code and the buckets of real requests, and `tally` counts. `fact` knows what a
//! log may leave out. `report` makes a report from the counts, and writes it. `cases` tries the `[[tests]]` of a file
//! in the same way, and `suggest` finds limits for a log. `told` uses the keys, costs and plans that tidegate logged.

pub(crate) mod cases;
pub(crate) mod fact;
pub mod judge;
pub mod log;
pub(crate) mod report;
pub(crate) mod suggest;
pub(crate) mod tally;
pub(crate) mod timeline;
mod told;

pub use self::told::with_hashed_overrides;

use self::fact::Assumption;
use self::judge::Judge;
use self::log::{LogRecord, ToldChange};
use self::tally::ReplayTally;
use crate::limit::time::Timestamp;
use crate::settings::Settings;

/// The requests of a log on their way through the limits of one file, or of two.
pub(crate) struct Replay<'p> {
    /// The files, in the order in which they were given.
    pub(crate) sides: Vec<Side<'p>>,
    /// The times of the log's first and last request.
    pub(crate) span: Option<(Timestamp, Timestamp)>,
}

/// One of the files whose limits are replayed.
pub(crate) struct Side<'p> {
    /// The file's limits, and their buckets.
    pub(crate) judge: Judge<'p>,
    /// What the limits decided, as counts.
    pub(crate) tally: ReplayTally<'p>,
}

impl<'p> Replay<'p> {
    /// A replay with new buckets. The requests go through the limits of each file separately.
    pub(crate) fn new(
        plans: impl IntoIterator<Item = &'p Settings>,
        assumptions: &[Assumption],
    ) -> Self {
        let side = |settings| Side {
            judge: Judge::new(settings, assumptions),
            tally: ReplayTally::new(settings),
        };
        let sides = plans.into_iter().map(side).collect();
        Self { sides, span: None }
    }

    /// Applies a change that tidegate logged. It holds for all later requests.
    pub(crate) fn change(&mut self, change: &ToldChange) {
        self.sides.iter_mut().for_each(|side| side.judge.change(change));
    }

    /// Takes the log's next request through the limits. Times must not step back.
    pub(crate) fn request(&mut self, record: &LogRecord) {
        let now = record.time;
        self.span = Some((self.span.map_or(now, |(first, _)| first), now));
        for Side { judge, tally } in &mut self.sides {
            tally.count(&judge.judge(record), now);
        }
    }
}
