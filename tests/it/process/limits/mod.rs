//! What limits do to requests, and what is said about it.

mod any;
mod candidate;
mod concurrency;
mod costs;
mod keys;
mod marks;
mod plans;
mod queue;
mod real_input;
mod redisson;
mod sliding_log;
mod together;
pub(super) mod waiting;
mod windows;
