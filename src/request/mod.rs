//! The reading of a request's head: its path, host, route, client and keys. Pure: no I/O and no clock.

pub mod client;
pub mod exempt;
pub mod host;
pub mod key;
pub(crate) mod line;
pub mod method;
pub mod name;
pub(crate) mod network;
pub mod overrides;
pub mod path;
pub mod route;
pub mod trace;
