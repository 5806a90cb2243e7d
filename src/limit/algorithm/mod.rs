//! The family of algorithms: one file for each, dispatched here.

pub mod concurrency;
pub mod fixed_window;
pub mod leaky_bucket;
pub mod redisson;
mod settlement;
pub mod sliding_log;
pub mod sliding_window;
#[cfg(test)]
mod testing;
pub mod token_bucket;

use std::fmt;

use smallvec::{SmallVec, smallvec};

pub use self::settlement::{Difference, Receipt, Settlement};

use super::decision::{Decision, Outcome};
use super::patience::Patience;
use super::rate::{Cost, Rate};
use super::time::{Now, Timestamp};

/// The same algorithms in Lua, for a script that runs in Redis: one function `decide`. Each branch of it is
/// the twin of the Rust file beside it. It only calculates; `store/shell.lua` reads and writes, and the
/// table at its head says what `decide` takes and returns. The algorithm is known by its
/// [name](Algorithm::name), its figures are [`Algorithm::figures`], the receipt is a [`Receipt`].
///
/// The bytes are kept at least until they are indistinguishable from a new bucket. Between `decide` and an
/// algorithm that keeps a list stands `store/lists.lua`.
pub const LUA: &str = concat!(
    "local struct_pack, struct_unpack = struct.pack, struct.unpack\n",
    "local function decide(algorithm, figures, cost, patience, bytes, now, receipt)\n",
    "if algorithm == 'token-bucket' or algorithm == 'leaky-bucket' then\n",
    include_str!("token_bucket/token_bucket.lua"),
    "elseif algorithm == 'fixed-window' then\n",
    include_str!("fixed_window/fixed_window.lua"),
    "elseif algorithm == 'sliding-window' then\n",
    include_str!("sliding_window/sliding_window.lua"),
    "elseif algorithm == 'sliding-log' then\n",
    include_str!("sliding_log/sliding_log.lua"),
    "elseif algorithm == 'concurrency' then\n",
    include_str!("concurrency.lua"),
    "end\nend\n\n",
);

/// How a limit counts, with figures that fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Takes from a bucket that refills continuously.
    TokenBucket(token_bucket::Params),
    /// Lets requests go at even spacing, and holds some of them for it.
    LeakyBucket(leaky_bucket::Params),
    /// Counts in windows of time, one after the other.
    FixedWindow(fixed_window::Params),
    /// Counts in the interval that ends now, by two counters.
    SlidingWindow(sliding_window::Params),
    /// Shares a limiter of Redisson's, which stands in Redis.
    Redisson(redisson::Params),
    /// Counts exactly, by one entry for each permit.
    SlidingLog(sliding_log::Params),
    /// Holds a slot until the response ends.
    Concurrency(concurrency::Params),
    /// Lets nothing pass, ever. It has no buckets.
    Closed,
}

/// The state of this kind, if it is one.
macro_rules! of {
    ($state:expr, $kind:ident) => {
        match $state {
            Some(State::$kind(state)) => Some(state),
            _ => None,
        }
    };
}

/// What a request wants of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// What it takes.
    pub cost: Cost,
    /// How long it may be held.
    pub patience: Patience,
}

/// What a bucket remembers between two requests. That there is none means a new bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Of [`Algorithm::TokenBucket`], of [`Algorithm::LeakyBucket`], and of [`Algorithm::Redisson`] where
    /// the process decides alone. Stores keep the buckets of different algorithms apart.
    Bucket(token_bucket::State),
    /// Of [`Algorithm::FixedWindow`].
    FixedWindow(fixed_window::State),
    /// Of [`Algorithm::SlidingWindow`].
    SlidingWindow(sliding_window::State),
    /// Of [`Algorithm::SlidingLog`], whose list is the store's own.
    SlidingLog(sliding_log::State),
    /// Of [`Algorithm::Concurrency`].
    Concurrency(concurrency::State),
}

