//! The fixed window: `count` tokens in each window of time. What was used is forgotten when the
//! window ends, all at once.
//!
//! More may be used than a window has, by requests that are held for a later window and by requests
//! that turn out to have used more than they had taken. What is above `count` belongs to the windows
//! that follow, each of which takes its `count` of it. So a held request has an exact place: it is
//! counted in the first window into which it fits whole, behind everybody before it, and goes when
//! that window begins. The price: what the windows before had left over is not used by anybody.
//!
//! `windows.rs` knows when windows begin and end. `fixed_window.lua` is the same function for Redis,
//! step by step.

pub mod windows;

use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use self::windows::Windows;
use super::{Difference, Settlement, State as AnyState, Step, Want};
use crate::limit::decision::{Decision, Outcome};
use crate::limit::patience::Patience;
use crate::limit::rate::Burst;
use crate::limit::time::{STALE, Timestamp};

/// No more tokens than this can be used.
const MOST_USED: u64 = (1 << 40) - 1;

/// The figures of one fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// What a window holds.
    pub count: Burst,
    /// When windows begin.
    pub windows: Windows,
}

impl Params {
    /// The count, how windows begin, then their length or the known begins.
    pub(super) fn figures(&self) -> SmallVec<[u64; 4]> {
        let count = self.count.get();
        match &self.windows {
            Windows::Rolling(interval) => smallvec![count, 0, interval.as_micros()],
            Windows::Clock(interval) => smallvec![count, 1, interval.as_micros()],
            Windows::Calendar(nearby) => [count, 2].into_iter().chain(nearby.starts()).collect(),
        }
    }
}

/// What was used in one window, and in those behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// When the window began.
    pub start: Timestamp,
    /// Tokens; what is above the count belongs to the windows that follow. Never zero where it is kept.
    pub used: u64,
}

/// What a request at `now` means to the window.
pub fn decide(params: &Params, state: Option<State>, want: Want, now: Timestamp) -> Step {
    let Opened { state, moved } = open(params, state, now);
    let (count, cost) = (params.count.get(), want.cost.get());
    let kept = moved.then_some(AnyState::FixedWindow(state));
    let untouched = count.saturating_sub(state.used);
    let taken = |used: u64| {
        let used = (used + cost).min(MOST_USED);
        Some(AnyState::FixedWindow(State { used, ..state }))
    };

    if untouched >= cost {
        let decision = Decision { outcome: Outcome::Allow, remaining: untouched - cost };
        return Step { decision, untouched, taken: taken(state.used), kept };
    }
    let refused = |retry_after| Step {
        decision: Decision { outcome: Outcome::Reject { retry_after }, remaining: untouched },
        untouched,
        taken: None,
        kept,
    };
    if cost > count {
        return refused(None);
    }
    let WindowPlace { ahead, behind } = place(state.used, cost, count);
    let begins = params.windows.later(state.start, ahead);
    let wait = begins.micros_since(now).max(1);
    if !want.patience.allows(wait) {
        return refused(Some(Duration::from_micros(wait)));
    }
    let outcome = Outcome::Delay(Duration::from_micros(wait));
    let decision = Decision { outcome, remaining: 0 };
    Step { decision, untouched: 0, taken: taken(behind), kept }
}

/// Where a request goes that does not fit into this window.
struct WindowPlace {
    /// So many windows on.
    ahead: u64,
    /// Behind so much that counts as used.
    behind: u64,
}

/// The first window into which `cost` fits whole.
fn place(used: u64, cost: u64, count: u64) -> WindowPlace {
    let into = used % count;
    if into + cost > count {
        let ahead = used / count + 1;
        return WindowPlace { ahead, behind: ahead * count };
    }
    WindowPlace { ahead: used / count, behind: used }
}

/// The state once a request's use is known; `None` where nothing is used then.
///
/// What was used more is used now, whatever window the request took from: it would otherwise cost
/// nothing to be slow. What was used less was taken from one window alone, and is given back to it as
/// long as it is not over.
pub fn settle(
    params: &Params,
    state: Option<State>,
    settled: &Settlement,
    now: Timestamp,
) -> Option<State> {
    let state = open(params, state, now).state;
    let used = match settled.used {
        Difference::More(tokens) => state.used.saturating_add(tokens).min(MOST_USED),
        Difference::Less(tokens) => state.used - tokens.min(returnable(params, state, settled)),
    };
    (used > 0).then_some(State { used, ..state })
}

/// How much at most can be given back by a request that took when its receipt says.
fn returnable(params: &Params, state: State, settled: &Settlement) -> u64 {
    let (count, taken) = (params.count.get(), settled.receipt.time());
    if taken < state.start {
        return 0;
    }
    if state.used <= count || settled.patience == Patience::NONE {
        return state.used;
    }
    // Places may be reserved in later windows, of which only the last one's use is known by itself: were
    // less counted of another one's, the next request would find room in the last that is not there.
    let last = (state.used - 1) / count;
    match params.windows.passed(state.start, taken) == last {
        true => state.used - last * count,
        false => 0,
    }
}

/// The end of the last window in which anything is used. A clock that is a little behind may come
/// back into a window that stood on it and was over, and must find what was used there.
pub fn fresh_at(params: &Params, state: State) -> Timestamp {
    let start = params.windows.start_of(state.start);
    let end = params.windows.later(start, state.used.div_ceil(params.count.get()));
    if params.windows.are_on_clock() { end.plus_micros(STALE) } else { end }
}

/// Whether more is used than the window has.
pub fn in_debt(params: &Params, state: State) -> bool {
    state.used > params.count.get()
}

struct Opened {
    state: State,
    /// The clock had stepped back, and the state went with it.
    moved: bool,
}

/// The window of `now`, with what is used of it.
fn open(params: &Params, state: Option<State>, now: Timestamp) -> Opened {
    let opens = params.windows.start_of(now);
    let Some(State { start, used }) = state else {
        return Opened { state: State { start: opens, used: 0 }, moved: false };
    };
    // Another begin than these windows have is that of former figures.
    let start = params.windows.start_of(start);
    let ahead = start.micros_since(now);
    if ahead > STALE {
        return Opened { state: State { start: opens, used }, moved: true };
    }
    let passed = if ahead > 0 { 0 } else { params.windows.passed(start, now) };
    if passed == 0 {
        return Opened { state: State { start, used }, moved: false };
    }
    let used = used.saturating_sub(passed.saturating_mul(params.count.get()));
    let start = if used == 0 { opens } else { params.windows.later(start, passed) };
    Opened { state: State { start, used }, moved: false }
}

#[cfg(test)]
mod tests;
