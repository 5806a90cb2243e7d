//! Black-box tests.

// Helpers of tests fail as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod contract;
mod outage;
mod redis_store;
mod support;
mod twin;
