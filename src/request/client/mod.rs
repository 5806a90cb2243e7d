//! The client's address, from the peer's address and from a header that trusted proxies write.
//!
//! The header is read from its right end. The peer wrote the last address, and each trusted proxy wrote the address on
//! its left. A stranger can only write to the left of the first trusted proxy's text. Text there must not change how
//! the rest is read.

mod rfc7239;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::network::{Networks, canonical_address};

/// The trusted proxies, and the header in which they name the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// The networks of trusted proxies.
    pub networks: Networks,
    /// The header in which proxies name the client.
    pub header: ClientHeader,
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAddress {
    /// An address of the network.
    Network(IpAddr),
    /// A process of this machine that was let in by the rights of a Unix socket's file. It is a trusted proxy.
    UnixSocket,
}

impl PeerAddress {
    /// The address by which this peer itself counts as a client, in its canonical form. A Unix socket has
    /// no address: it counts as 0.0.0.0.
    pub(crate) fn as_client(self) -> IpAddr {
        match self {
            Self::Network(address) => canonical_address(address),
            Self::UnixSocket => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        }
    }
}

/// The header in which trusted proxies name the client. No other header is read for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClientHeader {
    /// `x-forwarded-for`: a list of addresses, the nearest last.
    #[default]
    XForwardedFor,
    /// `forwarded` (RFC 7239): a list of elements, the nearest last.
    Forwarded,
    /// A header that holds one address.
    Single(HeaderName),
}

impl ClientHeader {
    /// The header's name.
    pub(crate) fn name(&self) -> HeaderName {
        match self {
            Self::XForwardedFor => HeaderName::from_static("x-forwarded-for"),
            Self::Forwarded => FORWARDED,
            Self::Single(name) => name.clone(),
        }
    }
}

/// The sender of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// The client's address in its canonical form.
    pub address: IpAddr,
    /// Trusted proxies between the client and the peer, from the client's side, without the peer.
    pub via: Vec<IpAddr>,
    /// Whether the peer itself is a trusted proxy.
    pub peer_trusted: bool,
}

/// The most addresses of the header that are read. No real chain of proxies is longer, and addresses
/// further left are not believed.
const MAX_PROXIES: usize = 64;

impl Trust {
    /// The client of a request that came from `peer`. If `peer` is not a trusted proxy, the header is not
    /// read, and `peer` is the client. Otherwise the header is read from right to left. The first address
    /// that is not a trusted proxy is the client. If all addresses are trusted proxies, the left-most address
    /// is the client. If an element is unreadable, reading stops. The client is then the last address
    /// that was read, or `peer` if none was read.
    pub fn client(&self, peer: PeerAddress, headers: &HeaderMap) -> Client {
        let address = peer.as_client();
        match self.trusts_peer(peer) {
            true => self.client_behind(address, &self.header, headers),
            false => Client { address, via: Vec::new(), peer_trusted: false },
        }
    }

    /// The client of a request that came from this trusted proxy, as [`Trust::client`] finds it in this header.
    pub(crate) fn client_behind<'h>(
        &self,
        proxy: IpAddr,
        header: &ClientHeader,
        headers: &'h HeaderMap,
    ) -> Client {
        match header {
            ClientHeader::XForwardedFor => {
                // An empty element is unreadable too: a proxy that did not know its client may have written it.
                let lines = headers.get_all("x-forwarded-for").iter().rev();
                let elements = |line: &'h HeaderValue| line.as_bytes().rsplit(|byte| *byte == b',');
                self.follow(proxy, lines.flat_map(elements).map(address))
            }
            ClientHeader::Forwarded => self.follow(proxy, rfc7239::nearest_first(headers)),
            ClientHeader::Single(name) => self.follow(proxy, single(headers, name).into_iter()),
        }
    }

    /// Whether `address` is one of the trusted proxies.
    pub fn trusts(&self, address: IpAddr) -> bool {
        self.networks.contain(address)
    }

    /// Whether a connection comes from a trusted proxy.
    pub(crate) fn trusts_peer(&self, peer: PeerAddress) -> bool {
        match peer {
            PeerAddress::Network(address) => self.trusts(address),
            PeerAddress::UnixSocket => true,
        }
    }

    fn follow(&self, peer: IpAddr, named: impl Iterator<Item = Option<IpAddr>>) -> Client {
        let mut via = Vec::new();
        let mut address = peer;
        for (index, next) in named.take(MAX_PROXIES).map_while(|named| named).enumerate() {
            if index > 0 {
                via.push(address);
            }
            address = next;
            if !self.trusts(address) {
                break;
            }
        }
        via.reverse();
        Client { address, via, peer_trusted: true }
    }
}

/// The address in a header that must come once. If the header comes twice, neither of the two can be trusted.
fn single(headers: &HeaderMap, name: &HeaderName) -> Option<Option<IpAddr>> {
    let mut lines = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let first = lines.next()?;
    Some(address(first).filter(|_| lines.next().is_none()))
}

