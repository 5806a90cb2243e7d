//! The pure core: limits, buckets, decisions.
//!
//! A limiter is a function of figures, state, cost and time. `algorithm` has the limiters, `decide` joins the limits of a
//! route. Two places apply these functions atomically: `memory` is a table of buckets in the process, and `call` is the
//! script for Redis. Nothing else here locks or logs, and nothing waits or reads a clock.

pub mod algorithm;
pub mod bucket;
#[cfg(feature = "redis")]
pub mod call;
pub mod decide;
pub mod decision;
pub mod key;
pub mod memory;
pub mod name;
pub mod quota;
pub mod rate;
#[cfg(feature = "redis")]
pub mod stored;
pub mod time;
pub mod waiting;

/// Whether a limit's refusal counts. Only a candidate can have the last mode.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All processes that share the store.
    Cluster,
    /// This process alone, in its own memory.
    Node,
}
