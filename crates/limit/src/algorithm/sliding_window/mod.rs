//! The sliding window by two counters: about `count` tokens in the interval that ends now. One counter is
//! for the current window of the clock, the other for the window before. The tokens of the window before
//! count as spread evenly over it, and only the share inside the interval counts. (Cloudflare described this in
//! 2017 as the way in which its rate limits count.)
//!
//! A third counter is for requests that are held for a moment in the next window. Later requests then go
//! after them. A request whose moment would be after the next window is refused.
//!
//! All numbers are whole. Time within a window is counted in grains, which are so long that no product reaches
//! 2^53. With usual figures a grain is a microsecond, and it is never more than a 70,000th of the interval.
//! Elapsed time is rounded down, which never favours the client. `sliding_window.lua` is the same function for Redis.

use super::{Algorithm, BucketState, Difference, Settlement, Step, Want};
use crate::rate::{Burst, EXACT, Interval};
use crate::time::{STALE, Timestamp};

/// The most tokens that are counted in a window.
const MOST_COUNTED: u64 = (1 << 40) - 1;

/// An ended window counts at most this multiple of the limit's count. It can only have more tokens if requests used
/// more than they took.
const MOST_EARLIER: u64 = 128;

/// The figures of one sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Tokens in an interval.
    pub count: Burst,
    /// The interval's length, which is also the length of a window.
    pub interval: Interval,
    /// The microseconds of a grain, in which time is counted.
    grain: u64,
}

impl Params {
    /// Works with any two figures.
    pub fn new(count: Burst, interval: Interval) -> Self {
        let most_units = (EXACT - 1) / (MOST_EARLIER * count.get());
        Self { count, interval, grain: interval.as_micros().div_ceil(most_units) }
    }

    pub(super) fn grain(&self) -> u64 {
        self.grain
    }

    /// The interval in grains, rounded up.
    fn units(&self) -> u64 {
        self.interval.as_micros().div_ceil(self.grain)
    }

    fn earlier(&self, counted: u64) -> u64 {
        counted.min(MOST_EARLIER * self.count.get())
    }
}

/// The counters of a window of the clock and of its two neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The start of the window.
    pub start: Timestamp,
    /// Tokens of the window before.
    pub previous: u64,
    /// Tokens of the window itself.
    pub current: u64,
    /// Tokens of requests that are held for a moment in the next window.
    pub next: u64,
}

impl State {
    fn is_new(self) -> bool {
        self.previous + self.current + self.next == 0
    }
}

/// Decides on a request at `now`.
pub(crate) fn decide(params: &Params, state: Option<State>, want: Want, now: Timestamp) -> Step {
    let (state, kept) = open(params, state, now);
    let (count, cost) = (params.count.get(), want.cost.get());
    let kept = kept.map(BucketState::SlidingWindow);
    let untouched = untouched(params, state, now);
    if untouched >= cost {
        let taken = reserve(state, cost, 0).map(BucketState::SlidingWindow);
        return Step::of(want, untouched, Some(0), taken, kept);
    }
    if cost > count {
        return Step::of(want, untouched, None, None, kept);
    }
    let (ahead, at) = moment(params, state, cost);
    let wait = at.micros_since(now).max(1);
    let taken = reserve(state, cost, ahead).map(BucketState::SlidingWindow);
    Step::of(want, untouched, Some(wait), taken, kept)
}

/// The counters after `ahead` more windows, if no other request comes.
fn window_of(params: &Params, state: State, ahead: u64) -> State {
    let (previous, current, next) = match ahead {
        0 => return state,
        1 => (state.current, state.next, 0),
        2 => (state.next, 0, 0),
        _ => (0, 0, 0),
    };
    let start = state.start.plus_micros(ahead.saturating_mul(params.interval.as_micros()));
    State { start, previous: params.earlier(previous), current, next }
}

/// Whole tokens that a request at `now` finds, rounded down.
fn untouched(params: &Params, state: State, now: Timestamp) -> u64 {
    if state.next > 0 {
        return 0;
    }
    let units = params.units();
    let inside = units - now.micros_since(state.start) / params.grain;
    let weighted = (state.previous * inside).div_ceil(units);
    params.count.get().saturating_sub(state.current + weighted)
}

