//! The configuration of TLS towards clients, and the addresses of an upstream's servers.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::tls::server::{Files, Material};

/// `tls` of `[server]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// The addresses for TLS; never empty, and none of them is in [`super::ServerSpec::listen`].
    pub listen: Vec<SocketAddr>,
    /// The files of the certificates, and of the authorities that sign client certificates.
    pub files: Files,
    /// The content of `files` when the configuration was read.
    pub material: Arc<Material>,
}

/// A server of an upstream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerAddress {
    /// The URL as written, for logs and labels.
    pub url: String,
    /// The server's place.
    pub endpoint: Endpoint,
    /// The protocol that the server speaks.
    pub scheme: Scheme,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// On the network.
    Tcp {
        /// A name, an IPv4 address or an IPv6 address without brackets, in lower case.
        host: String,
        /// The port, not 0.
        port: u16,
    },
    /// On a Unix socket with this path, which is absolute.
    Unix(PathBuf),
}

/// As in a URL: an IPv6 address stands in brackets.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The protocol that a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// HTTP/1.1 in clear text; the only protocol on a Unix socket.
    Http,
    /// TLS with the protocol that ALPN chooses. The upstream then has a [`super::UpstreamSpec::tls`].
    Https,
    /// HTTP/2 with prior knowledge in clear text.
    H2c,
}
