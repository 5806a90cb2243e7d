//! The token bucket: a bucket of `burst` tokens that refills continuously at `rate`.
//!
//! This is the continuous-state leaky bucket of ITU-T I.371 (annex A) in reverse. A state says how many
//! tokens are *missing* from a full bucket. No state, an expired state and a full bucket therefore mean
//! the same, and a changed burst needs no migration.
//!
//! All numbers are whole. The reduced rate gives `tokens` each `period` microseconds. The missing amount is
//! whole tokens and a rest in units of `1 / period` token. Each microsecond gives back `tokens` units.
//! Elapsed time is split into whole periods and a rest: no product reaches 2^53, and a promised wait is
//! exact to the microsecond. `token_bucket.lua` is the same function for Redis, step by step.

use smallvec::{SmallVec, smallvec};

use super::{Algorithm, BucketState, Difference, Receipt, Settlement, Step, Want, WrittenUnder};
use crate::rate::{Burst, EXACT, Rate};
use crate::time::{STALE, Timestamp};
use crate::waiting::MaxWait;

/// The most tokens that can be missing from a bucket.
const MOST_MISSING: u64 = (1 << 40) - 1;

/// The mark of all rates that have none. It does not fit into two bytes, as marks do.
const UNMARKED: u64 = 1 << 16;

/// The number of bits below a mark. In these bits the script counts the spare tokens.
const SPARE_BITS: u32 = 6;

/// The figures of one token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// How fast the bucket refills.
    pub rate: Rate,
    /// The tokens that a full bucket holds.
    pub burst: Burst,
}

impl Params {
    /// The microseconds until an empty bucket is full again, rounded up.
    pub(super) fn refill_micros(&self) -> u64 {
        time_to_gain(self, self.burst.get(), 0)
    }

    /// The tokens that the bucket gains in this time, rounded up.
    pub(super) fn gain_of(&self, micros: u64) -> u64 {
        let (whole, part) = amount(self.rate.tokens(), self.rate.period(), micros);
        whole.saturating_add(u64::from(part > 0))
    }

    /// The figures for the Lua twin: tokens, period, burst, and the rate's mark.
    pub(super) fn figures(&self) -> SmallVec<[u64; 4]> {
        smallvec![self.rate.tokens(), self.rate.period(), self.burst.get(), mark(self.rate)]
    }
}

/// A number that no other rate has. By this mark the script knows that a state was written under the same rate. A rate
/// that gives several tokens at once is [`UNMARKED`]. So is a rate whose period has other prime factors than 2, 3 and
/// 5, or too many of them. A period that divides a day always has a mark.
fn mark(rate: Rate) -> u64 {
    let mut left = rate.period();
    let mut count = |factor| {
        let mut times = 0;
        while left.is_multiple_of(factor) {
            (left, times) = (left / factor, times + 1);
        }
        times
    };
    let (twos, threes, fives): (u64, u64, u64) = (count(2), count(3), count(5));
    if rate.tokens() == 1 && left == 1 && twos < 1 << 4 && threes < 1 << 2 && fives < 1 << 4 {
        ((twos << 6) | (threes << 4) | fives) << SPARE_BITS
    } else {
        UNMARKED
    }
}

/// The amount that is missing from a full bucket at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Missing whole tokens.
    pub missing: u64,
    /// The missing part of a token, in units of `1 / period` token; less than `period`.
    pub rest: u64,
    /// The period under which `rest` was counted.
    pub period: u64,
    /// The time for which these figures are true.
    pub at: Timestamp,
}