/// How much of a bucket is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// So many parts of 255, until the bucket is as new.
    Share(u8),
    /// It refills all the time, and all of it in so many microseconds.
    RefillsIn(u64),
}

/// What one algorithm would do with one request. Nothing has been taken yet: whether it is, is
/// decided over all limits of a route together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The answer if the request's cost is taken where it is allowed.
    pub decision: Decision,
    /// What remains if nothing is taken, rounded down; where the request would be held, the same as if
    /// it was.
    pub untouched: u64,
    /// The state after taking; `None` where the request is refused.
    pub taken: Option<State>,
    /// The state to keep although nothing was taken: there only where the clock had stepped back
    /// and the state was moved to the new time.
    pub kept: Option<State>,
}

impl Algorithm {
    /// The time by the clock that counts for this algorithm.
    pub fn time(&self, now: Now) -> Timestamp {
        if self.goes_by_wall() { now.wall } else { now.steady }
    }

    /// Whether that is the time of day, which may be set.
    pub fn goes_by_wall(&self) -> bool {
        matches!(self, Self::FixedWindow(params) if params.windows.are_on_clock())
    }

    /// The token bucket by which it counts, if it does; that of a Redisson limiter is what a process has
    /// where it decides alone.
    fn bucket(&self) -> Option<token_bucket::Params> {
        match self {
            Self::TokenBucket(params) => Some(*params),
            Self::LeakyBucket(params) => Some(params.bucket()),
            Self::Redisson(params) => params.stand_in(),
            _ => None,
        }
    }

    /// What this algorithm would do with a request at `now`. A state of another kind reads as a new
    /// bucket.
    pub fn decide(&self, state: Option<State>, want: Want, now: Timestamp) -> Step {
        match self {
            Self::TokenBucket(params) => {
                token_bucket::decide(params, of!(state, Bucket), want, now)
            }
            Self::LeakyBucket(params) => {
                leaky_bucket::decide(params, of!(state, Bucket), want, now)
            }
            Self::Redisson(params) => redisson::decide(params, of!(state, Bucket), want, now),
            Self::FixedWindow(params) => {
                fixed_window::decide(params, of!(state, FixedWindow), want, now)
            }
            Self::SlidingWindow(params) => {
                sliding_window::decide(params, of!(state, SlidingWindow), want, now)
            }
            Self::SlidingLog(params) => {
                sliding_log::decide(params, of!(state, SlidingLog), want, now)
            }
            Self::Concurrency(params) => concurrency::decide(params, of!(state, Concurrency)),
            Self::Closed => {
                Step { decision: Decision::NEVER, untouched: 0, taken: None, kept: None }
            }
        }
    }

    /// What is noted of a request that this algorithm lets pass at `now`, with the state once it has
    /// taken.
    pub fn receipt(&self, outcome: Outcome, taken: State, now: Timestamp) -> Receipt {
        let counted_at = |start: Timestamp| match outcome {
            // Where the clock is a little behind, the request counts in a window to come.
            Outcome::Allow | Outcome::Reject { .. } => now.max(start),
            Outcome::Delay(wait) => now.plus(wait).max(start),
        };
        Receipt::new(match taken {
            State::Bucket(_) => self.fresh_at(taken),
            State::FixedWindow(state) => counted_at(state.start),
            State::SlidingWindow(state) => counted_at(state.start),
            State::SlidingLog(state) => state.newest,
            State::Concurrency(_) => now,
        })
    }

