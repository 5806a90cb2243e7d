//! tidegate: a reverse proxy that throttles the traffic to an existing API.

pub mod clock;
pub mod limit;
pub mod observe;
pub mod plan;
pub mod request;
pub mod store;
