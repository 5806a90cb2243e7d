//! Black-box tests, in one binary: one link on a small machine.

mod basics;
mod config;
mod readme;
mod support;