    /// The state once the use of a request, which had taken before, is known at `now`; `None` where that
    /// is a new bucket. A state of another kind reads as one. What was taken more is taken at `now`;
    /// what was taken less is given back as far as it is known to be missing still: see each algorithm's
    /// own. A list is settled by itself ([`sliding_log::Log::settle`]): what is known of it stays as it is
    /// here.
    pub fn settle(
        &self,
        state: Option<State>,
        settled: &Settlement,
        now: Timestamp,
    ) -> Option<State> {
        match self {
            Self::TokenBucket(_) | Self::Redisson(_) => {
                let state = of!(state, Bucket);
                token_bucket::settle(&self.bucket()?, state, settled, now).map(State::Bucket)
            }
            Self::LeakyBucket(params) => {
                let state = of!(state, Bucket);
                leaky_bucket::settle(params, state, settled, now).map(State::Bucket)
            }
            Self::FixedWindow(params) => {
                let state = of!(state, FixedWindow);
                fixed_window::settle(params, state, settled, now).map(State::FixedWindow)
            }
            Self::SlidingWindow(params) => {
                let state = of!(state, SlidingWindow);
                sliding_window::settle(params, state, settled, now).map(State::SlidingWindow)
            }
            Self::SlidingLog(_) => state,
            Self::Concurrency(_) => {
                let state = of!(state, Concurrency);
                concurrency::settle(state, settled.used).map(State::Concurrency)
            }
            Self::Closed => None,
        }
    }

    /// From this time on the state is indistinguishable from a new bucket's. One of another kind is
    /// so at once.
    pub fn fresh_at(&self, state: State) -> Timestamp {
        match (self, state) {
            (_, State::Bucket(state)) => self
                .bucket()
                .map_or(Timestamp::MIN, |bucket| token_bucket::fresh_at(&bucket, state)),
            (Self::FixedWindow(params), State::FixedWindow(state)) => {
                fixed_window::fresh_at(params, state)
            }
            (Self::SlidingWindow(params), State::SlidingWindow(state)) => {
                sliding_window::fresh_at(params, state)
            }
            (Self::SlidingLog(params), State::SlidingLog(state)) => {
                sliding_log::fresh_at(params, state)
            }
            (Self::Concurrency(_), State::Concurrency(_)) => concurrency::fresh_at(),
            _ => Timestamp::MIN,
        }
    }

    /// Whether the bucket owes tokens: forgetting such a one would forgive a debt.
    pub fn in_debt(&self, state: State) -> bool {
        match (self, state) {
            (_, State::Bucket(state)) => {
                self.bucket().is_some_and(|bucket| token_bucket::in_debt(&bucket, state))
            }
            (Self::FixedWindow(params), State::FixedWindow(state)) => {
                fixed_window::in_debt(params, state)
            }
            (Self::SlidingWindow(params), State::SlidingWindow(state)) => {
                sliding_window::in_debt(params, state)
            }
            (Self::SlidingLog(params), State::SlidingLog(state)) => {
                sliding_log::in_debt(params, state)
            }
            // Held slots are never forgotten.
            (Self::Concurrency(_), State::Concurrency(_)) => true,
            _ => false,
        }
    }

    /// How much of a bucket is used, from 0 to 255 for all of it: what is lost with it where it has to be
    /// forgotten. Of a bucket that refills all the time, it is told by how long that takes.
    pub fn usage(&self, state: State) -> Usage {
        let share = |used: u64, count: u64| {
            let share = used.min(count).saturating_mul(255) / count.max(1);
            Usage::Share(u8::try_from(share).unwrap_or(u8::MAX))
        };
        match (self, state) {
            (_, State::Bucket(_)) => {
                Usage::RefillsIn(self.bucket().map_or(0, |bucket| bucket.refill_micros()))
            }
            (Self::FixedWindow(params), State::FixedWindow(state)) => {
                share(state.used, params.count.get())
            }
            (Self::SlidingWindow(params), State::SlidingWindow(state)) => {
                let used = state.previous.saturating_add(state.current).saturating_add(state.next);
                share(used, params.count.get())
            }
            (Self::SlidingLog(params), State::SlidingLog(state)) => {
                share(u64::from(state.used) + u64::from(state.added), params.rate().count())
            }
            _ => Usage::Share(u8::MAX),
        }
    }

