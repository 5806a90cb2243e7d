//! HTTP/1 as bytes: message heads and bodies in and out. Pure: no socket, no clock, nothing of ours.

pub mod decode;
pub mod response;
