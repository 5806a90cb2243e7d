//! The rule of the limit that finds itself, as a pure function of what happens. Every time is an argument.
//!
//! While at most one answer in twenty is slow there is no limit. After two bad seconds there is one, at what Little's
//! law allows if each answer took half of its goal. Each bad second lowers it, and each good second in which it was
//! reached raises it. If a limit was halved and did not make the answers faster, the API is slow for another reason. The
//! limit goes back then, and the goal is stretched for a while.

use std::collections::VecDeque;
use std::mem;

use super::window::{
    AnswerWindow, LONGEST_WINDOW, MANY, MOST_DOUBLINGS, Micros, SECOND, TOLERATED, Verdict,
};
use crate::settings::{AnswerGoal, GoalMode, MaxRequests};

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
/// At `at_least`, so many bad windows in a row or so long without a good answer are told.
const BAD_AT_LEAST: u32 = 3;
const BARREN: Micros = 10 * SECOND;
/// A limit that nobody reached for this long is forgotten: last night's does not meet the morning.
const FORGOTTEN: Micros = 600 * SECOND;

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
    /// There is no limit any more.
    Forgotten,
    /// The real goal is in force again, or the goal is stretched less than before.
    Restored,
    /// The limit cannot fall any more, and the API is still slow.
    AtLeast,
}

impl LimitChange {
    pub(crate) const ALL: usize = Self::AtLeast as usize + 1;
    /// The names of the changes that metrics count.
    pub(crate) const COUNTED: [&'static str; 6] =
        ["first", "cut", "raise", "verdict", "mistrust", "forgotten"];
}

/// A request that was sent. It is handed back when its answer's head has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentRequest {
    at: Micros,
    goal: Micros,
    /// When the request becomes slow, in milliseconds.
    deadline: u64,
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

/// How it was when the limit began to fall, or is now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Descent {
    limit: Option<f64>,
    pub(crate) in_flight: f64,
    /// The mean answer time in goals.
    ratio: f64,
    pub(crate) mean: Micros,
}

/// The state of the rule for one upstream.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitRule {
    /// The upstream's goal. `None` if `max_requests` is a number, which is then the limit.
    pub(crate) goal: Option<AnswerGoal>,
    /// The limit that is in force. In shadow mode: the limit that would be.
    pub(crate) limit: Option<f64>,
    /// The goal is stretched by two to the power of this.
    doublings: u32,
    /// Each cut begins an epoch. Requests that were sent before a cut say nothing about it.
    epoch: u32,
    /// How many requests become slow at which millisecond, the earliest first.
    due: VecDeque<(u64, u32)>,
    bad_run: u32,
    good_run: u32,
    descent: Option<Descent>,
    stretched_at: Micros,
    retry_at: Micros,
    verdict_at: Micros,
    mistrust_until: Micros,
    reached_at: Micros,
    /// How many windows in a row were bad while the limit was at `at_least`.
    bad_at_least: u32,
    /// The time of the last good answer. A fall of the limit to `at_least` also sets it.
    good_at: Micros,
    /// What the last verdict compared: the state when the limit began to fall, and the state at the verdict.
    pub(crate) verdict: [Descent; 2],
    window: AnswerWindow,
    /// The last window that had a verdict or an answer.
    pub(crate) last: AnswerWindow,
    /// The changes that the queue has not read yet.
    pub(crate) changes: Vec<LimitChange>,
}

/// A limit rounded down, as operators see it.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is not negative")]
pub(crate) fn whole(limit: f64) -> u64 {
    limit as u64
}

impl LimitRule {
    pub(crate) fn new(max_requests: MaxRequests, now: Micros) -> Self {
        let window = AnswerWindow::begin(now, 0);
        let rule = Self { reached_at: now, good_at: now, window, ..Self::default() };
        match max_requests {
            MaxRequests::Number(most) => Self { limit: Some(most as f64), ..rule },
            MaxRequests::Goal(goal) => Self { goal: Some(goal), ..rule },
        }
    }

    /// Takes new settings after a reload. If the goal or the floor is another one, the rule starts again but keeps its
    /// limit. Otherwise the gate would open in the middle of an overload.
    pub(crate) fn reload(&mut self, new: MaxRequests, has_other_goals: bool, now: Micros) {
        let kept = |goal: &AnswerGoal| (goal.slower_than, goal.at_least);
        let new = Self::new(new, now);
        let had_goal = self.goal.is_some();
        if has_other_goals || self.goal.as_ref().map(kept) != new.goal.as_ref().map(kept) {
            let limit = self.limit.filter(|_| had_goal).map(|limit| limit.max(new.at_least()));
            *self = Self { limit: new.limit.or(limit), ..new };
        } else {
            (self.goal, self.limit) = (new.goal, new.limit.or(self.limit));
        }
    }

