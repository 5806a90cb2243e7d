//! A client's connection, as its requests see it.

mod phase;
mod socket;

use std::sync::atomic::{AtomicBool, Ordering};

pub use self::phase::{Due, Phase, Times};
pub use self::socket::Socket;
use super::headers::forwarded::Peer;

/// A client's connection, as its requests see it.
#[derive(Debug)]
pub struct ClientConnection {
    /// Who is at its other end.
    pub peer: Peer,
    /// What it is doing and since when.
    pub phase: Phase,
    /// Its socket.
    pub socket: Socket,
    /// The subject of its verified certificate.
    pub cert: Option<Box<str>>,
    hello: AtomicBool,
}

impl ClientConnection {
    /// A connection of which nothing was read yet.
    pub fn new(peer: Peer, phase: Phase, socket: Socket, cert: Option<String>) -> Self {
        let cert = cert.map(String::into_boxed_str);
        Self { peer, phase, socket, cert, hello: AtomicBool::new(false) }
    }

    /// Notes the first byte that came.
    pub fn begins_with(&self, byte: u8) {
        // A TLS record with a handshake message (RFC 8446, 5.1).
        self.hello.store(byte == 22, Ordering::Relaxed);
    }

    /// Whether it began like a TLS handshake.
    pub fn said_hello(&self) -> bool {
        self.hello.load(Ordering::Relaxed)
    }
}
