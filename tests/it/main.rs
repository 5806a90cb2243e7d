//! Black-box tests, in one binary: one link on a small machine.

// Helpers of tests fail as tests do, and say why.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]

mod admin;
mod allocations;
mod answers;
mod basics;
mod candidate;
mod cases;
mod cli;
mod concurrency;
mod config;
mod contract;
mod costs;
mod drain;
mod everywhere;
mod expiry;
mod faults_of_others;
mod grpc;
mod http1;
mod http2;
mod keys;
mod layers;
mod leaving;
mod limits;
mod logs;
mod outage;
mod parking;
mod readme;
mod real_input;
mod redis_store;
mod redisson;
mod regression;
mod rejected;
mod reload;
mod sliding_log;
mod smuggling;
mod spellings;
mod support;
mod timeouts;
mod tls;
mod together;
mod trouble;
mod twin;
mod upgrade;
mod upstreams;
mod waiting;
mod wall;
mod windows;
mod wire;