    /// Whether the rule is in shadow mode. A cut that is not enforced would look like a cut that does not help. So in
    /// this mode the rule only reports that a limit would begin.
    pub(crate) fn is_shadow(&self) -> bool {
        self.goal.is_some_and(|goal| goal.mode == GoalMode::Shadow)
    }

    /// The limit that holds requests.
    pub(crate) fn bound(&self) -> Option<f64> {
        self.limit.filter(|_| !self.is_shadow())
    }

    /// Whether one more request may be sent.
    pub(crate) fn has_room(&self, in_flight: usize) -> bool {
        self.bound().is_none_or(|limit| (in_flight as f64) < limit.floor().max(1.0))
    }

    /// How many times the goal counts.
    pub(crate) fn goal_times(&self) -> u32 {
        1 << self.doublings
    }

    /// A request was sent. `in_flight` counts it.
    pub(crate) fn sent(&mut self, goal: Micros, in_flight: usize, now: Micros) -> SentRequest {
        // Nobody has judged the window while nothing was in flight.
        if in_flight <= 1 && now >= self.window.start + LONGEST_WINDOW {
            self.window = AnswerWindow::begin(now, 0);
        }
        self.window.peak = self.window.peak.max(in_flight);
        if self.limit.is_some_and(|limit| in_flight as f64 >= limit.floor()) {
            self.reached_at = now;
        }
        let deadline = (now + (goal << self.doublings)).div_ceil(1_000);
        match self.place_of(deadline) {
            Ok(at) => self.due[at].1 += 1,
            Err(at) => self.due.insert(at, (deadline, 1)),
        }
        SentRequest { at: now, goal, deadline, epoch: self.epoch }
    }

    /// A request's answer has come, or will not come. `in_flight` does not count it.
    pub(crate) fn ended(&mut self, it: SentRequest, end: SentEnd, in_flight: usize, now: Micros) {
        self.overdue(now);
        if end == SentEnd::Answered {
            self.window.goals_all += it.goal << self.doublings;
        }
        if it.epoch == self.epoch {
            let place = self.place_of(it.deadline);
            let was_due = place.is_ok();
            place.into_iter().for_each(|at| self.due[at].1 -= 1);
            if end == SentEnd::Left {
                return;
            }
            let has_failed = end == SentEnd::Failed;
            if was_due && !has_failed {
                self.good_at = now;
            }
            let took = now.saturating_sub(it.at);
            self.window.count(was_due, took, it.goal, self.doublings, has_failed);
        }
        self.judge(in_flight, now);
    }

    /// To be called ten times a second while requests are in flight, and a hundred times a second while requests wait.
    pub(crate) fn tick(&mut self, in_flight: usize, now: Micros) {
        self.overdue(now);
        self.judge(in_flight, now);
        let is_untold = self.is_least() && self.bad_at_least < BAD_AT_LEAST;
        if is_untold && now >= self.good_at + BARREN {
            self.bad_at_least = BAD_AT_LEAST;
            self.changes.push(LimitChange::AtLeast);
        }
    }

    /// The lowest limit that the rule may set.
    fn at_least(&self) -> f64 {
        self.goal.map_or(1.0, |goal| goal.at_least as f64)
    }

    fn is_least(&self) -> bool {
        self.limit.is_some_and(|limit| limit <= self.at_least())
    }

    /// Finds the place of a deadline in `due`, as a binary search does. It is at the end, unless a route has a shorter
    /// goal.
    fn place_of(&self, deadline: u64) -> Result<usize, usize> {
        match self.due.back() {
            Some((last, _)) if *last == deadline => Ok(self.due.len() - 1),
            Some((last, _)) if *last > deadline => {
                self.due.binary_search_by_key(&deadline, |(deadline, _)| *deadline)
            }
            _ => Err(self.due.len()),
        }
    }

    /// Counts the requests as slow whose deadline has passed.
    fn overdue(&mut self, now: Micros) {
        while let Some((deadline, count)) = self.due.front()
            && (*count == 0 || deadline * 1_000 < now)
        {
            self.window.slow += u64::from(*count);
            self.due.pop_front();
        }
    }

    fn stretch(&mut self, doublings: u32, now: Micros) {
        self.doublings = doublings;
        self.stretched_at = now;
        self.begin_epoch();
    }

    /// What was sent until now counts no more.
    fn begin_epoch(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.due.clear();
    }

