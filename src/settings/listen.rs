//! Where the server listens.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::tls::server::{Files, Material};

/// An address to listen on. Its text is the one of the file: `127.0.0.1:8080`, or `unix:/run/tidegate.sock`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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

    /// Whether other machines reach the address.
    pub(crate) fn is_reached(&self) -> bool {
        self.tcp().is_some_and(|address| !address.ip().to_canonical().is_loopback())
    }

    /// The address, if two settings must not both name it. `None` for port 0, which is another port each time.
    pub(crate) fn fixed(&self) -> Option<Self> {
        self.tcp().is_none_or(|address| address.port() != 0).then(|| self.clone())
    }
}

/// `tls` of `[server]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// The addresses for TLS; never empty, and none of them is in [`super::ServerSpec::listen`].
    pub(crate) listen: Vec<SocketAddr>,
    /// The certificates for clients there.
    pub(crate) shown: ListenerTls,
}

/// The certificates that a listener shows to clients, and whether it asks clients for certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListenerTls {
    /// The files of the certificates, and of the authorities that sign client certificates.
    pub(crate) files: Files,
    /// The content of `files` when the configuration was read.
    pub(crate) material: Arc<Material>,
}

/// Whether a client could reach both addresses by one connection. On Linux a lone `[::]` takes IPv4 as well. Port 0
/// is another port each time.
pub(crate) fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let has = |wide: SocketAddr, narrow: SocketAddr| {
        let [wide, narrow] = [wide, narrow].map(|address| address.ip().to_canonical());
        wide.is_unspecified() && (wide.is_ipv6() || narrow.is_ipv4())
    };
    // A link-local address may exist on two links. The part after `%` says which of them is meant.
    let same = one == other || {
        let [one, other] = [one, other].map(|address| address.ip().to_canonical());
        one == other && one.is_ipv4()
    };
    one.port() != 0 && one.port() == other.port() && (same || has(one, other) || has(other, one))
}

/// Whether these are `0.0.0.0` and `[::]` with the same port. If both stand in one list, `[::]` takes IPv6
/// alone.
pub(crate) fn are_both_wildcards(one: SocketAddr, other: SocketAddr) -> bool {
    one.ip().is_unspecified()
        && other.ip().is_unspecified()
        && one.is_ipv4() != other.is_ipv4()
        && one.port() == other.port()
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_cannot_be_listened_on_together() {
        for (one, other, expected) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "127.0.0.1:81", false),
            ("127.0.0.1:0", "127.0.0.1:0", false),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("0.0.0.0:80", "127.0.0.1:80", true),
            ("0.0.0.0:80", "[::1]:80", false),
            ("[::]:80", "[::1]:80", true),
            ("[::]:80", "127.0.0.1:80", true),
            ("[::]:80", "0.0.0.0:80", true),
            ("[::ffff:127.0.0.1]:80", "127.0.0.1:80", true),
            ("[fe80::1%1]:80", "[fe80::1%2]:80", false),
        ] {
            let [a, b] = [one, other].map(|text| text.parse().unwrap());
            assert_eq!((overlap(a, b), overlap(b, a)), (expected, expected), "{one} {other}");
        }
    }
}
