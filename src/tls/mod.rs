//! TLS towards clients and towards APIs: certificates from files, and what rustls makes of them.
//!
//! [`server`] has what a listener needs and watches its files, [`client`] what a connection to an API
//! needs, [`subject`] says who a client's certificate is for. No socket is opened here: whoever accepts
//! or connects asks for a configuration and shakes hands.

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

pub use self::error::{Content, TlsError};
pub use self::identity::{IdentityFiles, TlsIdentity, authorities};

/// HTTP/2, as ALPN names it.
pub const H2: &[u8] = b"h2";
/// HTTP/1.1, as ALPN names it.
pub const HTTP_1_1: &[u8] = b"http/1.1";

/// The cryptography, named at each place that needs it: a default of the process could be set by
/// whatever other crate comes first.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
