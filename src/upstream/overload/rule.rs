//! The rule of the limit that finds itself, as a pure function of what happens. Every time is an argument.
//!
//! While at most one answer in twenty is slow there is no limit. After two bad seconds there is one, at what Little's
//! law allows if each answer took half of its goal. Each bad second lowers it, and each good second in which it was
//! reached raises it. If a limit was halved and did not make the answers faster, the API is slow for another reason. The
//! limit goes back then, and the goal is stretched for a while.

use std::collections::BTreeMap;
use std::mem;

use super::window::{AnswerWindow, MANY, MOST_DOUBLINGS, Micros, SECOND, TOLERATED, WindowSummary};

/// So many bad windows in a row begin a limit. With 2 % of slow answers by nature, two come once in thousands of days.
const BAD_WINDOWS: u32 = 2;
/// One odd window cannot stop the API, and a bad one lowers the limit noticeably.
const CUTS: (f64, f64) = (0.5, 0.9);
/// The part of the way to the target in a good window. Half of the way overshoots where an API loses throughput by load.
const RISE: f64 = 0.25;
/// Times the root of the limit: the least rise. Small limits of other proxies catch up by it.
const LEAST_RISE: f64 = 0.1;
/// A limit of which less was used is left as it is.
const REACHED: f64 = 0.8;
/// A limit was lowered by this part, and the mean answer time fell by less than [`HELPED`] of that part: the API is slow
/// for another reason. Less is noise.
const LOWERED: f64 = 0.5;
const HELPED: f64 = 0.25;
/// The fewest answers for that verdict.
const VERDICT_ANSWERS: f64 = 50.0;
/// A stretched goal stays at least this long.
const STRETCH_HOLDS: Micros = 10 * SECOND;
/// If it gets worse within this time after a verdict, it was load after all.
const VERDICT_IN_DOUBT: Micros = 60 * SECOND;
/// The real goal is tried this long after a verdict: this costs seconds of cuts. A verdict that was wrong is not
/// believed for as long.
const VERDICT_HOLDS: Micros = 300 * SECOND;
/// So many good windows in a row end the comparison. With 9 % of slow answers by nature three hardly come.
const GOOD_WINDOWS: u32 = 3;
/// A limit that nobody reached for this long is forgotten: last night's does not meet the morning.
const FORGOTTEN: Micros = 600 * SECOND;

/// What the rule does with what it finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LimitMode {
    #[default]
    Enforce,
    /// It only tells that a limit would begin. A cut that is not enforced would look like one that does not help.
    Shadow,
    /// There is a number: the rule only counts.
    Fixed(usize),
}

/// A change that the rule made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitChange {
    First,
    Cut,
    Raise,
    /// The API is slow, but not from load.
    Verdict,
    /// It was load after all.
    Mistrust,
    /// A stretched goal is in force again, or is nearer to that.
    Restored,
    /// There is no limit any more.
    Forgotten,
}

/// A request that was sent. It is handed back when its answer's head has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentRequest {
    at: Micros,
    goal: Micros,
    epoch: u32,
}

/// What has come of a request that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentEnd {
    Answered,
    /// No connection, no answer in time, or 502, 503 or 504.
    Failed,
    /// It says nothing: the client left, or another proxy refused.
    Left,
}

/// How it was when the limit began to fall.
#[derive(Clone, Copy, Debug)]
struct Descent {
    limit: Option<f64>,
    in_flight: f64,
    /// The mean answer time in goals.
    ratio: f64,
}

/// The state of the rule for one upstream.
#[derive(Clone, Debug)]
pub(crate) struct LimitRule {
    at_least: f64,
    mode: LimitMode,
    limit: Option<f64>,
    /// The goal counts two to the power of this.
    doublings: u32,
    /// What was sent before the last cut says nothing about it.
    epoch: u32,
    /// How many requests become slow at which millisecond.
    due: BTreeMap<u64, u32>,
    bad_run: u32,
    good_run: u32,
    descent: Option<Descent>,
    stretched_at: Micros,
    retry_at: Micros,
    verdict_at: Micros,
    mistrust_until: Micros,
    reached_at: Micros,
    window: AnswerWindow,
    pub(crate) last: WindowSummary,
}

