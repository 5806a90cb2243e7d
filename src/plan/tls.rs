//! TLS towards clients, and how a server of an API is reached.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::tls::server::{Files, Material};

/// `tls` of `[server]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// Where to listen; never empty, and nothing of [`super::ServerSpec::listen`] is in it.
    pub listen: Vec<SocketAddr>,
    /// Its certificates, and who signs clients'.
    pub files: Files,
    /// What these held when the configuration was read.
    pub material: Arc<Material>,
}

/// A server of an upstream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerAddress {
    /// As written, for logs and labels.
    pub url: String,
    /// Where it is.
    pub endpoint: Endpoint,
    /// What is spoken there.
    pub scheme: Scheme,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// On the network.
    Tcp {
        /// A name, an IPv4 address or an IPv6 address without brackets, in lower case.
        host: String,
        /// Its port, not 0.
        port: u16,
    },
    /// On a Unix socket with this path, which is absolute.
    Unix(PathBuf),
}

/// What is spoken with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// HTTP/1.1 in clear text; the only one on a Unix socket.
    Http,
    /// TLS, and in it what ALPN agrees on: the upstream has a [`super::UpstreamSpec::tls`].
    Https,
    /// HTTP/2 with prior knowledge in clear text.
    H2c,
}
