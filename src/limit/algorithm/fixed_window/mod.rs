//! The fixed window: `count` tokens in each window of time. All used tokens are forgotten when the window
//! ends.
//!
//! More than `count` tokens can be used: by requests held for a later window, and by requests that used
//! more than they took. The tokens above `count` belong to the next windows, each of which takes `count` of
//! them. A held request counts in the first window into which it fits whole, behind all earlier requests,
//! and goes when that window begins. Tokens left over in the windows before stay unused.
//!
//! `windows.rs` knows when windows begin and end. `fixed_window.lua` is the same function for Redis.

pub mod windows;

use smallvec::{SmallVec, smallvec};

use self::windows::Windows;
use super::{Difference, Settlement, State as AnyState, Step, Want};
use crate::limit::rate::Burst;
use crate::limit::time::{Lead, STALE, Timestamp};
use crate::limit::waiting::MaxWait;

/// The most tokens that a state counts as used.
const MOST_USED: u64 = (1 << 40) - 1;

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
    /// Used tokens. Those above the count belong to the next windows. In a kept state this is zero only if
    /// the state has a lead.
    pub used: u64,
    /// How far `start` is ahead of the clock. No request goes before such a `start`.
    pub lead: Lead,
}

/// Decides on a request at `now`.
pub(crate) fn decide(params: &Params, state: Option<State>, want: Want, now: Timestamp) -> Step {
    let (present, kept) = open(params, state, now);
    let (count, cost) = (params.count.get(), want.cost.get());
    let moment = want.moment(now);
    let (state, lead) = match want.earliest {
        0 => (present, present.lead),
        _ => {
            let (then, _) = open(params, kept.or(state), moment);
            (then, Lead::between(now, then.start))
        }
    };
    let kept = kept.map(AnyState::FixedWindow);
    let then = count.saturating_sub(state.used);
    // A window that is ahead of the clock has no tokens before it begins.
    let untouched = if state.lead == Lead::NONE { then } else { 0 };
    let taken = |used: u64| {
        let used = (used + cost).min(MOST_USED);
        Some(AnyState::FixedWindow(State { used, lead, ..state }))
    };
    if then >= cost {
        // A request that is held until the window begins goes first, even where there are tokens.
        let turn = if state.lead == Lead::NONE { 0 } else { state.start.micros_since(moment) };
        return Step::of(want, untouched, Some(turn), taken(state.used), kept);
    }
    if cost > count {
        return Step::of(want, untouched, None, None, kept);
    }
    let WindowPlace { ahead, behind } = place(state.used, cost, count);
    let wait = params.windows.later(state.start, ahead).micros_since(moment).max(1);
    Step::of(want, untouched, Some(wait), taken(behind), kept)
}

/// The place of a request that does not fit into the state's window.
struct WindowPlace {
    /// The number of windows from the state's window to the request's window.
    ahead: u64,
    /// The tokens that count as used before the request takes.
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

/// The state after a request's real use is known; `None` where no token is then used.
///
/// Tokens used in addition count now, whatever window the request took from. Otherwise a slow request
/// would get them for nothing. Tokens used less are given back to the window from which the request took,
/// unless that window is over.
pub(crate) fn settle(
    params: &Params,
    state: Option<State>,
    settled: &Settlement,
    now: Timestamp,
) -> Option<State> {
    let (state, _) = open(params, state, now);
    let used = match settled.used {
        Difference::More(tokens) => state.used.saturating_add(tokens).min(MOST_USED),
        Difference::Less(tokens) => state.used - tokens.min(returnable(params, state, settled)),
    };
    // A window that is ahead of the clock does not know what was used before, and stays closed until it begins.
    (used > 0 || state.lead > Lead::NONE).then_some(State { used, ..state })
}

/// The most tokens that the settled request can give back.
fn returnable(params: &Params, state: State, settled: &Settlement) -> u64 {
    let (count, taken) = (params.count.get(), settled.receipt.time());
    if taken < state.start {
        return 0;
    }
    if state.used <= count || settled.max_wait == MaxWait::NONE {
        return state.used;
    }
    // Places are reserved in later windows, and `used` is the sum over all windows. The sum shows only how
    // much of the last window is used. If tokens of another window were subtracted from the sum, the last
    // window would seem to have room.
    let last = (state.used - 1) / count;
    match params.windows.passed(state.start, taken) == last {
        true => state.used - last * count,
        false => 0,
    }
}

/// The end of the last window with used tokens. For windows on the clock [`STALE`] is added: a clock that
/// is a little behind may be in the ended window again, and must find the used tokens.
pub(crate) fn fresh_at(params: &Params, state: State) -> Timestamp {
    let start = params.windows.start_of(state.start);
    let end = params.windows.later(start, state.used.div_ceil(params.count.get()));
    if params.windows.are_on_clock() { end.plus_micros(STALE) } else { end }
}

/// Whether more tokens are used than the window has, or a request is held.
pub(crate) fn in_debt(params: &Params, state: State) -> bool {
    state.lead > Lead::NONE || state.used > params.count.get()
}

/// The state for the window of `now`. A window that is a little ahead of `now` stays. If the clock has
/// stepped back, the state is moved back too. The second value is then the moved state, which must be kept.
fn open(params: &Params, state: Option<State>, now: Timestamp) -> (State, Option<State>) {
    let opens = params.windows.start_of(now);
    let Some(State { start, used, lead }) = state else {
        return (State { start: opens, used: 0, lead: Lead::NONE }, None);
    };
    // A start that is not the start of one of these windows comes from former figures.
    let start = params.windows.start_of(start);
    let ahead = start.micros_since(now);
    if lead.is_exceeded_by(ahead) {
        let start = params.windows.start_of(now.plus_micros(lead.as_micros()));
        let moved = State { start, used, lead };
        return (moved, Some(moved));
    }
    if ahead > 0 {
        return (State { start, used, lead }, None);
    }
    let lead = Lead::NONE;
    if used == 0 {
        return (State { start: opens, used, lead }, None);
    }
    let passed = params.windows.passed(start, now);
    if passed == 0 {
        return (State { start, used, lead }, None);
    }
    let used = used.saturating_sub(passed.saturating_mul(params.count.get()));
    let start = if used == 0 { opens } else { params.windows.later(start, passed) };
    (State { start, used, lead }, None)
}

#[cfg(test)]
mod tests;