impl LimitRule {
    pub(crate) fn new(at_least: usize, mode: LimitMode, limit: Option<f64>, now: Micros) -> Self {
        let window = AnswerWindow::begin(now, 0);
        Self {
            at_least: at_least as f64,
            mode,
            limit,
            doublings: 0,
            epoch: 0,
            due: BTreeMap::new(),
            bad_run: 0,
            good_run: 0,
            descent: None,
            stretched_at: now,
            retry_at: now,
            verdict_at: now,
            mistrust_until: now,
            reached_at: now,
            window,
            last: WindowSummary::default(),
        }
    }

    /// The limit that is in force, or would be in shadow.
    pub(crate) fn limit(&self) -> Option<f64> {
        match self.mode {
            LimitMode::Fixed(most) => Some(most as f64),
            LimitMode::Enforce | LimitMode::Shadow => self.limit,
        }
    }

    /// Whether one more request may be sent.
    pub(crate) fn has_room(&self, in_flight: usize) -> bool {
        match self.limit() {
            Some(limit) if self.mode != LimitMode::Shadow => {
                (in_flight as f64) < limit.floor().max(1.0)
            }
            _ => true,
        }
    }

    /// How many times the goal counts.
    pub(crate) fn goal_times(&self) -> u32 {
        1 << self.doublings
    }

    /// A request was sent. `in_flight` counts it.
    pub(crate) fn sent(&mut self, goal: Micros, in_flight: usize, now: Micros) -> SentRequest {
        // Nobody has judged the window while nothing was in flight.
        if in_flight <= 1 && self.window.is_stale(now) {
            self.window = AnswerWindow::begin(now, 0);
        }
        self.window.peak = self.window.peak.max(in_flight);
        if self.limit.is_some_and(|limit| in_flight as f64 >= limit.floor()) {
            self.reached_at = now;
        }
        let request = SentRequest { at: now, goal, epoch: self.epoch };
        *self.due.entry(self.deadline(request)).or_default() += 1;
        request
    }

    /// A request's answer has come, or will not come. `in_flight` does not count it.
    pub(crate) fn ended(
        &mut self,
        request: SentRequest,
        end: SentEnd,
        in_flight: usize,
        now: Micros,
    ) -> Option<LimitChange> {
        self.overdue(now);
        let goal = request.goal << self.doublings;
        if end == SentEnd::Answered {
            self.window.goals_all += goal;
        }
        if request.epoch == self.epoch {
            let was_due = self.remove(request);
            let (window, failed) = (&mut self.window, end == SentEnd::Failed);
            if end == SentEnd::Left {
                return None;
            }
            if was_due {
                *(if failed { &mut window.slow } else { &mut window.good }) += 1;
            }
            window.count(now.saturating_sub(request.at), request.goal, self.doublings, failed);
        }
        self.judge(in_flight, now)
    }

    /// To be called ten times a second while anything is in flight or waits.
    pub(crate) fn tick(&mut self, in_flight: usize, now: Micros) -> Option<LimitChange> {
        self.overdue(now);
        self.judge(in_flight, now)
    }

    /// When the request becomes slow, in milliseconds.
    fn deadline(&self, request: SentRequest) -> u64 {
        (request.at + (request.goal << self.doublings)).div_ceil(1_000)
    }

    /// Counts the requests as slow whose deadline has passed.
    fn overdue(&mut self, now: Micros) {
        while let Some(first) = self.due.first_entry()
            && first.key() * 1_000 < now
        {
            self.window.slow += u64::from(first.remove());
        }
    }

    /// Whether the request was not slow yet.
    fn remove(&mut self, request: SentRequest) -> bool {
        let deadline = self.deadline(request);
        let Some(count) = self.due.get_mut(&deadline) else { return false };
        *count -= 1;
        if *count == 0 {
            self.due.remove(&deadline);
        }
        true
    }

    /// What was sent until now counts no more.
    fn begin_epoch(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.due.clear();
    }

    fn stretch(&mut self, doublings: u32, now: Micros) {
        self.doublings = doublings;
        self.stretched_at = now;
        self.begin_epoch();
    }

