//! TLS towards clients and towards upstreams: reads certificates from files and makes configurations for
//! rustls.
//!
//! [`server`] is for listeners, and watches their files. [`client`] is for connections to upstreams.
//! [`subject`] reads the subject of a client's certificate. No socket is opened here: `downstream` and
//! `upstream` take a configuration and make the handshake.

pub mod client;
mod error;
mod identity;
mod pem;
pub mod server;
pub mod subject;
#[cfg(test)]
pub(crate) mod testing;

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};

pub(crate) use self::error::TlsError;
pub use self::identity::{IdentityFiles, TlsIdentity, authorities};

/// HTTP/2, as ALPN names it.
pub const H2: &[u8] = b"h2";
/// HTTP/1.1, as ALPN names it.
pub const HTTP_1_1: &[u8] = b"http/1.1";

/// The cryptography. It is passed at each place that needs it: another crate could set another default for
/// the process.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
