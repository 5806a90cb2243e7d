//! The client's address behind trusted proxies. The first line of the input is the header that is believed,
//! the second the peer's address. Each other line is a value of the header.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate::request::client::{Client, ClientHeader, PeerAddress, Trust};

use super::canonical;
use super::messages::is_token;

const TRUSTED: [&str; 4] = ["10.0.0.0/8", "fd00::/8", "::ffff:192.168.0.0/112", "127.0.0.1/32"];

/// The most addresses that are read.
const MOST: usize = 64;

pub(super) fn check(input: &[u8]) {
    let mut lines = input.split(|byte| *byte == b'\n');
    let header = lines.next().and_then(|line| HeaderName::from_bytes(line).ok());
    let peer = lines.next().and_then(|line| std::str::from_utf8(line).ok()?.parse().ok());
    let (Some(name), Some(peer)) = (header, peer) else { return };
    let values: Option<Vec<_>> = lines.map(|line| HeaderValue::from_bytes(line).ok()).collect();
    let Some(values) = values else { return };
    let trust = Trust {
        networks: TRUSTED.iter().map(|text| text.parse::<ipnet::IpNet>().unwrap()).collect(),
        header: match name.as_str() {
            "x-forwarded-for" => ClientHeader::XForwardedFor,
            "forwarded" => ClientHeader::Forwarded,
            _ => ClientHeader::Single(name.clone()),
        },
    };
    let client = found(&trust, peer, &name, &values);
    is_sound(&trust, peer, &client);
    let texts: Vec<&[u8]> = values.iter().map(HeaderValue::as_bytes).collect();
    match name.as_str() {
        "x-forwarded-for" => {
            let list = texts.join(&b","[..]);
            let named: Vec<_> = match texts.is_empty() {
                true => Vec::new(),
                false => list.split(|byte| *byte == b',').map(address).collect(),
            };
            assert_eq!(client, reference(&trust, peer, &named));
        }
        "forwarded" => {
            if !texts.iter().any(|text| text.contains(&b'"')) {
                let list = texts.join(&b","[..]);
                let named: Vec<_> = match texts.is_empty() {
                    true => Vec::new(),
                    false => list.split(|byte| *byte == b',').map(element).collect(),
                };
                assert_eq!(client, reference(&trust, peer, &named));
            }
        }
        _ => {
            let named: Vec<_> = match &texts[..] {
                [] => Vec::new(),
                [one] => vec![address(one)],
                _ => vec![None],
            };
            assert_eq!(client, reference(&trust, peer, &named));
        }
    }
    strangers_change_nothing(&trust, &name, &values);
}

fn found(trust: &Trust, peer: IpAddr, name: &HeaderName, values: &[HeaderValue]) -> Client {
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append(name, value.clone());
    }
    // None of these may be read.
    for other in ["x-forwarded-for", "forwarded", "x-real-ip", "x-forwarded_for"] {
        if name != other {
            headers.append(other, HeaderValue::from_static("6.6.6.6"));
        }
    }
    trust.client(PeerAddress::Network(peer), &headers)
}

fn is_sound(trust: &Trust, peer: IpAddr, client: &Client) {
    assert_eq!(client.peer_trusted, trust.trusts(peer));
    assert_eq!(client.address, canonical(client.address));
    assert!(client.via.iter().all(|proxy| trust.trusts(*proxy)), "{client:?}");
    assert!(client.via.len() < MOST, "{client:?}");
    if !client.peer_trusted {
        assert_eq!((client.address, &*client.via), (canonical(peer), &[][..]));
    }
}

/// From the peer to the left, as long as each proxy is trusted and the address that it names is readable.
fn reference(trust: &Trust, peer: IpAddr, named: &[Option<IpAddr>]) -> Client {
    let mut chain = vec![canonical(peer)];
    for name in named.iter().rev().take(MOST) {
        let Some(name) = name.filter(|_| trust.trusts(chain[0])) else { break };
        chain.insert(0, name);
    }
    let peer_trusted = trust.trusts(peer);
    let via = chain.get(1..chain.len() - 1).unwrap_or_default().to_vec();
    Client { address: chain[0], via, peer_trusted }
}

fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?.trim_matches([' ', '\t']);
    let brackets = text.starts_with('[') && text.ends_with(']');
    let bare = if brackets { &text[1..text.len() - 1] } else { text };
    let address = match bare.parse::<IpAddr>() {
        Ok(address) if address.is_ipv6() || !brackets => Some(address),
        _ if text.contains('%') => None,
        _ => text.parse().ok().map(|address: SocketAddr| address.ip()),
    };
    address.map(canonical)
}

/// The address in an element of `forwarded` without quotes.
fn element(text: &[u8]) -> Option<IpAddr> {
    let mut found = Vec::new();
    let parts = text.split(|byte| *byte == b';');
    for part in parts.filter(|part| !part.trim_ascii().is_empty()) {
        let equals = part.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (part[..equals].trim_ascii(), part[equals + 1..].trim_ascii_end());
        if !name.iter().all(|byte| is_token(*byte)) {
            return None;
        }
        if name.eq_ignore_ascii_case(b"for") {
            found.push(value);
        }
    }
    let [value] = found[..] else { return None };
    address(value).or_else(|| {
        let colon = value.iter().rposition(|byte| *byte == b':')?;
        value[colon + 1..].starts_with(b"_").then(|| address(&value[..colon]))?
    })
}

/// What a trusted proxy has written is read the same, whatever its client wrote to the left of it.
fn strangers_change_nothing(trust: &Trust, name: &HeaderName, values: &[HeaderValue]) {
    let client: IpAddr = "203.0.113.7".parse().unwrap();
    let proxy: IpAddr = "10.1.2.3".parse().unwrap();
    let written = match name.as_str() {
        "x-forwarded-for" => ["203.0.113.7, 10.1.2.4", "[2001:db8::7]:80"],
        "forwarded" => [
            "for=203.0.113.7;by=\"[fd00::1]:80\";host=\"a,\\\"b\", For=\"10.1.2.4:_x\"",
            "host=\"\\\\\";for=\"[2001:db8::7]:80\"",
        ],
        _ => return,
    };
    let v6: IpAddr = "2001:db8::7".parse().unwrap();
    for (written, address) in written.into_iter().zip([client, v6]) {
        let mut values = values.to_vec();
        // In a line of its own, and in the line of the last value.
        let own_line = [&values[..], &[HeaderValue::from_static(written)]].concat();
        assert_eq!(found(trust, proxy, name, &own_line).address, address, "{own_line:?}");
        if let Some(last) = values.last_mut() {
            let text = [last.as_bytes(), b", ", written.as_bytes()].concat();
            *last = HeaderValue::from_bytes(&text).unwrap();
            assert_eq!(found(trust, proxy, name, &values).address, address, "{values:?}");
        }
    }
}
