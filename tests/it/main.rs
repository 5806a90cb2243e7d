//! Black-box tests, in one binary: one link on a small machine.

mod basics;
mod drain;
mod http1;
mod rejected;
mod smuggling;
mod support;
mod timeouts;
mod upgrade;
mod upstreams;
