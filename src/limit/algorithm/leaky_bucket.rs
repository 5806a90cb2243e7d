//! The leaky bucket as a queue: requests go one after the other at the even spacing of `rate`, and up
//! to `queue` of them are held for it. One more is refused. (nginx's `limit_req` with a `burst` and
//! without `nodelay`.)
//!
//! A request goes when nothing is left of those before it, and then stands for the time that its cost
//! takes at the rate. So this is a token bucket of `queue + 1` tokens, in which a request that is let
//! in waits until the bucket was full without it: the states are the same, and so is the Lua twin. Only
//! what is said of a request that is let in differs.

use std::time::Duration;

use super::token_bucket::{self, BucketSnapshot, State};
use super::{Difference, Settlement, State as AnyState, Step, Want};
use crate::limit::decision::{Decision, Outcome};
use crate::limit::rate::{Burst, EXACT, Rate};
use crate::limit::time::Timestamp;

/// The figures of one leaky bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// How fast requests go.
    pub rate: Rate,
    /// The one that goes and those that are held behind it.
    capacity: Burst,
}

impl Params {
    /// `None` where `queue` is larger than a burst can be.
    pub fn new(rate: Rate, queue: u64) -> Option<Self> {
        Some(Self { rate, capacity: Burst::new(queue.checked_add(1)?)? })
    }

    /// How many requests of cost one are held at most.
    pub fn queue(&self) -> u64 {
        self.capacity.get() - 1
    }

    /// The token bucket that decides who is let in.
    pub fn bucket(&self) -> token_bucket::Params {
        token_bucket::Params { rate: self.rate, burst: self.capacity }
    }
}

/// What a request at `now` means to the bucket. It is held for as long as it needs to be, unless that
/// is longer than it may.
pub fn decide(params: &Params, state: Option<State>, want: Want, now: Timestamp) -> Step {
    let bucket = params.bucket();
    let BucketSnapshot { state, ahead, untouched, kept } = token_bucket::ask(&bucket, state, now);
    let (capacity, cost) = (bucket.burst.get(), want.cost.get());
    let kept = kept.map(AnyState::Bucket);
    let wait =
        |tokens| (token_bucket::time_to_gain(&bucket, tokens, state.rest) + ahead).min(EXACT - 1);

    if untouched >= cost {
        let turn = match state.missing + state.rest {
            0 => 0,
            _ => wait(state.missing),
        };
        if want.patience.allows(turn) {
            let taken = token_bucket::take(state, cost);
            let outcome = match turn {
                0 => Outcome::Allow,
                turn => Outcome::Delay(Duration::from_micros(turn)),
            };
            return Step {
                decision: Decision { outcome, remaining: untouched - cost },
                untouched: if turn == 0 { untouched } else { untouched - cost },
                taken: Some(AnyState::Bucket(taken)),
                kept,
            };
        }
        let retry_after = Some(Duration::from_micros(turn - want.patience.as_micros()));
        let decision = Decision { outcome: Outcome::Reject { retry_after }, remaining: untouched };
        return Step { decision, untouched, taken: None, kept };
    }
    let retry_after = (cost <= capacity).then(|| {
        let room = wait(state.missing + cost - capacity);
        // By then those that are held are fewer, and may still be too many for the patience.
        let turn = wait(state.missing).saturating_sub(want.patience.as_micros());
        Duration::from_micros(room.max(turn))
    });
    let decision = Decision { outcome: Outcome::Reject { retry_after }, remaining: untouched };
    Step { decision, untouched, taken: None, kept }
}

/// The state once a request's use is known; `None` where nothing is left of those before.
///
/// What it used less is given back only where nobody came behind it. Those who did keep their moments,
/// and whoever came next would go together with the last of them.
pub fn settle(
    params: &Params,
    state: Option<State>,
    settled: &Settlement,
    now: Timestamp,
) -> Option<State> {
    let bucket = params.bucket();
    let state = token_bucket::ask(&bucket, state, now).state;
    let is_last = (state.missing, state.rest) <= token_bucket::to_come(&bucket, state, settled);
    let used = match settled.used {
        Difference::Less(_) if !is_last => Difference::Less(0),
        used => used,
    };
    token_bucket::settle(&bucket, Some(state), &Settlement { used, ..*settled }, now)
}
