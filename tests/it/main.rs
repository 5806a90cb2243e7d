//! Black-box tests.

mod contract;
mod outage;
mod support;
mod twin;
