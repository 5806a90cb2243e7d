//! Why a process does not run.

use std::net::SocketAddr;
use std::{fmt, io};

use crate::tls::TlsError;

/// Why the process cannot run, or could not go on.
#[derive(Debug)]
pub enum RunError {
    /// An address cannot be listened on.
    Listen {
        /// The address.
        address: SocketAddr,
        /// What sets it.
        setting: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The process lacks something that it needs from the system.
    System {
        /// What.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The certificates of `server.tls` cannot be used.
    Tls(TlsError),
    /// A worker ended before it was told to.
    Worker,
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen { address, setting, source } => match source.kind() {
                io::ErrorKind::AddrInUse => write!(
                    f,
                    "cannot listen on {address}: another process listens there; stop it, or set \
                     another address with {setting}"
                ),
                _ => write!(f, "cannot listen on {address} (set with {setting})"),
            },
            Self::System { what, .. } => write!(f, "cannot {what}"),
            Self::Tls(_) => f.write_str("cannot use the certificates of server.tls"),
            Self::Worker => f.write_str("a worker ended unexpectedly; its panic stands above"),
        }
    }
}

impl std::error::Error for RunError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // The message says all of it.
            Self::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse => None,
            Self::Listen { source, .. } | Self::System { source, .. } => Some(source),
            Self::Tls(source) => Some(source),
            Self::Worker => None,
        }
    }
}