    /// Closes the window, if it has seen enough, and changes the limit.
    fn judge(&mut self, in_flight: usize, now: Micros) -> Option<LimitChange> {
        let is_telling = self.window.is_telling(now);
        if !is_telling && !self.window.is_stale(now) {
            return None;
        }
        let window = mem::replace(&mut self.window, AnswerWindow::begin(now, in_flight));
        if !is_telling {
            return None;
        }
        self.last = window.summary(now);
        let (old, is_bad) = (self.limit, window.is_bad());
        let change = match self.mode {
            LimitMode::Fixed(_) => return None,
            LimitMode::Shadow if old.is_some() => {
                if !is_bad {
                    self.limit = None;
                }
                self.limit.is_none().then_some(LimitChange::Forgotten)
            }
            LimitMode::Enforce | LimitMode::Shadow if is_bad => self.bad(&window, now),
            LimitMode::Enforce | LimitMode::Shadow => self.good(&window, now),
        };
        if old.is_none() {
            self.reached_at = now;
        } else if now > self.reached_at + FORGOTTEN {
            self.limit = None;
            return Some(LimitChange::Forgotten);
        }
        if let Some(limit) = self.limit
            && old.is_none_or(|old| limit < old)
        {
            self.begin_epoch();
        }
        change
    }

    /// Whether the window used what the limit allows.
    fn was_reached(&self, window: &AnswerWindow) -> bool {
        self.limit.is_none_or(|limit| window.peak as f64 >= REACHED * limit.floor())
    }

    fn bad(&mut self, window: &AnswerWindow, now: Micros) -> Option<LimitChange> {
        self.bad_run += 1;
        self.good_run = 0;
        let reached = self.was_reached(window);
        let mut target = window.target(now);
        let mut change = None;
        if self.doublings > 0
            && now < self.verdict_at + VERDICT_IN_DOUBT
            && (self.limit.is_some() && reached || self.bad_run >= BAD_WINDOWS)
        {
            target /= f64::from(self.goal_times());
            self.stretch(0, now);
            self.mistrust_until = now + VERDICT_HOLDS;
            change = Some(LimitChange::Mistrust);
        }
        let ratio = window.ratio();
        let peak = window.peak as f64;
        let base = self.limit.map_or(peak, |limit| limit.min(peak));
        let here = Descent { limit: self.limit, in_flight: base, ratio };
        if self.limit.is_none() {
            if self.bad_run >= BAD_WINDOWS {
                self.descent = Some(here);
                self.limit = Some(target.max(self.at_least));
                change = change.or(Some(LimitChange::First));
            }
            return change;
        }
        if !reached {
            return change;
        }
        let run = *self.descent.get_or_insert(here);
        let lowered = 1.0 - base / run.in_flight;
        let helped = if run.ratio.is_infinite() { 1.0 } else { 1.0 - ratio / run.ratio };
        let is_believed = window.judged() >= VERDICT_ANSWERS
            && now >= self.mistrust_until
            && (window.failed as f64) < TOLERATED * window.judged();
        if is_believed && lowered >= LOWERED && helped < HELPED * lowered {
            self.limit = run.limit;
            self.descent = None;
            (self.verdict_at, self.retry_at, self.bad_run) = (now, now + VERDICT_HOLDS, 0);
            let fitting = (0..MOST_DOUBLINGS).find(|doublings| window.fits(*doublings));
            let doublings = fitting.unwrap_or(MOST_DOUBLINGS);
            self.stretch(doublings.max(self.doublings + 1).min(MOST_DOUBLINGS), now);
            return Some(LimitChange::Verdict);
        }
        let cut = target.max(CUTS.0 * base).min(CUTS.1 * base);
        self.limit = Some(cut.max(self.at_least));
        change.or(Some(LimitChange::Cut))
    }

    fn good(&mut self, window: &AnswerWindow, now: Micros) -> Option<LimitChange> {
        self.bad_run = 0;
        self.good_run = if window.slow_share() <= TOLERATED { self.good_run + 1 } else { 0 };
        if self.good_run >= GOOD_WINDOWS {
            self.descent = None;
        }
        let mut change = None;
        let reached = self.was_reached(window);
        if let Some(limit) = &mut self.limit
            && self.good_run > 0
            && reached
        {
            let rise = (RISE * (window.target(now) - *limit)).min(*limit);
            *limit += rise.max(LEAST_RISE * limit.sqrt());
            change = Some(LimitChange::Raise);
        }
        if self.doublings > 0 && now >= self.stretched_at + STRETCH_HOLDS {
            let fits = window.judged() >= MANY && window.fits(self.doublings - 1);
            if fits || now >= self.retry_at {
                self.retry_at = self.retry_at.min(now);
                self.stretch(self.doublings - 1, now);
                change = Some(LimitChange::Restored);
            }
        }
        change
    }

    /// How many requests are not slow yet.
    #[cfg(test)]
    pub(super) fn due(&self) -> usize {
        self.due.values().map(|count| *count as usize).sum()
    }
}
