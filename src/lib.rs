//! tidegate: a reverse proxy that throttles the traffic to an existing API.

pub mod config;
pub mod limit;
pub mod plan;
pub mod request;
