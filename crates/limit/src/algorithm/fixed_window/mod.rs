//! The fixed window: `count` tokens in each window of time. All used tokens are forgotten when the window
//! ends.
//!
//! More than `count` tokens can be used: by requests held for a later window, and by requests that used
//! more than they took. The tokens above `count` belong to the next windows. Each of these takes up to `count`. A held
//! request counts in the first window that has room for its whole cost, after all earlier requests. It goes when that
//! window begins. What the windows before have left stays unused.
//!
//! If the count is lowered, more tokens of a window may be used than it now has. They were used in this window, and are
//! forgotten when it ends. So a state keeps them apart from the tokens of the next windows.
//!
//! `windows.rs` knows when windows begin and end. `fixed_window.lua` is the same function for Redis.

pub mod windows;

use smallvec::{SmallVec, smallvec};

use self::windows::Windows;
use super::{Algorithm, BucketState, Difference, Settlement, Step, Want};
use crate::rate::Burst;
use crate::time::{STALE, Timestamp};
use crate::waiting::MaxWait;

/// The most tokens that a state counts in the windows after its own.
const MOST_BEYOND: u64 = (1 << 40) - 1;

/// The figures of one fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// The tokens of a window.
    pub count: Burst,
    /// When windows begin.
    pub windows: Windows,
}

impl Params {
    /// The figures for the Lua twin: the count, the kind of windows, then their length or the known starts.
    pub(super) fn figures(&self) -> SmallVec<[u64; 4]> {
        let count = self.count.get();
        match &self.windows {
            Windows::Rolling(interval) => smallvec![count, 0, interval.as_micros()],
            Windows::Clock(interval) => smallvec![count, 1, interval.as_micros()],
            Windows::Calendar(nearby) => [count, 2].into_iter().chain(nearby.starts()).collect(),
        }
    }
}

/// The tokens used in one window and in the windows after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The start of the window.
    pub start: Timestamp,
    /// The tokens used in this window: more than the count only if the count was lowered. Never zero in a state that is
    /// kept.
    pub used: u64,
    /// The used tokens of the next windows. If there are some, nothing is left in this window.
    pub beyond: u64,
    /// The count of each of these windows when the state was written. 0 if nothing is `beyond`.
    pub each: u64,
}

impl State {
    /// A state with `used` tokens in one window, and none in the next ones.
    pub fn of(start: Timestamp, used: u64) -> Self {
        Self { start, used, beyond: 0, each: 0 }
    }

    /// The same state under another count. If the new count is lower, the same next windows stay in use, each up to
    /// the new count. If it is higher, their tokens move into the first of them.
    fn under(self, count: u64) -> Self {
        let beyond = match self.each > count {
            true => self.beyond / self.each * count + (self.beyond % self.each).min(count),
            false => self.beyond,
        };
        Self { beyond: 0, ..self }.plus(beyond, count)
    }

    /// The state with more tokens used. They fill this window first, then the next ones.
    fn plus(self, tokens: u64, count: u64) -> Self {
        let here = count.saturating_sub(self.used).min(tokens);
        let beyond = self.beyond.saturating_add(tokens - here).min(MOST_BEYOND);
        Self { used: self.used + here, ..self }.with_beyond(beyond, count)
    }

    /// The state with fewer tokens used. Tokens of the last window go first.
    fn minus(self, tokens: u64, count: u64) -> Self {
        let last = self.beyond.min(tokens);
        let used = self.used.saturating_sub(tokens - last);
        Self { used, ..self }.with_beyond(self.beyond - last, count)
    }

    fn with_beyond(self, beyond: u64, count: u64) -> Self {
        let each = if beyond > 0 { count } else { 0 };
        Self { beyond, each, ..self }
    }
}

/// Decides on a request at `now`.
pub(crate) fn decide(params: &Params, state: Option<State>, want: Want, now: Timestamp) -> Step {
    let (state, kept) = open(params, state, now);
    let (count, cost) = (params.count.get(), want.cost.get());
    let kept = kept.map(BucketState::FixedWindow);
    let untouched = count.saturating_sub(state.used);
    let taken = |before: State| Some(BucketState::FixedWindow(before.plus(cost, count)));
    if untouched >= cost {
        return Step::of(want, untouched, Some(0), taken(state), kept);
    }
    if cost > count {
        return Step::of(want, untouched, None, None, kept);
    }
    let (ahead, before) = position(state.beyond, cost, count);
    let wait = params.windows.later(state.start, ahead).micros_since(now).max(1);
    let before = State { used: state.used.max(count), beyond: before, ..state };
    Step::of(want, untouched, Some(wait), taken(before), kept)
}

