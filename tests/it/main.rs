//! Black-box tests.

mod config;
