//! The PROXY protocol, versions 1 and 2 (<https://www.haproxy.org/download/2.8/doc/proxy-protocol.txt>). A load
//! balancer that forwards a connection's bytes writes a header in front of them. The header names the client.

use std::net::IpAddr;

use proxy_header::{Error, ParseConfig, ProxyHeader};
use tokio::io::AsyncReadExt as _;

use crate::exchange::client::Socket;

/// The most bytes of a header. Addresses take 52 bytes. The rest is for additional values (TLVs) of load balancers.
const MOST: usize = 4096;

/// TLVs are skipped.
const CONFIG: ParseConfig = ParseConfig { include_tlvs: false, allow_v1: true, allow_v2: true };

/// The beginning of a trusted proxy's connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// A header that names the client.
    Client(IpAddr),
    /// A header that names no client: the proxy speaks for itself (LOCAL), or does not know (UNKNOWN).
    NoClient,
    /// No header, or one that is malformed. This is the reason.
    Refused(&'static str),
    /// The connection is over.
    Left,
}

/// Reads the header. The bytes after it stay in the socket: they belong to TLS or HTTP.
pub(super) async fn read(mut socket: Socket) -> Opening {
    let (mut space, mut taken) = ([0; MOST], 0);
    loop {
        let came = match socket.peek(&mut space[taken..]).await {
            Ok(came @ 1..) => taken + came,
            Ok(_) | Err(_) => return Opening::Left,
        };
        let (opening, length) = match ProxyHeader::parse(&space[..came], CONFIG) {
            Ok((header, length)) => {
                let client = header.proxied_address().map(|proxied| proxied.source.ip());
                (Some(client.map_or(Opening::NoClient, Opening::Client)), length)
            }
            Err(Error::BufferTooShort) if came == MOST => {
                return Opening::Refused("a PROXY header of more than 4096 bytes");
            }
            // All bytes so far belong to the header, since the header is not complete.
            Err(Error::BufferTooShort) => (None, came),
            Err(_) => return Opening::Refused(fault(&space[..came])),
        };
        if socket.read_exact(&mut space[taken..length]).await.is_err() {
            return Opening::Left;
        }
        if let Some(opening) = opening {
            return opening;
        }
        taken = length;
    }
}

