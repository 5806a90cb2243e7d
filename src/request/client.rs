//! The client's address, from the peer's and from what trusted proxies say.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

/// Whose word about a client's address is taken, and in which header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    /// The proxies.
    pub networks: Vec<IpNet>,
    /// Where they say it.
    pub header: ClientHeader,
}

/// The header in which trusted proxies name the client. The others are never looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientHeader {
    /// `x-forwarded-for`: a list, the nearest last.
    XForwardedFor,
    /// `forwarded` (RFC 7239): a list, the nearest last.
    Forwarded,
    /// A header that holds one address.
    Single(HeaderName),
}

/// Who sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// The client's address, an IPv4-mapped one as IPv4.
    pub address: IpAddr,
    /// Trusted proxies between the client and the peer, the client's side first, without the peer.
    pub via: Vec<IpAddr>,
    /// Whether the peer itself is a trusted proxy.
    pub peer_trusted: bool,
}

impl Trust {
    /// The client of a request that came from `peer`.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> Client {
        unimplemented!("{peer} {headers:?}")
    }

    /// Whether `address` is one of the trusted proxies.
    pub fn trusts(&self, address: IpAddr) -> bool {
        unimplemented!("{address}")
    }
}