/// Decides on a request at `now`. A request that is held takes its tokens at once, and the bucket goes
/// below zero. Later requests therefore wait longer.
///
/// A leaky bucket has `even` spacing: each request is held until its turn. If the turn comes after the request's
/// longest wait, the request is refused.
pub(crate) fn decide(
    params: &Params,
    even: bool,
    state: Option<State>,
    want: Want,
    now: Timestamp,
) -> Step {
    let (state, kept) = refill(params, state, now);
    let (burst, cost) = (params.burst.get(), want.cost.get());
    let untouched = burst.saturating_sub(state.missing + u64::from(state.rest > 0));
    let taken = Some(BucketState::Bucket(take(state, cost)));
    let kept = kept.map(BucketState::Bucket);
    if cost > burst {
        return Step::of(want, untouched, None, None, kept);
    }
    let ahead = state.at.micros_since(now);
    let wait = |tokens| (time_to_gain(params, tokens, state.rest) + ahead).min(EXACT - 1);
    let room = if untouched >= cost { 0 } else { wait(state.missing + cost - burst) };
    if !even {
        return Step::of(want, untouched, Some(room), taken, kept);
    }
    let turn = if state.missing + state.rest == 0 { 0 } else { wait(state.missing) };
    if room > 0 || !want.max_wait.allows(turn) {
        // When the queue has room again, the wait for the turn may still be longer than the longest wait.
        let retry_after = room.max(turn.saturating_sub(want.max_wait.as_micros()));
        return Step::of(want, untouched, Some(retry_after), None, kept);
    }
    Step::of(want, untouched, Some(turn), taken, kept)
}

fn take(state: State, tokens: u64) -> State {
    // The sum cannot overflow: both numbers are below 2^53.
    State { missing: (state.missing + tokens).min(MOST_MISSING), ..state }
}

/// The state after a request's real use is known; `None` if the bucket is then full.
///
/// The tokens that a request took come back by themselves, in time. What has come back already is not given back again.
/// Otherwise a bucket that was full in the meantime would gain tokens that it could never have held.
///
/// If requests go at `even` spacing, or this request was still held, tokens are given back only if no request came
/// after it. The held requests after it keep their moments. If it gave tokens back, new requests would get the same
/// moments, and more would go at once than the bucket holds.
pub fn settle(
    params: &Params,
    even: bool,
    state: Option<State>,
    settled: &Settlement,
    now: Timestamp,
) -> Option<State> {
    let (state, _) = refill(params, state, now);
    let (missing, rest) = match settled.used {
        Difference::More(tokens) => (take(state, tokens).missing, state.rest),
        Difference::Less(tokens) => {
            let ToCome { at_least, at_most } = ToCome::of(params, state, settled.receipt);
            let is_held = settled.max_wait > MaxWait::NONE && at_most > (params.burst.get(), 0);
            let is_later_held = (even || is_held) && (state.missing, state.rest) > at_most;
            let (back, part) = if is_later_held { (0, 0) } else { at_least.min((tokens, 0)) };
            let borrowed = u64::from(state.rest < part);
            let rest = state.rest + borrowed * state.period - part;
            match state.missing.checked_sub(back + borrowed) {
                Some(missing) => (missing, rest),
                None => (0, 0),
            }
        }
    };
    (missing + rest > 0).then_some(State { missing, rest, ..state })
}

/// The amount that was missing when a request took and has not yet come back by itself: whole tokens, and units of
/// `1 / period` token. If the rate changed while the request ran, only bounds are known, because nobody knows when it
/// changed.
struct ToCome {
    /// As if the faster rate had held all the time. So much can be given back.
    at_least: (u64, u64),
    /// As if the present rate had held all the time. So it is if no other request took from the bucket or settled with
    /// it before the change. If more is missing, another request took later.
    at_most: (u64, u64),
}

