//! The pure core: limits, buckets, decisions.
//!
//! A limiter is a function of figures, state, cost and time; a store is a place where it is
//! applied atomically. Nothing here waits, locks, logs or reads a clock.

pub mod algorithm;
pub mod decide;
pub mod decision;
pub mod key;
pub mod name;
pub mod patience;
pub mod rate;
pub mod time;

/// Whether a limit's refusal counts. A limit is of the first or the second; an ask about its
/// candidate may be of the third.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It stops the request.
    Enforce,
    /// It is checked, counted and logged, and never stops a request.
    Shadow,
    /// Like [`Mode::Shadow`], and it stands in for the limit that is asked right before it: what that
    /// one refuses does not keep this one from taking.
    Candidate,
}

/// Who shares a limit's buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All processes that share the store.
    Cluster,
    /// This process alone, in its own memory.
    Node,
}
