//! The host that a request is for.

use http::HeaderMap;
use http::Uri;

/// A host in its normal form: lower case, without a trailing dot, without the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host(String);

/// Why a request's host cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostError {
    /// There is none (and the version demands one).
    Missing,
    /// There are two.
    Repeated,
    /// It is no host.
    Malformed,
}

impl Host {
    /// The request's host: of an absolute-form target, else of the `host` header. An HTTP/1.0
    /// request may have none: the empty host.
    ///
    /// # Errors
    /// Where there is none, more than one, or one that is malformed.
    pub fn of(uri: &Uri, headers: &HeaderMap, version: http::Version) -> Result<Self, HostError> {
        unimplemented!("{uri:?} {headers:?} {version:?}")
    }

    /// The normal form; empty where an HTTP/1.0 request has none.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