impl ToCome {
    /// `state` must be refilled up to now.
    fn of(params: &Params, state: State, receipt: Receipt) -> Self {
        let time = receipt.time();
        if receipt.is_newest() {
            // Or the real time is later than a timestamp can hold.
            return Self { at_least: (u64::MAX, 0), at_most: (u64::MAX, 0) };
        }
        let left = time.micros_since(state.at);
        let bucket = Algorithm::TokenBucket(*params);
        let Some(WrittenUnder::Rate { tokens, period, taken }) = receipt.other_than(&bucket) else {
            let left = amount(params.rate.tokens(), params.rate.period(), left);
            return Self { at_least: left, at_most: left };
        };
        let (missing, part) = amount(tokens, period, time.micros_since(taken));
        let missing = missing.saturating_add(u64::from(part > 0));
        let at_most = gain(params, missing, 0, state.at.micros_since(taken));
        // A part in units of the former rate is lost.
        Self { at_least: at_most.min((amount(tokens, period, left).0, 0)), at_most }
    }
}

/// What a rate gives in this time: whole tokens, and units of `1 / period` token.
fn amount(tokens: u64, period: u64, micros: u64) -> (u64, u64) {
    let units = (micros % period) * tokens;
    let whole = (micros / period).saturating_mul(tokens).saturating_add(units / period);
    (whole, units % period)
}

/// The time at which the bucket is full.
pub(crate) fn fresh_at(params: &Params, state: State) -> Timestamp {
    let state = under(params, state);
    state.at.plus_micros(time_to_gain(params, state.missing, state.rest))
}

/// Whether more tokens are missing than the bucket can hold.
pub(crate) fn in_debt(params: &Params, state: State) -> bool {
    state.missing + u64::from(state.rest > 0) > params.burst.get()
}

/// The state at `now`, or at its own time if `now` is a little before it. If the clock has stepped
/// back, the state is moved to `now`. The second value is then the moved state, which must be kept.
pub(super) fn refill(
    params: &Params,
    state: Option<State>,
    now: Timestamp,
) -> (State, Option<State>) {
    let period = params.rate.period();
    let Some(state) = state else {
        return (State { missing: 0, rest: 0, period, at: now }, None);
    };
    let state = under(params, state);
    let ahead = state.at.micros_since(now);
    if ahead > STALE {
        let moved = State { at: now, ..state };
        return (moved, Some(moved));
    }
    if ahead > 0 {
        return (state, None);
    }
    let elapsed = now.micros_since(state.at);
    let (missing, rest) = gain(params, state.missing, state.rest, elapsed);
    (State { missing, rest, period, at: now }, None)
}

/// The state under these figures. A rest that was counted under another period is rounded up to a token,
/// against the client. Less than one token is lost, once for each change of figures.
fn under(params: &Params, state: State) -> State {
    let period = params.rate.period();
    if state.period == period {
        return state;
    }
    State { missing: state.missing + u64::from(state.rest > 0), rest: 0, period, ..state }
}

/// The amount that is still missing after `elapsed` microseconds: whole tokens and rest.
fn gain(params: &Params, missing: u64, rest: u64, elapsed: u64) -> (u64, u64) {
    let (tokens, period) = (params.rate.tokens(), params.rate.period());
    let periods = elapsed / period;
    // After these periods the bucket is full, whatever the rest is. The multiplication below could overflow.
    if periods >= (missing + 1).div_ceil(tokens) {
        return (0, 0);
    }
    let units = (elapsed % period) * tokens;
    let mut gained = periods * tokens + units / period;
    let mut rest_gained = units % period;
    if rest_gained > rest {
        gained += 1;
        rest_gained = period - rest_gained + rest;
    } else {
        rest_gained = rest - rest_gained;
    }
    if gained > missing { (0, 0) } else { (missing - gained, rest_gained) }
}

/// Microseconds until `whole` tokens and `rest` units are gained, at most 2^53 - 1.
fn time_to_gain(params: &Params, whole: u64, rest: u64) -> u64 {
    let (tokens, period) = (params.rate.tokens(), params.rate.period());
    let periods = (whole / tokens).saturating_mul(period);
    let units = (whole % tokens) * period + rest;
    periods.saturating_add(units.div_ceil(tokens)).min(EXACT - 1)
}

#[cfg(test)]
mod tests;
