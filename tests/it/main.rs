//! Black-box tests, in one binary: one link on a small machine.

// Helpers of tests fail as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod basics;
mod keys;
mod limits;
mod support;
