//! The family of algorithms: one file for each, dispatched here.

pub mod token_bucket;

use smallvec::{SmallVec, smallvec};

use super::decision::Decision;
use super::rate::Cost;
use super::time::Timestamp;

/// The same algorithms in Lua, for a script that runs in Redis: one function `decide`, each branch
/// of it the twin of the Rust file beside it. It only calculates; the caller reads and writes.
///
/// It takes the algorithm's [name](Algorithm::name), its [figures](Algorithm::figures) as the first
/// of a list, the cost (below zero what is given back, at zero the state is only brought up to
/// now), the state's bytes (nothing for a new bucket) and the time. It returns the microseconds
/// until the cost would be allowed (0 where it is, -1 where it never will be); the tokens that
/// remain, once the cost is taken where it is allowed; whether the state had to follow a clock that
/// stepped back; and, where it is allowed, the bytes after it was taken (nothing for a new bucket)
/// and the time at which those are indistinguishable from a new bucket.
pub const LUA: &str = concat!(
    "local struct_pack, struct_unpack = struct.pack, struct.unpack\n",
    "local function decide(algorithm, figures, cost, bytes, now)\n",
    "if algorithm == 'token-bucket' then\n",
    include_str!("token_bucket.lua"),
    "end\nend\n\n",
);

/// How a limit counts, with figures that fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Takes from a bucket that refills continuously.
    TokenBucket(token_bucket::Params),
}

/// What a bucket remembers between two requests. That there is none means a new bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Of [`Algorithm::TokenBucket`].
    TokenBucket(token_bucket::State),
}

/// What one algorithm would do with one request. Nothing has been taken yet: whether it is, is
/// decided over all limits of a route together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The answer if the request's cost is taken where it is allowed.
    pub decision: Decision,
    /// What remains if nothing is taken, rounded down.
    pub untouched: u64,
    /// The state after taking; `None` where the request is refused.
    pub taken: Option<State>,
    /// The state to keep although nothing was taken: there only where the clock had stepped back
    /// and the state was moved to the new time.
    pub kept: Option<State>,
}

impl Algorithm {
    /// What this algorithm would do with a request of `cost` at `now`. A state of another
    /// algorithm reads as a new bucket.
    pub fn decide(&self, state: Option<State>, cost: Cost, now: Timestamp) -> Step {
        match self {
            Self::TokenBucket(params) => {
                let state = state.map(|State::TokenBucket(state)| state);
                token_bucket::decide(params, state, cost, now)
            }
        }
    }

    /// The state after `tokens` that were taken are given back at `now`; `None` where that is a
    /// new bucket.
    pub fn give_back(&self, state: State, tokens: u64, now: Timestamp) -> Option<State> {
        match (self, state) {
            (Self::TokenBucket(params), State::TokenBucket(state)) => {
                token_bucket::give_back(params, state, tokens, now).map(State::TokenBucket)
            }
        }
    }

    /// From this time on the state is indistinguishable from a new bucket's.
    pub fn fresh_at(&self, state: State) -> Timestamp {
        match (self, state) {
            (Self::TokenBucket(params), State::TokenBucket(state)) => {
                token_bucket::fresh_at(params, state)
            }
        }
    }

    /// Whether the bucket owes tokens: forgetting such a one would forgive a debt.
    pub fn in_debt(&self, state: State) -> bool {
        match (self, state) {
            (Self::TokenBucket(params), State::TokenBucket(state)) => {
                token_bucket::in_debt(params, state)
            }
        }
    }

    /// The figures in the order in which the algorithm's Lua twin takes them, all below 2^53.
    pub fn figures(&self) -> SmallVec<[u64; 4]> {
        match self {
            Self::TokenBucket(params) => {
                smallvec![params.rate.tokens(), params.rate.period(), params.burst.get()]
            }
        }
    }

    /// The word for this algorithm in `proxy.toml`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::TokenBucket(_) => "token-bucket",
        }
    }
}
