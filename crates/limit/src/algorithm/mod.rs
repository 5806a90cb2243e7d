//! The algorithms by which limits count: one file for each, and [`Algorithm`], which dispatches to them.
//!
//! `decide` asks an algorithm about a request. The memory store settles requests by it, and the
//! Redis store runs [`LUA`].

pub mod concurrency;
mod debt;
pub mod fixed_window;
pub mod leaky_bucket;
pub mod recalled;
pub mod redisson;
mod settlement;
mod share;
pub mod sliding_log;
pub mod sliding_window;
mod step;
#[cfg(test)]
mod testing;
pub mod token_bucket;
mod written_under;

use std::fmt;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};

pub use self::settlement::{Difference, Receipt, Settlement, WrittenUnder};
pub use self::step::{Step, Want};

use super::decision::{Decision, Outcome};
use super::rate::Burst;
use super::time::{Now, Timestamp};

/// The same algorithms in Lua, for the script that runs in Redis: one function `decide`. Each branch of the function is
/// the twin of the Rust file beside it. A long branch has several pieces of text, which are joined here. With functions
/// instead, a call would cost more: Redis makes all functions anew for each call. `decide` only calculates;
/// `call/shell.lua` reads and writes. Its head says what `decide` takes and returns. The algorithm is given by
/// its [name](Algorithm::name), its figures by [`Algorithm::figures`]; the receipt is a [`Receipt`].
///
/// The store keeps a bucket's bytes at least until the bucket is the same as a new one. An algorithm that
/// keeps a list is called through `call/lists.lua`.
pub const LUA: &str = concat!(
    "local struct_pack, struct_unpack = struct.pack, struct.unpack\n",
    "local function decide(algorithm, figures, cost, max_wait, bytes, now, receipt, former)\n",
    "if algorithm == 'token-bucket' or algorithm == 'leaky-bucket' then\n",
    include_str!("token_bucket/token_bucket.lua"),
    include_str!("token_bucket/decide.lua"),
    include_str!("token_bucket/encode.lua"),
    "elseif algorithm == 'fixed-window' then\n",
    include_str!("fixed_window/fixed_window.lua"),
    include_str!("fixed_window/decide.lua"),
    "elseif algorithm == 'sliding-window' then\n",
    include_str!("sliding_window/sliding_window.lua"),
    include_str!("sliding_window/decide.lua"),
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
    /// Lets requests go at even spacing, and holds some of them until their turn.
    LeakyBucket(leaky_bucket::Params),
    /// Counts in windows of time, one after the other.
    FixedWindow(fixed_window::Params),
    /// Counts in the interval that ends now, by two counters.
    SlidingWindow(sliding_window::Params),
    /// Shares a Redisson limiter in Redis with other services.
    Redisson(redisson::Params),
    /// Counts exactly, by one entry for each permit.
    SlidingLog(sliding_log::Params),
    /// Holds a slot until the response ends.
    Concurrency(concurrency::Params),
    /// Lets nothing pass, ever. It has no buckets.
    Closed,
}

/// The state inside the variant `$kind`; `None` for no state and for any other variant.
macro_rules! of {
    ($state:expr, $kind:ident) => {
        match $state {
            Some(BucketState::$kind(state)) => Some(state),
            _ => None,
        }
    };
}

/// What a bucket remembers between two requests. A bucket without a state is a new bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketState {
    /// Of [`Algorithm::TokenBucket`], of [`Algorithm::LeakyBucket`], and of [`Algorithm::Redisson`] if
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
pub(crate) enum Usage {
    /// The used share: 255 is the whole bucket. It stays the same until the bucket is full again.
    Share(u8),
    /// For a bucket that refills continuously: the microseconds in which an empty bucket becomes full.
    RefillsIn(u64),
}

impl Algorithm {
    /// The time by the clock that this algorithm uses.
    pub fn time(&self, now: Now) -> Timestamp {
        if self.goes_by_wall() { now.wall } else { now.steady }
    }

    /// Whether this algorithm uses the wall clock, which may be set.
    pub(crate) fn goes_by_wall(&self) -> bool {
        matches!(self, Self::FixedWindow(params) if params.windows.are_on_clock())
    }

