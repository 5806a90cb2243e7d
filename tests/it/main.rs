//! Black-box tests.

mod contract;
mod outage;
mod redis_store;
mod support;
mod twin;
