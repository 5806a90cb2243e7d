//! Black-box tests, in one binary: one link on a small machine.

// Helpers of tests fail as tests do, and say why.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]

mod library;
mod process;
mod support;
