//! Where the server listens.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// An address to listen on. Its text is the one of the file: `127.0.0.1:8080`, or `unix:/run/tidegate.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// On the network.
    Tcp(SocketAddr),
    /// A Unix socket with this path, which is absolute.
    Unix(PathBuf),
}

impl ListenAddress {
    /// The address on the network.
    pub fn tcp(&self) -> Option<&SocketAddr> {
        match self {
            Self::Tcp(address) => Some(address),
            Self::Unix(_) => None,
        }
    }

    /// Whether two settings name the same place. Port 0 is another place each time.
    pub(crate) fn is_same_place(&self, other: &Self) -> bool {
        self == other && self.tcp().is_none_or(|address| address.port() != 0)
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
