//! Exact rate limits for a Rust service: several limits are decided together, and the same buckets live in the process
//! or in Redis.
//!
//! ```
//! use tidegate_limit::{Answer, Limit, Limits, now};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limits = Limits::new([
//!     Limit::token_bucket("per-user", "10/s".parse()?).burst(20),
//!     Limit::fixed_window("a-day", "1000/d".parse()?).on_the_clock(),
//! ])?;
//! let user = "ann";
//! match limits.take([("per-user", &[user]), ("a-day", &[user])], now())? {
//!     Answer::Taken { remaining, .. } => assert_eq!(remaining, 19),
//!     Answer::Rejected { by, retry_after, .. } => println!("{by}: again in {retry_after:?}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # The map A service needs [`Limits`], [`Limit`], [`Charge`] and [`Answer`], with the feature `redis`
//! [`RedisLimits`], and with `tower` [`LimitLayer`]. The other modules are the core, and the proxy tidegate uses them
//! too. They are not shown here, and may change with each release:
//! - A limiter is a function of figures, state, cost and time. `algorithm` has the limiters, and `decide` joins the
//!   limits of a request. All numbers are whole.
//! - Two places apply these functions atomically: `memory` is a table of buckets in the process, and `call` is the
//!   script for Redis, whose buckets `stored` names.
//! - `quota` writes the header fields for a client, and `sentence` the words for a person.
//!
//! Only `memory` locks, only [`now`] reads a clock, and only [`RedisLimits`] and [`LimitLayer`] wait.
#![cfg_attr(not(feature = "redis"), allow(rustdoc::broken_intra_doc_links))]
#![cfg_attr(not(feature = "tower"), allow(rustdoc::broken_intra_doc_links))]

#[doc(hidden)]
pub mod algorithm;
mod answer;
#[doc(hidden)]
pub mod bucket;
#[cfg(feature = "redis")]
#[doc(hidden)]
pub mod call;
mod charge;
mod clock;
#[doc(hidden)]
pub mod decide;
#[doc(hidden)]
pub mod decision;
pub mod key;
mod limit;
mod limits;
#[doc(hidden)]
pub mod memory;
pub mod name;
#[doc(hidden)]
pub mod quota;
pub mod rate;
#[cfg(feature = "redis")]
mod redis;
#[doc(hidden)]
pub mod sentence;
#[cfg(feature = "redis")]
#[doc(hidden)]
pub mod stored;
pub mod time;
#[cfg(feature = "tower")]
mod tower;
#[doc(hidden)]
pub mod waiting;

pub use self::answer::{Answer, Quotas};
#[cfg(feature = "redis")]
pub use self::call::TEXT as REDIS_SCRIPT;
pub use self::charge::{Charge, ChargeError};
pub use self::clock::now;
pub use self::limit::{Limit, LimitError, LimitFault};
pub use self::limits::{Limits, MAX_KEYS, Permit};
pub use self::name::Name;
pub use self::rate::{Rate, RateError};
#[cfg(feature = "redis")]
pub use self::redis::{RedisCall, RedisLimits, RedisPermit, RedisTakeError};
pub use self::time::{Now, Timestamp};
#[cfg(feature = "tower")]
pub use self::tower::{LimitLayer, LimitService};

/// The README, whose code is tried as well.
#[cfg(all(doctest, feature = "redis", feature = "tower"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// Whether a limit's refusal counts. Only a candidate can have the last mode.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A refusal stops the request.
    Enforce,
    /// A refusal is counted and logged, and never stops a request.
    Shadow,
    /// Like [`Mode::Shadow`], and the API gets the names of the limits that would refuse.
    Mark,
    /// Like [`Mode::Shadow`], for a candidate. It takes its tokens wherever it lets the request pass, whatever the other
    /// limits say.
    Candidate,
}

impl Mode {
    /// The mode's name for people and programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
            Self::Mark => "mark",
            Self::Candidate => "candidate",
        }
    }
}

/// Who shares a limit's buckets.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All processes that share the store.
    Cluster,
    /// This process alone, in its own memory.
    Node,
}