/// Reads an address as proxies write it: with or without a port, IPv6 with or without brackets.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?.trim_matches([' ', '\t']);
    let address = match text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(literal) => IpAddr::V6(literal.parse::<Ipv6Addr>().ok()?),
        None => match text.parse() {
            Ok(address) => address,
            // An address with a zone is valid only on the proxy's own interface, so it names no client.
            Err(_) => text.parse::<SocketAddr>().ok().filter(|_| !text.contains('%'))?.ip(),
        },
    };
    Some(canonical_address(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    fn client(header: ClientHeader, peer: &str, lines: &[(&'static str, &str)]) -> Client {
        let networks = ["10.0.0.0/8", "fd00::/8", "::ffff:192.168.0.0/112"];
        let networks = networks.iter().map(|text| text.parse().expect("a network")).collect();
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
        }
        Trust { networks, header }.client(PeerAddress::Network(ip(peer)), &headers)
    }

    #[test]
    fn the_right_most_stranger_is_the_client() {
        for (name, peer, lines, address, via) in [
            ("no header", "10.0.0.1", &[][..], "10.0.0.1", &[][..]),
            ("one", "10.0.0.1", &["203.0.113.7"], "203.0.113.7", &[]),
            ("spoofed", "10.0.0.1", &["6.6.6.6, 203.0.113.7"], "203.0.113.7", &[]),
            (
                "via",
                "10.0.0.1",
                &["203.0.113.7, 10.0.0.3,10.0.0.2"],
                "203.0.113.7",
                &["10.0.0.3", "10.0.0.2"],
            ),
            (
                "two lines",
                "10.0.0.1",
                &["6.6.6.6, 203.0.113.7", "10.0.0.2"],
                "203.0.113.7",
                &["10.0.0.2"],
            ),
            ("second line", "10.0.0.1", &["6.6.6.6", "203.0.113.7"], "203.0.113.7", &[]),
            ("all trusted", "10.0.0.1", &["10.0.0.4, 10.0.0.3"], "10.0.0.4", &["10.0.0.3"]),
            ("mapped peer", "::ffff:10.0.0.1", &["203.0.113.7"], "203.0.113.7", &[]),
            ("mapped network", "192.168.0.9", &["203.0.113.7"], "203.0.113.7", &[]),
            (
                "mapped element",
                "10.0.0.1",
                &["203.0.113.7, ::ffff:10.0.0.2"],
                "203.0.113.7",
                &["10.0.0.2"],
            ),
            ("mapped client", "10.0.0.1", &["::ffff:203.0.113.7"], "203.0.113.7", &[]),
            ("translated peer", "::ffff:0:10.0.0.1", &["203.0.113.7"], "203.0.113.7", &[]),
            (
                "elements behind NAT64",
                "10.0.0.1",
                &["[64:ff9b::203.0.113.7]:99, 64:ff9b::10.0.0.2"],
                "203.0.113.7",
                &["10.0.0.2"],
            ),
            ("ports", "10.0.0.1", &["203.0.113.7:567, [fd00::1]:99"], "203.0.113.7", &["fd00::1"]),
            ("v6", "fd00::2", &["2001:db8::1"], "2001:db8::1", &[]),
            ("v6 brackets", "fd00::2", &["[2001:db8::1]"], "2001:db8::1", &[]),
            ("unreadable", "10.0.0.1", &["203.0.113.7, unknown"], "10.0.0.1", &[]),
            (
                "unreadable later",
                "10.0.0.1",
                &["203.0.113.7, x, 10.0.0.3, 10.0.0.2"],
                "10.0.0.3",
                &["10.0.0.2"],
            ),
            ("left garbage", "10.0.0.1", &["\"(, 203.0.113.7"], "203.0.113.7", &[]),
            ("empty element", "10.0.0.1", &["203.0.113.7,"], "10.0.0.1", &[]),
            ("empty line", "10.0.0.1", &["203.0.113.7", ""], "10.0.0.1", &[]),
            ("zone", "10.0.0.1", &["[fe80::1%1]:5"], "10.0.0.1", &[]),
            ("bad port", "10.0.0.1", &["203.0.113.7:x"], "10.0.0.1", &[]),
            ("not ASCII", "10.0.0.1", &["é"], "10.0.0.1", &[]),
        ] {
            let lines: Vec<_> = lines.iter().map(|line| ("x-forwarded-for", *line)).collect();
            let via = via.iter().copied().map(ip).collect();
            let expected = Client { address: ip(address), via, peer_trusted: true };
            assert_eq!(client(ClientHeader::XForwardedFor, peer, &lines), expected, "{name}");
        }
    }

    #[test]
    fn strangers_are_not_believed() {
        let lines = [("x-forwarded-for", "10.0.0.2"), ("forwarded", "for=10.0.0.2")];
        for header in [ClientHeader::XForwardedFor, ClientHeader::Forwarded] {
            let found = client(header, "::ffff:203.0.113.7", &lines);
            let address = ip("203.0.113.7");
            assert_eq!(found, Client { address, via: Vec::new(), peer_trusted: false });
        }
    }

    #[test]
    fn a_peer_on_a_unix_socket_is_trusted() {
        let mut headers = HeaderMap::new();
        let client = |headers: &HeaderMap| {
            let found = Trust::default().client(PeerAddress::UnixSocket, headers);
            assert!(found.peer_trusted);
            found.address
        };
        assert_eq!(client(&headers), ip("0.0.0.0"));
        headers.insert("x-forwarded-for", HeaderValue::from_static("6.6.6.6, 203.0.113.7"));
        assert_eq!(client(&headers), ip("203.0.113.7"));
    }

    #[test]
    fn other_headers_are_never_looked_at() {
        let name = HeaderName::from_static("x-real-ip");
        for (header, line) in [
            (ClientHeader::XForwardedFor, ("forwarded", "for=203.0.113.7")),
            (ClientHeader::Forwarded, ("x-forwarded-for", "203.0.113.7")),
            (ClientHeader::Single(name), ("x-forwarded-for", "203.0.113.7")),
        ] {
            assert_eq!(client(header, "10.0.0.1", &[line]).address, ip("10.0.0.1"), "{line:?}");
        }
    }

    #[test]
    fn forwarded_is_read_by_its_grammar() {
        for (name, line, address) in [
            ("plain", "for=203.0.113.7", "203.0.113.7"),
            (
                "other pairs",
                "by=10.0.0.1;proto=https; FOR=203.0.113.7 ;host=\"a,b;for=1.1.1.1\"",
                "203.0.113.7",
            ),
            ("v6", "for=\"[2001:db8::1]:80\"", "2001:db8::1"),
            ("escapes", "for=\"203.0.\\113.7\"", "203.0.113.7"),
            ("spoofed", "for=6.6.6.6, for=203.0.113.7, for=10.0.0.2", "203.0.113.7"),
            ("open quote on the left", "for=\"x, for=203.0.113.7", "203.0.113.7"),
            ("open quote, then quotes", "for=6.6.6.6,for=\", for=\"203.0.113.7\"", "203.0.113.7"),
            ("backslash on the left", "for=\"\\, for=\"203.0.113.7\"", "203.0.113.7"),
            ("unknown", "for=203.0.113.7, for=unknown", "10.0.0.1"),
            ("hidden", "for=203.0.113.7, for=_x", "10.0.0.1"),
            ("hidden port", "for=\"203.0.113.7:_p\"", "203.0.113.7"),
            ("no for", "for=203.0.113.7, proto=https", "10.0.0.1"),
            ("two for", "for=203.0.113.7;for=203.0.113.8", "10.0.0.1"),
            ("empty pairs", ";for=203.0.113.7; ;", "203.0.113.7"),
            ("no value", "for", "10.0.0.1"),
            ("half a quote", "for=203.0.113.7\"", "10.0.0.1"),
            ("empty", "for=203.0.113.7,", "10.0.0.1"),
        ] {
            let found = client(ClientHeader::Forwarded, "10.0.0.1", &[("forwarded", line)]);
            assert_eq!(found.address, ip(address), "{name}");
        }
    }

    /// A regression: all text before the equals sign was read as the name. The second `for` was then an `x;for`.
    #[test]
    fn a_second_for_behind_a_pair_without_value_is_not_overlooked() {
        for line in ["for=203.0.113.7;x;for=203.0.113.8", "for=203.0.113.7; y z;for=203.0.113.8"] {
            let found = client(ClientHeader::Forwarded, "10.0.0.1", &[("forwarded", line)]);
            assert_eq!(found.address, ip("10.0.0.1"), "{line}");
        }
    }

    #[test]
    fn a_header_with_one_address_must_be_there_once() {
        for (name, lines, address) in [
            ("one", &["203.0.113.7"][..], "203.0.113.7"),
            ("none", &[], "10.0.0.1"),
            ("trusted", &["10.0.0.9"], "10.0.0.9"),
            ("two", &["203.0.113.7", "203.0.113.7"], "10.0.0.1"),
            ("a list", &["203.0.113.7, 203.0.113.8"], "10.0.0.1"),
        ] {
            let lines: Vec<_> = lines.iter().map(|line| ("x-real-ip", *line)).collect();
            let header = ClientHeader::Single(HeaderName::from_static("x-real-ip"));
            assert_eq!(client(header, "10.0.0.1", &lines).address, ip(address), "{name}");
        }
    }

    #[test]
    fn an_endless_list_is_not_read_to_its_end() {
        let line = format!("203.0.113.7{}", ", 10.0.0.2".repeat(5000));
        let found = client(ClientHeader::XForwardedFor, "10.0.0.1", &[("x-forwarded-for", &line)]);
        assert_eq!(found.address, ip("10.0.0.2"));
        assert_eq!(found.via.len(), MAX_PROXIES - 1);
    }
}
