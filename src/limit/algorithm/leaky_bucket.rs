//! The leaky bucket as a queue. Requests go one after the other at the even spacing of `rate`, and up to
//! `queue` requests are held until their turn. The next request is refused. (nginx does the same with
//! `limit_req`, a `burst` and no `nodelay`.)
//!
//! This is a token bucket of `queue + 1` tokens with one difference: a request that is let in waits until
//! the requests before it have leaked, that is, until the bucket would be full without it. State and Lua
//! twin are those of the token bucket.

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
    /// The queue, and one place for the request that goes.
    capacity: Burst,
}

impl Params {
    /// `None` where `queue` is larger than a burst can be.
    pub fn new(rate: Rate, queue: u64) -> Option<Self> {
        Some(Self { rate, capacity: Burst::new(queue.checked_add(1)?)? })
    }

    /// The most requests of cost one that are held at once.
    pub fn queue(&self) -> u64 {
        self.capacity.get() - 1
    }

    /// The token bucket that decides which requests are let in.
    pub fn bucket(&self) -> token_bucket::Params {
        token_bucket::Params { rate: self.rate, burst: self.capacity }
    }
}

/// Decides on a request at `now`. A request that is let in is held until its turn. If its turn comes later
/// than its patience allows, the request is refused.
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
        // When the queue has room again, the wait for the turn may still be longer than the patience.
        let turn = wait(state.missing).saturating_sub(want.patience.as_micros());
        Duration::from_micros(room.max(turn))
    });
    let decision = Decision { outcome: Outcome::Reject { retry_after }, remaining: untouched };
    Step { decision, untouched, taken: None, kept }
}

/// The state after a request's real use is known; `None` where the bucket is then full.
///
/// Tokens are given back only where no request came behind this one. Held requests keep their moments.
/// With tokens given back, the next request would go at the same moment as the last held one.
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
