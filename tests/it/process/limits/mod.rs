//! What limits do to requests, and what is said about it.

mod candidate;
mod concurrency;
mod costs;
mod keys;
mod left;
mod marks;
mod modes;
mod own_figures;
mod plans;
mod queue;
mod redisson;
mod together;
pub(super) mod waiting;
mod windows;
