//! What a request's head means: its path, host, route, client and keys. Pure.

pub mod client;
pub mod exempt;
pub mod host;
pub mod key;
pub mod method;
pub mod name;
mod network;
pub mod overrides;
pub mod path;
mod percent;
pub mod route;