/// Finds the first later window with room for the whole `cost`. Returns how many windows lie between the state's window
/// and this one, and the tokens that count as used in later windows before the request takes its own.
fn position(beyond: u64, cost: u64, count: u64) -> (u64, u64) {
    let (full, into) = (beyond / count, beyond % count);
    match into + cost > count {
        true => (full + 2, (full + 1) * count),
        false => (full + 1, beyond),
    }
}

/// The state after a request's real use is known; `None` if no token is then used.
///
/// If the request used more, the difference counts now, whatever window the request took from. Otherwise a slow
/// request would get it for nothing. If the request used less, the difference goes back to the window from which the
/// request took, unless that window is over.
pub(crate) fn settle(
    params: &Params,
    state: Option<State>,
    settled: &Settlement,
    now: Timestamp,
) -> Option<State> {
    let (state, _) = open(params, state, now);
    let count = params.count.get();
    let state = match settled.used {
        Difference::More(tokens) => state.plus(tokens, count),
        Difference::Less(tokens) => {
            state.minus(tokens.min(returnable(params, state, settled, now)), count)
        }
    };
    (state.used > 0).then_some(state)
}

/// The most tokens that the settled request can give back: none if its window is over, or another request has a place in
/// a later window.
fn returnable(params: &Params, state: State, settled: &Settlement, now: Timestamp) -> u64 {
    let (count, taken) = (params.count.get(), settled.receipt.time());
    if taken < state.start || settled.is_window_over(&Algorithm::FixedWindow(*params), now) {
        return 0;
    }
    if state.beyond == 0 || settled.max_wait == MaxWait::NONE {
        return state.used + state.beyond;
    }
    // `beyond` is the sum over all later windows, in which places are reserved. From the sum only the use of the last
    // window is known. If tokens of another window were subtracted, the last window would seem to have room.
    let before_last = (state.beyond - 1) / count;
    let is_last = params.windows.passed(state.start, taken) == before_last + 1;
    if is_last { state.beyond - before_last * count } else { 0 }
}

/// The end of the last window with used tokens. For windows on the clock [`STALE`] is added: by a clock that is a
/// little late, the window has not ended, and its used tokens must still count.
pub(crate) fn fresh_at(params: &Params, state: State) -> Timestamp {
    let count = params.count.get();
    let (start, state) = (params.windows.start_of(state.start), state.under(count));
    let windows = if state.used > 0 { 1 + state.beyond.div_ceil(count) } else { 0 };
    let end = params.windows.later(start, windows);
    if params.windows.are_on_clock() { end.plus_micros(STALE) } else { end }
}

/// Whether tokens of the next windows are used, or a request is held.
pub(crate) fn in_debt(params: &Params, state: State) -> bool {
    state.under(params.count.get()).beyond > 0
}

/// The state for the window of `now`. If the clock has stepped back into the window before, the state stays: it still
/// counts when the clock returns. Until then requests take from it. If the clock has stepped back further, the state
/// is moved back too. Otherwise the bucket would stay closed until the clock has returned. The second value is then
/// the moved state, which must be kept.
fn open(params: &Params, state: Option<State>, now: Timestamp) -> (State, Option<State>) {
    let (opens, count) = (params.windows.start_of(now), params.count.get());
    let Some(state) = state else { return (State::of(opens, 0), None) };
    // A start that is not the start of one of these windows comes from former figures.
    let start = params.windows.start_of(state.start);
    let state = State { start, ..state.under(count) };
    let ahead = start.micros_since(now);
    if ahead > STALE && start > params.windows.later(opens, 1) {
        let moved = State { start: opens, ..state };
        return (moved, Some(moved));
    }
    if ahead > 0 {
        return (state, None);
    }
    if state.used == 0 {
        return (State::of(opens, 0), None);
    }
    let passed = params.windows.passed(start, now);
    if passed == 0 {
        return (state, None);
    }
    // The window is over, and all that was used in it is forgotten. So are the next windows that are over.
    let rest = state.beyond.saturating_sub((passed - 1).saturating_mul(count));
    let start = if rest == 0 { opens } else { params.windows.later(start, passed) };
    (State::of(start, 0).plus(rest, count), None)
}

#[cfg(test)]
mod tests;
