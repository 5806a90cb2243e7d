//! Access logs, read as requests: what limits would have done to the traffic of yesterday.

pub mod log;
