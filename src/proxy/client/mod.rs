//! A client's connection, as its requests see it.

mod phase;
mod socket;

pub use self::phase::{Due, Phase, Times};
pub use self::socket::Socket;
use super::headers::forwarded::Peer;

/// A client's connection, as its requests see it.
#[derive(Debug)]
pub struct Client {
    /// Who is at its other end.
    pub peer: Peer,
    /// What it is doing and since when.
    pub phase: Phase,
    /// Its socket.
    pub socket: Socket,
}
