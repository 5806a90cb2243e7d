//! A client's address, as logs spell it.

use std::net::{IpAddr, SocketAddr};

use crate::request::network::canonical_address;

/// Reads an address: with or without a port, IPv6 with or without brackets, with or without a zone. `None` for
/// a name, and for `-`.
pub(super) fn parse(text: &str) -> Option<IpAddr> {
    let text = text.trim_matches([' ', '"']);
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(canonical_address(address));
    }
    let address = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((inner, _)) => without_zone(inner).parse().ok()?,
        None => match text.parse::<SocketAddr>() {
            Ok(with_port) => with_port.ip(),
            Err(_) => without_zone(text).parse().ok()?,
        },
    };
    Some(canonical_address(address))
}

fn without_zone(text: &str) -> &str {
    text.split_once('%').map_or(text, |(address, _)| address)
}

/// The left-most address of `x-forwarded-for`, if it can be read.
pub(super) fn left_most(list: &str) -> Option<IpAddr> {
    parse(list.split(',').next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_spellings_of_logs() {
        for (text, address) in [
            ("203.0.113.7", "203.0.113.7"),
            ("203.0.113.7:2817", "203.0.113.7"),
            ("2001:db8::7", "2001:db8::7"),
            ("[2001:db8::7]", "2001:db8::7"),
            ("[2001:db8::7]:2817", "2001:db8::7"),
            ("fe80::1%eth0", "fe80::1"),
            ("[fe80::1%eth0]:80", "fe80::1"),
            ("::ffff:203.0.113.7", "203.0.113.7"),
            ("[64:ff9b::cb00:7107]:2817", "203.0.113.7"),
        ] {
            assert_eq!(parse(text), Some(address.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn a_name_is_no_address() {
        for text in ["", "-", "crawl.example.com", "unix:", "@", "1.2.3", "[::1", "999.1.1.1", "é"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_left_most_forwarded_address_is_the_client() {
        assert_eq!(left_most("203.0.113.7, 10.0.0.1"), parse("203.0.113.7"));
        assert_eq!(left_most("unknown, 10.0.0.1"), None);
        assert_eq!(left_most("-"), None);
    }
}
