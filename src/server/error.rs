//! The errors that keep the process from running.

use std::io;
use std::net::SocketAddr;

use crate::tls::TlsError;

/// Why the process cannot start, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Another process listens on an address.
    #[error(
        "cannot listen on {address}: another process listens there; stop it, or set another address with \
         {setting}"
    )]
    InUse {
        /// The address.
        address: SocketAddr,
        /// The setting of the address.
        setting: &'static str,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {address} (set with {setting})")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The setting of the address.
        setting: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The process lacks something that it needs from the system.
    #[error("cannot {what}")]
    System {
        /// What the process cannot do.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The certificates of `server.tls` cannot be used.
    #[error("cannot use the certificates of server.tls")]
    Tls(#[source] TlsError),
    /// A worker ended before it was told to.
    #[error("a worker ended unexpectedly; its panic stands above")]
    Worker,
}