    /// Closes the window, if it has seen enough, and changes the limit.
    fn judge(&mut self, in_flight: usize, now: Micros) {
        let verdict = self.window.verdict(now);
        if verdict == Verdict::Open {
            return;
        }
        let mut window = mem::replace(&mut self.window, AnswerWindow::begin(now, in_flight));
        window.age = now - window.start;
        if verdict != Verdict::Stale || window.seen > 0 {
            self.last = window;
        }
        if verdict == Verdict::Stale || self.goal.is_none() {
            return;
        }
        let old = self.limit;
        match verdict {
            _ if old.is_some() && self.is_shadow() => {
                if verdict == Verdict::Good {
                    self.forget();
                }
            }
            Verdict::Good => self.good(&window, now),
            _ => self.bad(&window, now),
        }
        if old.is_none() {
            self.reached_at = now;
        } else if now > self.reached_at + FORGOTTEN {
            self.forget();
        }
        if self.limit.is_some_and(|limit| old.is_none_or(|old| limit < old)) {
            self.begin_epoch();
        }
    }

    fn forget(&mut self) {
        self.limit = None;
        self.changes.push(LimitChange::Forgotten);
    }

    /// Whether there is a limit, and this window had as many requests in flight as it allows.
    fn is_reached(&self, window: &AnswerWindow) -> bool {
        self.limit.is_some_and(|limit| window.peak as f64 >= REACHED * limit.floor())
    }

    fn bad(&mut self, window: &AnswerWindow, now: Micros) {
        self.bad_run += 1;
        self.good_run = 0;
        let is_reached = self.is_reached(window);
        let lasts = self.bad_run >= BAD_WINDOWS;
        let mut target = window.target();
        if self.doublings > 0 && now < self.verdict_at + VERDICT_IN_DOUBT && (is_reached || lasts) {
            target /= f64::from(self.goal_times());
            self.stretch(0, now);
            self.mistrust_until = now + VERDICT_HOLDS;
            self.changes.push(LimitChange::Mistrust);
        }
        let (ratio, mean) = (window.ratio(), window.mean());
        let in_flight = self.limit.unwrap_or(f64::INFINITY).min(window.peak as f64);
        let here = Descent { limit: self.limit, in_flight, ratio, mean };
        if self.limit.is_none() && lasts {
            self.descent = Some(here);
            return self.lower(target, now, LimitChange::First);
        }
        if !is_reached {
            return;
        }
        let begin = *self.descent.get_or_insert(here);
        let lowered = 1.0 - in_flight / begin.in_flight;
        let helped = if begin.ratio.is_infinite() { 1.0 } else { 1.0 - ratio / begin.ratio };
        let is_believed = window.judged() >= VERDICT_ANSWERS
            && now >= self.mistrust_until
            && (window.failed as f64) < TOLERATED * window.judged();
        if is_believed && lowered >= LOWERED && helped < HELPED * lowered {
            (self.limit, self.descent, self.bad_run) = (begin.limit, None, 0);
            (self.verdict, self.verdict_at) = ([begin, here], now);
            self.retry_at = now + VERDICT_HOLDS;
            let fitting = (0..MOST_DOUBLINGS).find(|doublings| window.fits(*doublings));
            let doublings = fitting.unwrap_or(MOST_DOUBLINGS).max(self.doublings + 1);
            self.stretch(doublings.min(MOST_DOUBLINGS), now);
            return self.changes.push(LimitChange::Verdict);
        }
        let limit = target.max(CUTS.0 * in_flight).min(CUTS.1 * in_flight);
        self.lower(limit, now, LimitChange::Cut);
    }

    fn lower(&mut self, limit: f64, now: Micros, change: LimitChange) {
        if self.is_least() {
            self.bad_at_least += 1;
        } else {
            (self.bad_at_least, self.good_at) = (0, now);
        }
        self.limit = Some(limit.max(self.at_least()));
        let is_told = self.bad_at_least == BAD_AT_LEAST;
        self.changes.push(if is_told { LimitChange::AtLeast } else { change });
    }

    fn good(&mut self, window: &AnswerWindow, now: Micros) {
        self.bad_run = 0;
        self.good_run = if window.slow_share() <= TOLERATED { self.good_run + 1 } else { 0 };
        if self.good_run >= GOOD_WINDOWS {
            self.descent = None;
        }
        let is_reached = self.is_reached(window);
        if let Some(limit) = &mut self.limit
            && self.good_run > 0
            && is_reached
        {
            let rise = (RISE * (window.target() - *limit)).min(*limit);
            *limit += rise.max(LEAST_RISE * limit.sqrt());
            self.changes.push(LimitChange::Raise);
        }
        if self.doublings > 0 && now >= self.stretched_at + STRETCH_HOLDS {
            let fits = window.judged() >= MANY && window.fits(self.doublings - 1);
            if fits || now >= self.retry_at {
                self.retry_at = self.retry_at.min(now);
                self.stretch(self.doublings - 1, now);
                self.changes.push(LimitChange::Restored);
            }
        }
    }

    /// How many requests are not slow yet.
    #[cfg(test)]
    pub(super) fn due(&self) -> usize {
        self.due.iter().map(|(_, count)| *count as usize).sum()
    }
}
