//! The other end of a client's connection, as APIs are told of it.

use http::header::HeaderValue;

use crate::request::client::PeerAddress;

const HTTP: HeaderValue = HeaderValue::from_static("http");
const HTTPS: HeaderValue = HeaderValue::from_static("https");

/// Who is at the other end of a client's connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: PeerAddress,
    /// The address as a field's value. It is kept, since most requests need it.
    pub(crate) text: HeaderValue,
    /// `http` or `https`, as APIs get it.
    pub(crate) scheme: HeaderValue,
}

impl Peer {
    /// A peer that speaks HTTP, over TLS if it is `secure`.
    pub(crate) fn new(address: PeerAddress, secure: bool) -> Self {
        let scheme = if secure { HTTPS } else { HTTP };
        Self { address, text: value(&address.as_client().to_string()), scheme }
    }

    /// `http` or `https`.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.scheme == HTTPS { "https" } else { "http" }
    }
}

/// The text of addresses is always a valid field value.
pub(crate) fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}
