//! What a limit counts by, and how it is read off a request.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, Method};

use super::path::NormalPath;
use super::route::Params;
use crate::limit::key::Key;

/// One part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeySource {
    /// The client's address (IPv6: its network).
    Ip,
    /// The path in its normal form.
    Path,
    /// The method.
    Method,
    /// The host in its normal form.
    Host,
    /// The route's name.
    Route,
    /// A header.
    Header(HeaderName),
    /// A cookie.
    Cookie(String),
    /// A query parameter.
    Query(String),
    /// A parameter of the route's path.
    Param(String),
}

/// What becomes of a request that lacks a header, cookie … of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Missing {
    /// All such requests share one bucket.
    #[default]
    Shared,
    /// The limit does not apply.
    Skip,
    /// The request is refused with 400.
    Reject,
}

/// What a limit counts by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeySpec {
    /// The parts in order; none is one bucket for all.
    pub sources: Vec<KeySource>,
    /// For a request that lacks one.
    pub missing: Missing,
    /// IPv6 clients are counted by a network of this length, 1 to 128.
    pub ipv6_prefix: u8,
}

/// What of a request a key can be read from.
#[derive(Clone, Copy, Debug)]
pub struct View<'r> {
    /// The path.
    pub path: &'r NormalPath<'r>,
    /// The query, without its question mark.
    pub query: Option<&'r str>,
    /// The method.
    pub method: &'r Method,
    /// The host in its normal form.
    pub host: &'r str,
    /// The route's name.
    pub route: &'r str,
    /// The client's address.
    pub client: IpAddr,
    /// The headers.
    pub headers: &'r HeaderMap,
    /// The path's parameters.
    pub params: &'r Params<'r>,
}

/// What a request is to a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keyed {
    /// It counts by this key.
    Key(Key),
    /// It does not count.
    Skip,
}

/// Why a request has no key: each is answered 400.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// The header, cookie or query parameter comes twice.
    Repeated(KeySource),
    /// It is not there, and the limit demands it.
    Absent(KeySource),
}

impl KeySpec {
    /// The key of a request, plain.
    ///
    /// # Errors
    /// Where a part is there twice, or missing and demanded.
    pub fn key(&self, request: &View<'_>) -> Result<Keyed, KeyError> {
        unimplemented!("{request:?}")
    }

    /// Whether any part comes from a header, cookie or the query.
    pub fn has_secrets(&self) -> bool {
        unimplemented!()
    }

    /// The same key with each value from a header, cookie or the query in place of which stands
    /// its hash: the first 128 bits of SHA-256 of the value, base64url without padding.
    pub fn hashed(&self, key: &Key) -> Key {
        unimplemented!("{key}")
    }
}