    /// The token bucket by which this algorithm counts, if it has one. A Redisson limiter has one only for a
    /// process that decides alone.
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
    pub fn decide(&self, state: Option<BucketState>, want: Want, now: Timestamp) -> Step {
        match self {
            Self::TokenBucket(params) => {
                token_bucket::decide(params, false, of!(state, Bucket), want, now)
            }
            Self::LeakyBucket(params) => {
                token_bucket::decide(&params.bucket(), true, of!(state, Bucket), want, now)
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

    /// The receipt of a request that passes at `now`. `taken` is the state after the request has taken.
    pub fn receipt(&self, outcome: Outcome, taken: BucketState, now: Timestamp) -> Receipt {
        let counted_at = |start: Timestamp| match outcome {
            // If `now` is a little before the state's window, the request counts in that window.
            Outcome::Allow | Outcome::Reject { .. } => now.max(start),
            Outcome::Delay(wait) => now.plus(wait).max(start),
        };
        Receipt::new(match taken {
            BucketState::Bucket(_) => self.fresh_at(taken),
            BucketState::FixedWindow(state)
                if outcome == Outcome::Allow && self.has_rolling_windows() =>
            {
                state.start
            }
            BucketState::FixedWindow(state) => counted_at(state.start),
            BucketState::SlidingWindow(state) => counted_at(state.start),
            BucketState::SlidingLog(state) => state.newest,
            BucketState::Concurrency(_) => now,
        })
    }

    /// The state after the real use of a request is known at `now`. The request took its cost before. `None` is a new
    /// bucket, and a state of another kind reads as a new bucket. If the request used more, the difference is taken
    /// at `now`. If it used less, the difference is given back, but no more than is still missing: see `settle` of
    /// each algorithm. A sliding log's list is settled by [`sliding_log::Log::settle`], and its state stays unchanged
    /// here.
    pub fn settle(
        &self,
        state: Option<BucketState>,
        settled: &Settlement,
        now: Timestamp,
    ) -> Option<BucketState> {
        // A new bucket is full: nothing can be given back.
        if let (None, Difference::Less(_)) = (state, settled.used) {
            return None;
        }
        match self {
            Self::TokenBucket(_) | Self::LeakyBucket(_) | Self::Redisson(_) => {
                let (state, even) = (of!(state, Bucket), matches!(self, Self::LeakyBucket(_)));
                let state = token_bucket::settle(&self.bucket()?, even, state, settled, now);
                state.map(BucketState::Bucket)
            }
            Self::FixedWindow(params) => {
                let state = of!(state, FixedWindow);
                fixed_window::settle(params, state, settled, now).map(BucketState::FixedWindow)
            }
            Self::SlidingWindow(params) => {
                let state = of!(state, SlidingWindow);
                sliding_window::settle(params, state, settled, now).map(BucketState::SlidingWindow)
            }
            Self::SlidingLog(_) => state,
            Self::Concurrency(_) => {
                let state = concurrency::settle(of!(state, Concurrency), settled.used);
                state.map(BucketState::Concurrency)
            }
            Self::Closed => None,
        }
    }

    /// From this time on the bucket is the same as a new one. A state of another kind is the same as a new
    /// bucket from [`Timestamp::MIN`] on.
    pub fn fresh_at(&self, state: BucketState) -> Timestamp {
        match (self, state) {
            (_, BucketState::Bucket(state)) => self
                .bucket()
                .map_or(Timestamp::MIN, |bucket| token_bucket::fresh_at(&bucket, state)),
            (Self::FixedWindow(params), BucketState::FixedWindow(state)) => {
                fixed_window::fresh_at(params, state)
            }
            (Self::SlidingWindow(params), BucketState::SlidingWindow(state)) => {
                sliding_window::fresh_at(params, state)
            }
            (Self::SlidingLog(params), BucketState::SlidingLog(state)) => {
                sliding_log::fresh_at(params, state)
            }
            (Self::Concurrency(_), BucketState::Concurrency(_)) => concurrency::fresh_at(),
            _ => Timestamp::MIN,
        }
    }

    /// The time that a window has left which began with a request. `begin` is its begin. `None` for other limits, and if
    /// the window is over.
    pub fn window_left(&self, begin: Timestamp, now: Timestamp) -> Option<Duration> {
        let Self::FixedWindow(params) = self else { return None };
        let left = params.windows.end_of(begin).micros_since(now);
        (self.has_rolling_windows() && left > 0).then_some(Duration::from_micros(left))
    }

    /// Whether windows begin with a key's first request.
    pub fn has_rolling_windows(&self) -> bool {
        matches!(self, Self::FixedWindow(params) if !params.windows.are_on_clock())
    }

    /// How much of a bucket is used. A store without room forgets the bucket of which least is used. `None` if a store
    /// must not forget the bucket, because it owes tokens or its slots are held.
    pub(crate) fn usage(&self, state: BucketState) -> Option<Usage> {
        let share = |used: u64, count: Burst| {
            let share = used.min(count.get()).saturating_mul(255) / count.get();
            Usage::Share(u8::try_from(share).unwrap_or(u8::MAX))
        };
        let (usage, in_debt) = match (self, state) {
            (_, BucketState::Bucket(state)) => {
                let Some(bucket) = self.bucket() else { return Some(Usage::RefillsIn(0)) };
                let in_debt = token_bucket::in_debt(&bucket, state);
                // A rough value is enough, because only the order of eviction depends on it. Every request runs this
                // line.
                let all = bucket.burst.get().saturating_mul(bucket.rate.period());
                (Usage::RefillsIn(all / bucket.rate.tokens()), in_debt)
            }
            (Self::FixedWindow(params), BucketState::FixedWindow(state)) => {
                let used = state.used.saturating_add(state.beyond);
                (share(used, params.count), fixed_window::in_debt(params, state))
            }
            (Self::SlidingWindow(params), BucketState::SlidingWindow(state)) => {
                let used = state.previous.saturating_add(state.current).saturating_add(state.next);
                (share(used, params.count), sliding_window::in_debt(params, state))
            }
            (Self::SlidingLog(params), BucketState::SlidingLog(state)) => {
                let used = u64::from(state.used) + u64::from(state.added);
                (share(used, params.count), sliding_log::in_debt(params, state))
            }
            (Self::Concurrency(_), BucketState::Concurrency(_)) => return None,
            _ => return Some(Usage::Share(u8::MAX)),
        };
        (!in_debt).then_some(usage)
    }

    /// The lease of a slot in Redis. If the slot's holder dies, the slot is free after this time. `None` if the
    /// algorithm counts tokens.
    pub fn lease(&self) -> Option<Duration> {
        match self {
            Self::Concurrency(params) => Some(params.lease()),
            _ => None,
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
            // A Redisson limiter has its own script. Redis is never asked about a closed limit.
            Self::Redisson(_) | Self::Closed => SmallVec::new(),
            Self::SlidingLog(params) => {
                smallvec![params.count.get(), params.interval.as_micros()]
            }
            Self::Concurrency(params) => {
                let lease = u64::try_from(params.lease().as_micros()).unwrap_or(u64::MAX);
                smallvec![params.limit.get(), lease]
            }
        }
    }

    /// The most tokens that a request can ever take. Clients see this number as their quota.
    pub fn capacity(&self) -> u64 {
        match self {
            Self::TokenBucket(params) => params.burst.get(),
            Self::LeakyBucket(params) => params.bucket().burst.get(),
            Self::FixedWindow(params) => params.count.get(),
            Self::SlidingWindow(params) => params.count.get(),
            // The figures in Redis are not known here.
            Self::Redisson(params) => params.stand_in().map_or(u64::MAX, |it| it.burst.get()),
            Self::SlidingLog(params) => params.count.get(),
            Self::Concurrency(params) => params.limit.get(),
            Self::Closed => 0,
        }
    }

    /// [`Algorithm::capacity`]. `None` if only Redis knows the figures.
    pub fn known_capacity(&self) -> Option<u64> {
        Some(self.capacity()).filter(|capacity| *capacity < u64::MAX)
    }

    /// The seconds in which an empty bucket becomes full again, rounded up. For windows and logs this is
    /// their length. `None` for concurrency and for closed limits: time does not refill them.
    pub fn window_seconds(&self) -> Option<u64> {
        match self {
            Self::TokenBucket(params) => Some(params.refill_micros().div_ceil(1_000_000)),
            Self::LeakyBucket(params) => Some(params.bucket().refill_micros().div_ceil(1_000_000)),
            Self::FixedWindow(params) => Some(params.windows.seconds()),
            Self::SlidingWindow(params) => Some(params.interval.as_seconds()),
            Self::Redisson(params) => {
                Some(params.rate().map_or(0, |rate| rate.interval().div_ceil(1_000_000)))
            }
            Self::SlidingLog(params) => Some(params.interval.as_seconds()),
            Self::Concurrency(_) | Self::Closed => None,
        }
    }

    /// The rate as `proxy.toml` spells it. `None` if there is none: for slots, and if Redis has the
    /// figures of a Redisson limiter.
    pub fn rate(&self) -> Option<String> {
        match self {
            Self::TokenBucket(params) => Some(params.rate.to_string()),
            Self::LeakyBucket(params) => Some(params.rate.to_string()),
            Self::SlidingLog(params) => Some(format!("{}/{}", params.count, params.interval)),
            Self::SlidingWindow(params) => Some(format!("{}/{}", params.count, params.interval)),
            Self::FixedWindow(params) => {
                Some(format!("{}/{}", params.count, params.windows.length()))
            }
            Self::Redisson(params) => params.rate().map(|rate| rate.to_string()),
            Self::Concurrency(_) => None,
            Self::Closed => Some("0/s".to_owned()),
        }
    }

    /// The word for this algorithm in `proxy.toml`.
    pub fn name(&self) -> &'static str {
        self.known_by().0
    }

    /// A number that no other algorithm has.
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

/// The figures in a few words, such as `100/s, burst 50`.
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
            Self::SlidingLog(params) => {
                write!(f, "{}/{} in any such interval", params.count, params.interval)
            }
            Self::Concurrency(params) => write!(f, "{} at once", params.limit),
            Self::Closed => f.write_str("0/s"),
        }
    }
}

#[cfg(test)]
mod receipt_tests;