    /// The figures in the order in which the algorithm's Lua twin takes them, all below 2^53.
    pub fn figures(&self) -> SmallVec<[u64; 4]> {
        match self {
            Self::TokenBucket(params) => params.figures(),
            Self::LeakyBucket(params) => params.bucket().figures(),
            Self::FixedWindow(params) => params.figures(),
            Self::SlidingWindow(params) => {
                smallvec![params.count.get(), params.interval.as_micros(), params.grain()]
            }
            // A Redisson limiter has a script of its own, and the closed one is never asked in Redis.
            Self::Redisson(_) | Self::Closed => SmallVec::new(),
            Self::SlidingLog(params) => {
                smallvec![params.rate().count(), params.rate().interval()]
            }
            Self::Concurrency(params) => {
                let lease = u64::try_from(params.lease().as_micros()).unwrap_or(u64::MAX);
                smallvec![params.limit.get(), lease]
            }
        }
    }

    /// The most tokens that a request can ever take: what clients are told as the quota.
    pub fn capacity(&self) -> u64 {
        match self {
            Self::TokenBucket(params) => params.burst.get(),
            Self::LeakyBucket(params) => params.bucket().burst.get(),
            Self::FixedWindow(params) => params.count.get(),
            Self::SlidingWindow(params) => params.count.get(),
            // What Redis has is not known here.
            Self::Redisson(params) => params.rate().map_or(u64::MAX, Rate::count),
            Self::SlidingLog(params) => params.rate().count(),
            Self::Concurrency(params) => params.limit.get(),
            Self::Closed => 0,
        }
    }

    /// The whole seconds after which a bucket of which everything was taken is as new, rounded up; of a
    /// window its length. `None` where time alone does not make it so.
    pub fn window_seconds(&self) -> Option<u64> {
        match self {
            Self::TokenBucket(params) => Some(params.refill_seconds()),
            Self::LeakyBucket(params) => Some(params.bucket().refill_seconds()),
            Self::FixedWindow(params) => Some(params.windows.seconds()),
            Self::SlidingWindow(params) => Some(params.interval.as_seconds()),
            Self::Redisson(params) => {
                Some(params.rate().map_or(0, |rate| rate.interval().div_ceil(1_000_000)))
            }
            Self::SlidingLog(params) => Some(params.rate().interval().div_ceil(1_000_000)),
            Self::Concurrency(_) | Self::Closed => None,
        }
    }

    /// The word for this algorithm in `proxy.toml`.
    pub fn name(&self) -> &'static str {
        self.known_by().0
    }

    /// A number for this algorithm, which no other has.
    pub fn number(&self) -> u64 {
        self.known_by().1
    }

    fn known_by(&self) -> (&'static str, u64) {
        match self {
            Self::TokenBucket(_) => ("token-bucket", 0),
            Self::LeakyBucket(_) => ("leaky-bucket", 1),
            Self::FixedWindow(_) => ("fixed-window", 2),
            Self::SlidingWindow(_) => ("sliding-window", 3),
            Self::Redisson(_) => ("redisson", 4),
            Self::SlidingLog(_) => ("sliding-log", 5),
            Self::Concurrency(_) => ("concurrency", 6),
            Self::Closed => ("closed", 7),
        }
    }
}

/// The figures in a few words.
impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TokenBucket(params) => write!(f, "{}, burst {}", params.rate, params.burst),
            Self::LeakyBucket(params) => {
                write!(f, "{} at even spacing, queue {}", params.rate, params.queue())
            }
            Self::FixedWindow(params) => write!(f, "{}{}", params.count, params.windows),
            Self::SlidingWindow(params) => {
                write!(f, "{}/{} in a sliding window", params.count, params.interval)
            }
            Self::Redisson(params) => params.fmt(f),
            Self::SlidingLog(params) => write!(f, "{} in any such interval", params.rate()),
            Self::Concurrency(params) => write!(f, "{} at once", params.limit),
            Self::Closed => f.write_str("0/s"),
        }
    }
}

#[cfg(test)]
mod receipt_tests;
