//! What is counted about the answers until the rule judges, and what that says.

/// Microseconds on the monotonic clock.
pub(crate) type Micros = u64;

pub(crate) const SECOND: Micros = 1_000_000;

/// The share of slow answers that is no overload. The goal is then the 95th percentile.
pub(super) const TOLERATED: f64 = 0.05;
/// A window closes after a second with so many answers: a pause of the API of less than a second stays in one window.
pub(super) const MANY: f64 = 100.0;
/// After ten seconds these suffice, so that the rule acts at two requests a second too.
const FEW: f64 = 20.0;
const LONG_WINDOW: Micros = 10 * SECOND;
/// What is older says nothing about now.
pub(super) const LONGEST_WINDOW: Micros = 30 * SECOND;
/// The part of its goal that an answer is to take. With more, fewer answers are in time after their wait. With less, a
/// goal near the API's own time throttles it for nothing.
const AIM: f64 = 0.5;
/// The share of answers beyond a stretched goal. Without a margin to [`TOLERATED`] it would be broken at once.
const STRETCHED: f64 = 0.025;
/// The goal is stretched by two to the power of this at most.
pub(super) const MOST_DOUBLINGS: u32 = 5;

/// What is counted until the next judgement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AnswerWindow {
    pub(super) start: Micros,
    /// How long the window lasted. It is set when the window is closed.
    pub(super) age: Micros,
    good: u64,
    pub(super) slow: u64,
    pub(super) failed: u64,
    pub(crate) seen: u64,
    /// How many answers took longer than 1, 2, 4, 8 and 16 goals.
    over: [u64; MOST_DOUBLINGS as usize],
    /// The goals of all good answers, also of those to requests from before the last cut.
    pub(super) goals_all: u64,
    took: u64,
    goals: u64,
    pub(crate) peak: usize,
}

/// What the answers in a window show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// There are not enough answers yet.
    Open,
    /// There are not enough answers, and the window is too old to wait for more.
    Stale,
    Good,
    /// More answers are slow than chance explains.
    Bad,
}

impl AnswerWindow {
    pub(super) fn begin(now: Micros, in_flight: usize) -> Self {
        Self { start: now, peak: in_flight, ..Self::default() }
    }

    /// An answer has come that took so long.
    pub(super) fn count(
        &mut self,
        was_due: bool,
        took: Micros,
        goal: Micros,
        doublings: u32,
        failed: bool,
    ) {
        if was_due {
            *(if failed { &mut self.slow } else { &mut self.good }) += 1;
        }
        self.seen += 1;
        self.took += took;
        self.goals += goal << doublings;
        if failed || took > goal {
            self.failed += u64::from(failed);
            for (doublings, over) in self.over.iter_mut().enumerate() {
                *over += u64::from(failed || took > goal << doublings);
            }
        }
    }

    pub(super) fn verdict(&self, now: Micros) -> Verdict {
        let age = now.saturating_sub(self.start);
        if age < SECOND {
            return Verdict::Open;
        }
        let judged = self.judged();
        if judged < MANY && (age < LONG_WINDOW || judged < FEW) {
            return if age < LONGEST_WINDOW { Verdict::Open } else { Verdict::Stale };
        }
        let deviation = (TOLERATED * (1.0 - TOLERATED) / judged).sqrt();
        let is_bad = self.slow_share() > TOLERATED + 2.0 * deviation;
        if is_bad { Verdict::Bad } else { Verdict::Good }
    }

    /// Requests that were in time or too late.
    pub(super) fn judged(&self) -> f64 {
        (self.good + self.slow) as f64
    }

    pub(crate) fn slow_share(&self) -> f64 {
        self.slow as f64 / self.judged().max(1.0)
    }

    /// The share of slow answers in percent, with one decimal.
    pub(crate) fn slow_percent(&self) -> f64 {
        (self.slow_share() * 1_000.0).round() / 10.0
    }

    pub(crate) fn answers_per_second(&self) -> f64 {
        self.seen as f64 * SECOND as f64 / self.age.max(1) as f64
    }

    pub(crate) fn mean(&self) -> Micros {
        self.took / self.seen.max(1)
    }

    /// Little's law: what would be in flight, if each answer took its part of the goal.
    pub(super) fn target(&self) -> f64 {
        AIM * self.goals_all as f64 / self.age as f64
    }

    /// The mean answer time in goals.
    pub(super) fn ratio(&self) -> f64 {
        match self.goals {
            0 => f64::INFINITY,
            goals => self.took as f64 / goals as f64,
        }
    }

    /// Whether nearly all answers took less than the goal, doubled so often.
    pub(super) fn fits(&self, doublings: u32) -> bool {
        let over = self.over.get(doublings as usize).copied().unwrap_or_default();
        over as f64 <= STRETCHED * self.seen as f64
    }
}