fn fault(bytes: &[u8]) -> &'static str {
    match bytes.starts_with(b"PROXY ") || bytes.starts_with(b"\r\n\r\n\0") {
        true => "a malformed PROXY header of a trusted proxy",
        false => "no PROXY header of a trusted proxy, and server.proxy_protocol wants one",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};
    use tokio_util::either::Either::Left;

    use super::*;

    const V1: &[u8] = b"PROXY TCP4 203.0.113.7 10.0.0.1 56324 443\r\n";

    fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [b"\r\n\r\n\0\r\nQUIT\n", &[0x20 | command, family][..], &length, rest].concat()
    }

    fn ipv4(tlvs: &[u8]) -> Vec<u8> {
        v2(1, 0x11, &[&[203, 0, 113, 7, 10, 0, 0, 1, 0xDC, 4, 1, 0xBB], tlvs].concat())
    }

    fn named(text: &str) -> Opening {
        Opening::Client(text.parse().unwrap())
    }

    /// The opening that is read from the pieces, and the bytes that stay in the socket. A piece is sent only when all
    /// pieces before it were read, so that each piece is read alone.
    async fn read_pieces(pieces: Vec<Vec<u8>>) -> (Opening, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        sender.set_nodelay(true).unwrap();
        let mut socket = Socket::new(Left(listener.accept().await.unwrap().0));
        let sending = async {
            for piece in pieces {
                sender.write_all(&piece).await.unwrap();
                // The runtime has one thread: the reader is polled before this goes on.
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            drop(sender);
        };
        let (opening, ()) = tokio::join!(read(socket.clone()), sending);
        let mut rest = Vec::new();
        // A refused connection may end with a reset.
        let _ = socket.read_to_end(&mut rest).await;
        (opening, rest)
    }

    #[tokio::test]
    async fn each_opening_of_a_connection_is_read() {
        let long = ipv4(&[&[0xEA, 15, 160][..], &[0; 4000]].concat());
        let too_long = ipv4(&[&[0xEA, 39, 16][..], &[0; 10_000]].concat());
        let ipv6 = v2(1, 0x21, &[&[0x20, 1, 0xD, 0xB8][..], &[0; 11], &[1; 17], &[0; 4]].concat());
        let unix = v2(1, 0x31, &[b'x'; 216]);
        for (name, bytes, expected) in [
            ("version 1", V1.to_vec(), named("203.0.113.7")),
            ("of IPv6", b"PROXY TCP6 2001:db8::1 ::1 1 2\r\n".to_vec(), named("2001:db8::1")),
            ("unknown", b"PROXY UNKNOWN\r\n".to_vec(), Opening::NoClient),
            ("unknown with more", b"PROXY UNKNOWN a b c\r\n".to_vec(), Opening::NoClient),
            ("version 2", ipv4(&[]), named("203.0.113.7")),
            ("version 2 of IPv6", ipv6, named("2001:db8::1")),
            ("with a TLV", ipv4(&[4, 0, 2, 0, 0]), named("203.0.113.7")),
            ("with a long TLV", long, named("203.0.113.7")),
            ("local", v2(0, 0, &[]), Opening::NoClient),
            ("local with an address", v2(0, 0x11, &[1; 12]), Opening::NoClient),
            ("no family", v2(1, 0, &[]), Opening::NoClient),
            ("of a Unix socket", unix, Opening::NoClient),
            ("too long", too_long, Opening::Refused("a PROXY header of more than 4096 bytes")),
        ] {
            let rest = b"GET / HTTP/1.1\r\n";
            let (opening, left) = read_pieces(vec![[&bytes[..], rest].concat()]).await;
            assert_eq!(opening, expected, "{name}");
            if !matches!(expected, Opening::Refused(_)) {
                assert_eq!(left, rest, "{name}: what stays in the socket");
            }
        }
    }

    #[tokio::test]
    async fn an_opening_without_a_header_is_refused() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"\x16\x03\x01",
            b"PUT / HTTP/1.1\r\nhost: a\r\n\r\n",
            b"\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n",
        ] {
            let (opening, _) = read_pieces(vec![bytes.to_vec()]).await;
            assert!(
                matches!(opening, Opening::Refused(why) if why.starts_with("no")),
                "{opening:?}"
            );
        }
        for bytes in [
            b"PROXY TCP4 203.0.113.700 10.0.0.1 1 2\r\n".to_vec(),
            b"PROXY TCP4 203.0.113.7 10.0.0.1 1 2 3\r\n".to_vec(),
            b"PROXY TCP6 203.0.113.7 10.0.0.1 1 2\r\n".to_vec(),
            b"PROXY UDP4 203.0.113.7 10.0.0.1 1 2\r\n".to_vec(),
            b"PROXY TCP4 203.0.113.7 10.0.0.1 1 70000\r\n".to_vec(),
            [b"PROXY TCP4 ", &[b'1'; 120][..]].concat(),
            v2(2, 0x11, &[0; 12]),
            v2(1, 0x41, &[0; 12]),
            [&v2(1, 0x11, &[0; 4])[..], &[0; 40]].concat(),
        ] {
            let (opening, _) = read_pieces(vec![bytes]).await;
            let malformed = |why: &str| why.starts_with("a malformed");
            assert!(matches!(opening, Opening::Refused(why) if malformed(why)), "{opening:?}");
        }
    }

    #[tokio::test]
    async fn a_connection_that_ends_early_is_no_fault() {
        for bytes in [&b""[..], b"PROXY TCP4 1", &ipv4(&[])[..20]] {
            assert_eq!(read_pieces(vec![bytes.to_vec()]).await.0, Opening::Left);
        }
    }

    #[tokio::test]
    async fn a_header_may_come_in_any_pieces() {
        for header in [V1.to_vec(), ipv4(&[4, 0, 2, 0, 0])] {
            let all = [&header[..], b"GET"].concat();
            for cut in 1..all.len() {
                let pieces = vec![all[..cut].to_vec(), all[cut..].to_vec()];
                let expected = (named("203.0.113.7"), b"GET".to_vec());
                assert_eq!(read_pieces(pieces).await, expected, "{cut}");
            }
            let bytes = all.iter().map(|byte| vec![*byte]).collect();
            assert_eq!(read_pieces(bytes).await, (named("203.0.113.7"), b"GET".to_vec()));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn nothing_panics(
            head in 0..4_usize,
            cut in 0..30_usize,
            bytes in proptest::collection::vec(any::<u8>(), 1..200),
        ) {
            let begins = [vec![], V1.to_vec(), ipv4(&[]), b"PROXY UNKNOWN\r\n".to_vec()];
            let begin = &begins[head][..cut.min(begins[head].len())];
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(read_pieces(vec![[begin, &bytes].concat()]));
        }
    }
}
