//! Black-box tests, in one binary: one link on a small machine.

mod basics;
mod smuggling;
mod support;