/// Returns the first moment at which a request passes if no other request comes. The number before it says how many
/// windows later that is than the state's window. Call this only for a request that does not pass now.
fn moment(params: &Params, state: State, cost: u64) -> (u64, Timestamp) {
    let (count, units, interval) =
        (params.count.get(), params.units(), params.interval.as_micros());
    let windows =
        [(state.previous, state.current), (state.current, state.next), (state.next, 0), (0, 0)];
    let first = u64::from(state.next > 0);
    for (ahead, (earlier, counted)) in (0..).zip(windows).filter(|(ahead, _)| *ahead >= first) {
        let Some(room) = count.checked_sub(counted + cost) else { continue };
        let earlier = params.earlier(earlier);
        // From this grain on, the earlier window counts so little that the request has room.
        let unit = if earlier <= room { 0 } else { units - room * units / earlier };
        let into = unit * params.grain;
        if into < interval {
            return (ahead, state.start.plus_micros(ahead * interval + into));
        }
    }
    // Not reached: the last of the `windows` is empty, and has room for every cost up to the count.
    (3, state.start.plus_micros(3 * interval))
}

/// The state with a request in the window of its moment. `None` if the moment is after the next window,
/// because no later window has a counter.
fn reserve(state: State, cost: u64, ahead: u64) -> Option<State> {
    match ahead {
        0 => Some(State { current: state.current + cost, ..state }),
        1 => Some(State { next: state.next + cost, ..state }),
        _ => None,
    }
}

/// The state after a request's real use is known; `None` if all counters are then zero. Tokens are given
/// back from the counter of the request's window, if there still is a counter for that window. For
/// [`Receipt::NEWEST`](super::Receipt::NEWEST) they are given back from this window, then from the one before.
pub(crate) fn settle(
    params: &Params,
    state: Option<State>,
    settled: &Settlement,
    now: Timestamp,
) -> Option<State> {
    let (mut state, _) = open(params, state, now);
    match settled.used {
        Difference::More(tokens) => {
            state.current = state.current.saturating_add(tokens).min(MOST_COUNTED);
        }
        Difference::Less(tokens) if settled.receipt.is_newest() => {
            let before = tokens.saturating_sub(state.current);
            state.current = state.current.saturating_sub(tokens);
            state.previous = state.previous.saturating_sub(before);
        }
        Difference::Less(_) if settled.is_window_over(&Algorithm::SlidingWindow(*params), now) => {}
        Difference::Less(tokens) => {
            let interval = params.interval.as_micros();
            let window = begin(interval, settled.receipt.time());
            let counted = match window.micros_since(state.start) / interval {
                0 if window == state.start => &mut state.current,
                0 if window.plus_micros(interval) == state.start => &mut state.previous,
                1 => &mut state.next,
                _ => &mut 0,
            };
            *counted = counted.saturating_sub(tokens);
        }
    }
    (!state.is_new()).then_some(state)
}

/// The time from which nothing counts of a request whose moment is `time`: the end of the window after its own.
pub(super) fn counts_until(params: &Params, time: Timestamp) -> Timestamp {
    let interval = params.interval.as_micros();
    begin(interval, time).plus_micros(interval.saturating_mul(2))
}

/// The time from which no counted token is inside the interval.
pub(crate) fn fresh_at(params: &Params, state: State) -> Timestamp {
    let State { start, current, next, .. } = rebased(params, state);
    let windows = if next > 0 { 3 } else { 1 + u64::from(current > 0) };
    start.plus_micros(windows * params.interval.as_micros())
}

/// Whether a window counts more tokens than the limit's count, or requests are held.
pub(crate) fn in_debt(params: &Params, state: State) -> bool {
    state.previous.max(state.current) > params.count.get() || state.next > 0
}

/// The state for the window of `now`. If the clock has stepped back into the window before, the state stays: it still
/// counts when the clock returns. If the clock has stepped back further, the state is moved back too. Otherwise the
/// bucket would stay closed until the clock has returned. The second value is then the moved state, which must be
/// kept.
fn open(params: &Params, state: Option<State>, now: Timestamp) -> (State, Option<State>) {
    let interval = params.interval.as_micros();
    let opens = begin(interval, now);
    let Some(state) = state else {
        return (State { start: opens, previous: 0, current: 0, next: 0 }, None);
    };
    let state = rebased(params, state);
    let ahead = state.start.micros_since(now);
    if ahead > STALE.max(interval) {
        // As `previous`, less of these tokens would count after the move. So all of them count as `current`.
        let moved = State { start: opens, ..together(state) };
        return (moved, Some(moved));
    }
    (window_of(params, state, opens.micros_since(state.start) / interval), None)
}

/// The state under these figures. If no window of these figures begins at its start, all its tokens count as current,
/// in the window that contains this start.
fn rebased(params: &Params, state: State) -> State {
    let start = begin(params.interval.as_micros(), state.start);
    if start != state.start {
        return State { start, ..together(state) };
    }
    State { previous: params.earlier(state.previous), ..state }
}

fn together(state: State) -> State {
    let current = (state.previous + state.current).min(MOST_COUNTED);
    State { previous: 0, current, ..state }
}

fn begin(interval: u64, time: Timestamp) -> Timestamp {
    let micros = time.as_micros();
    Timestamp::from_micros(micros - micros % interval).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests;
