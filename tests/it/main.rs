//! Black-box tests, in one binary: one link on a small machine.

mod basics;
mod http1;
mod smuggling;
mod support;
mod timeouts;
mod upstreams;
