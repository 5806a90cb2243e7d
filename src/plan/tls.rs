//! The configuration of TLS towards clients.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::tls::server::{Files, Material};

/// `tls` of `[server]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// The addresses for TLS; never empty, and none of them is in [`super::ServerSpec::listen`].
    pub(crate) listen: Vec<SocketAddr>,
    /// The files of the certificates, and of the authorities that sign client certificates.
    pub(crate) files: Files,
    /// The content of `files` when the configuration was read.
    pub(crate) material: Arc<Material>,
}
