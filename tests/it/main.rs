//! Black-box tests, in one binary: one link on a small machine.

// Helpers of tests fail as tests do, and say why.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]

mod basics;
mod config;
mod contract;
mod drain;
mod http1;
mod leaving;
mod outage;
mod readme;
mod redis_store;
mod rejected;
mod smuggling;
mod support;
mod timeouts;
mod twin;
mod upgrade;
mod upstreams;
