//! HTTP/1.1 on the wire (RFC 9112): heads and bodies, in and out, and a server's end of a connection.
//!
//! What is read and written here is pure (`request`, `response`, `decode`, `encode`) and knows
//! neither sockets nor clocks; [`server`] moves bytes between a stream and those. When anything takes
//! too long is for the caller to say. Nothing of ours is imported.

pub mod decode;
pub mod encode;
pub mod fields;
mod head;
pub mod incoming;
mod output;
pub mod request;
pub mod response;
pub mod room;
pub mod server;
pub mod tokens;
mod usual;
