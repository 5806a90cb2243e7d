//! The rule of the limit that finds itself, as a pure function of what happens. Every time is an argument.
//!
//! While at most one answer in twenty is slow there is no limit. After two bad seconds there is one, at what Little's
//! law allows if each answer took half of its goal. Each bad second lowers it, and each good second in which it was
//! reached raises it. If a limit was halved and did not make the answers faster, the API is slow for another reason. The
//! limit goes back then, and the goal is stretched for a while.

use std::collections::VecDeque;
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
/// At `at_least`, so many bad windows in a row or so long without a good answer are told.
const BAD_AT_LEAST: u32 = 3;
const BARREN: Micros = 10 * SECOND;
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
    /// The limit cannot fall any more, and the API is still slow.
    AtLeast,
}

impl LimitChange {
    /// Those that are counted, with their names.
    pub(crate) const COUNTED: [(Self, &'static str); 6] = [
        (Self::First, "first"),
        (Self::Cut, "cut"),
        (Self::Raise, "raise"),
        (Self::Verdict, "verdict"),
        (Self::Mistrust, "mistrust"),
        (Self::Forgotten, "forgotten"),
    ];
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

/// How it was when the limit began to fall, or is now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Descent {
    limit: Option<f64>,
    in_flight: f64,
    /// The same, as operators see it.
    pub(crate) peak: usize,
    /// The mean answer time in goals.
    ratio: f64,
    pub(crate) mean: Micros,
}

/// The state of the rule for one upstream.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitRule {
    at_least: f64,
    mode: LimitMode,
    limit: Option<f64>,
    /// The goal counts two to the power of this.
    doublings: u32,
    /// What was sent before the last cut says nothing about it.
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
    /// Bad windows in a row at `at_least`.
    bad_at_least: u32,
    /// Since when no good answer has come at `at_least`; `None` once it was told.
    barren_since: Option<Micros>,
    /// What the last verdict compared: how it was before, and then.
    pub(crate) verdict: [Descent; 2],
    window: AnswerWindow,
    pub(crate) last: WindowSummary,
}

impl LimitRule {
    pub(crate) fn new(at_least: usize, mode: LimitMode, limit: Option<f64>, now: Micros) -> Self {
        Self {
            at_least: at_least as f64,
            mode,
            limit,
            reached_at: now,
            barren_since: Some(now),
            window: AnswerWindow::begin(now, 0),
            ..Self::default()
        }
    }

    /// The limit that is in force, or would be in shadow.
    pub(crate) fn limit(&self) -> Option<f64> {
        match self.mode {
            LimitMode::Fixed(most) => Some(most as f64),
            LimitMode::Enforce | LimitMode::Shadow => self.limit,
        }
    }

    /// The limit as operators see it.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is at least 1")]
    pub(crate) fn whole_limit(&self) -> Option<u64> {
        self.limit().map(|limit| limit as u64)
    }

    pub(crate) fn set_mode(&mut self, mode: LimitMode) {
        self.mode = mode;
    }

    pub(crate) fn is_shadow(&self) -> bool {
        self.mode == LimitMode::Shadow
    }

    /// The limit that holds requests.
    pub(crate) fn bound(&self) -> Option<f64> {
        self.limit().filter(|_| !self.is_shadow())
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
        if in_flight <= 1 && self.window.is_stale(now) {
            self.window = AnswerWindow::begin(now, 0);
        }
        self.window.peak = self.window.peak.max(in_flight);
        if self.limit.is_some_and(|limit| in_flight as f64 >= limit.floor()) {
            self.reached_at = now;
        }
        let request = SentRequest { at: now, goal, epoch: self.epoch };
        let deadline = self.deadline(request);
        match self.due.back_mut() {
            Some((last, count)) if *last == deadline => *count += 1,
            // Only a route with a shorter goal comes in between.
            Some((last, _)) if *last > deadline => match self.place_of(deadline) {
                Ok(at) => self.due[at].1 += 1,
                Err(at) => self.due.insert(at, (deadline, 1)),
            },
            _ => self.due.push_back((deadline, 1)),
        }
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
        self.judge(in_flight, now).or_else(|| self.barren(now))
    }

    /// Tells once that the limit is at its least and no good answer comes.
    fn barren(&mut self, now: Micros) -> Option<LimitChange> {
        let is_least = self.limit.is_some_and(|limit| limit <= self.at_least);
        if !is_least || self.window.good > 0 {
            self.barren_since = Some(now);
        }
        self.barren_since.filter(|since| now >= since + BARREN)?;
        self.barren_since = None;
        Some(LimitChange::AtLeast)
    }

    /// When the request becomes slow, in milliseconds.
    fn deadline(&self, request: SentRequest) -> u64 {
        (request.at + (request.goal << self.doublings)).div_ceil(1_000)
    }

    fn place_of(&self, deadline: u64) -> Result<usize, usize> {
        self.due.binary_search_by_key(&deadline, |(deadline, _)| *deadline)
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

    /// Whether the request was not slow yet.
    fn remove(&mut self, request: SentRequest) -> bool {
        let Ok(at) = self.place_of(self.deadline(request)) else { return false };
        let count = &mut self.due[at].1;
        let was_due = *count > 0;
        *count -= u32::from(was_due);
        was_due
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
        if is_telling || window.has_answers() {
            self.last = window.summary(now);
        }
        if !is_telling {
            return None;
        }
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
        let base = self.limit.unwrap_or(f64::INFINITY).min(window.peak as f64);
        let WindowSummary { mean, peak, .. } = self.last;
        let most = self.whole_limit().and_then(|limit| usize::try_from(limit).ok());
        let peak = peak.min(most.unwrap_or(usize::MAX));
        let here = Descent { limit: self.limit, in_flight: base, peak, ratio, mean };
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
            self.verdict = [run, here];
            (self.verdict_at, self.retry_at, self.bad_run) = (now, now + VERDICT_HOLDS, 0);
            let fitting = (0..MOST_DOUBLINGS).find(|doublings| window.fits(*doublings));
            let doublings = fitting.unwrap_or(MOST_DOUBLINGS);
            self.stretch(doublings.max(self.doublings + 1).min(MOST_DOUBLINGS), now);
            return Some(LimitChange::Verdict);
        }
        let cut = target.max(CUTS.0 * base).min(CUTS.1 * base);
        let was_least = self.limit.is_some_and(|limit| limit <= self.at_least);
        self.limit = Some(cut.max(self.at_least));
        self.bad_at_least = if was_least { self.bad_at_least + 1 } else { 0 };
        change.or(Some(match self.bad_at_least {
            BAD_AT_LEAST => LimitChange::AtLeast,
            _ => LimitChange::Cut,
        }))
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
        self.due.iter().map(|(_, count)| *count as usize).sum()
    }
}
