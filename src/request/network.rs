//! Addresses and networks: their spelling, and whether an address lies in a network. An IPv6 address that carries an
//! IPv4 address counts as this IPv4 address, both in a network of the file and in a client's address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net};

/// A set of networks that only says whether an address lies in one of them. The search is binary: ten thousand networks
/// cost a request little more than ten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    /// Canonical networks in order. No two have a common address.
    apart: Vec<IpNet>,
}

impl FromIterator<IpNet> for Networks {
    fn from_iter<I: IntoIterator<Item = IpNet>>(networks: I) -> Self {
        let networks = networks.into_iter().map(|network| canonical(&network)).collect();
        // A network inside a wider one is dropped.
        Self { apart: IpNet::aggregate(&networks) }
    }
}

impl Networks {
    /// Whether there is no network.
    pub(crate) fn is_empty(&self) -> bool {
        self.apart.is_empty()
    }

    /// Whether every IPv4 address, or every IPv6 address, lies in the networks.
    pub(crate) fn are_all(&self) -> bool {
        self.apart.iter().any(|network| network.prefix_len() == 0)
    }

    /// Whether `address` lies in one of the networks.
    pub(crate) fn contain(&self, address: IpAddr) -> bool {
        let address = canonical_address(address);
        let after = self.apart.partition_point(|network| network.addr() <= address);
        let last = after.checked_sub(1).and_then(|index| self.apart.get(index));
        last.is_some_and(|network| network.contains(&address))
    }
}

/// Reads an address or a network, as it is written. An address is a network of full length.
pub(crate) fn parse(text: &str) -> Option<IpNet> {
    text.parse::<IpAddr>().map(IpNet::from).or_else(|_| text.parse()).ok()
}

/// The address of a client in its canonical form: if an IPv6 address carries an IPv4 address, that IPv4 address.
pub(crate) fn canonical_address(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => carried(v6).map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// The IPv4 address in an IPv4-mapped address (RFC 4291, 2.5.5.2), an IPv4-translated one (RFC 2765, 2.1), or one
/// with the prefix of NAT64 (RFC 6052, 2.1).
fn carried(address: Ipv6Addr) -> Option<Ipv4Addr> {
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
        }
        _ => None,
    }
}

/// The lengths of the networks by which clients are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientPrefixes {
    /// Of IPv4 clients, 1 to 32.
    pub v4: u8,
    /// Of IPv6 clients, 1 to 128.
    pub v6: u8,
}

impl Default for ClientPrefixes {
    fn default() -> Self {
        Self { v4: 32, v6: 64 }
    }
}

impl ClientPrefixes {
    /// The length for clients of a network's version.
    pub(crate) fn of(self, network: &IpNet) -> u8 {
        match network {
            IpNet::V4(_) => self.v4,
            IpNet::V6(_) => self.v6,
        }
    }
}

/// The address by which a client is counted: the first of its network.
pub(crate) fn client_network(address: IpAddr, prefixes: ClientPrefixes) -> IpAddr {
    match canonical_address(address) {
        IpAddr::V4(v4) => {
            let hidden = 32_u32.saturating_sub(prefixes.v4.into());
            let mask = u32::MAX.checked_shl(hidden).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
        }
        IpAddr::V6(v6) => {
            let hidden = 128_u32.saturating_sub(prefixes.v6.into());
            let mask = u128::MAX.checked_shl(hidden).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    }
}

/// The network without the bits after its prefix. A network of addresses that carry IPv4 addresses becomes the IPv4
/// network. `::/0` does not become one: it contains only other IPv6 addresses.
pub(crate) fn canonical(network: &IpNet) -> IpNet {
    let network = network.trunc();
    if let IpNet::V6(v6) = network
        && let Some(address) = carried(v6.network())
        && let Some(prefix) = v6.prefix_len().checked_sub(96)
        && let Ok(v4) = Ipv4Net::new(address, prefix)
    {
        return IpNet::V4(v4);
    }
    network
}

/// The private network around an address, in quotes. `None` for an address that is not private.
pub(crate) fn private_network(address: IpAddr) -> Option<&'static str> {
    match canonical_address(address) {
        IpAddr::V4(v4) if v4.is_private() => Some(match v4.octets() {
            [10, ..] => "\"10.0.0.0/8\"",
            [172, ..] => "\"172.16.0.0/12\"",
            _ => "\"192.168.0.0/16\"",
        }),
        IpAddr::V4(v4) if v4.is_link_local() => Some("\"169.254.0.0/16\""),
        IpAddr::V6(v6) if v6.is_unique_local() => Some("\"fc00::/7\""),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some("\"fe80::/10\""),
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn clients_are_counted_by_their_network() {
        for (address, v4, v6, network) in [
            ("192.0.2.1", 32, 64, "192.0.2.1"),
            ("::ffff:192.0.2.1", 32, 64, "192.0.2.1"),
            ("::ffff:0:192.0.2.1", 32, 64, "192.0.2.1"),
            ("64:ff9b::192.0.2.1", 32, 64, "192.0.2.1"),
            ("64:ff9b::1:192.0.2.1", 32, 64, "64:ff9b::"),
            ("64:ff9b:1::192.0.2.1", 32, 64, "64:ff9b:1::"),
            ("::192.0.2.1", 32, 64, "::"),
            ("2001:db8:1:2:3::4", 24, 64, "2001:db8:1:2::"),
            ("2001:db8:1:2:3::4", 32, 128, "2001:db8:1:2:3::4"),
            ("ffff::1", 32, 1, "8000::"),
            ("203.0.113.7", 24, 64, "203.0.113.0"),
            ("::ffff:203.0.113.7", 24, 64, "203.0.113.0"),
            ("203.0.113.7", 31, 64, "203.0.113.6"),
            ("203.0.113.7", 1, 64, "128.0.0.0"),
        ] {
            let found = client_network(address.parse().unwrap(), ClientPrefixes { v4, v6 });
            assert_eq!(found.to_string(), network, "{address}");
        }
    }

    #[test]
    fn addresses_that_carry_ipv4_are_ipv4() {
        for (network, address, expected) in [
            ("10.0.0.0/8", "10.1.2.3", true),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("10.0.0.0/8", "11.1.2.3", false),
            ("10.9.9.9/8", "10.1.2.3", true),
            ("::ffff:10.0.0.0/104", "10.1.2.3", true),
            ("::ffff:10.0.0.0/104", "11.1.2.3", false),
            ("::ffff:0:0/96", "10.1.2.3", true),
            ("10.0.0.0/8", "::ffff:0:10.1.2.3", true),
            ("10.0.0.0/8", "64:ff9b::10.1.2.3", true),
            ("10.0.0.0/8", "64:ff9b::11.1.2.3", false),
            ("64:ff9b::10.0.0.0/104", "10.1.2.3", true),
            ("64:ff9b::10.0.0.0/104", "::ffff:0:10.1.2.3", true),
            ("::ffff:0:10.0.0.0/104", "64:ff9b::11.1.2.3", false),
            ("64:ff9b::/95", "10.1.2.3", false),
            ("::/0", "64:ff9b::10.1.2.3", false),
            ("::/0", "10.1.2.3", false),
            ("::/0", "::ffff:10.1.2.3", false),
            ("::/0", "2001:db8::1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("2001:db8::/32", "2001:db8:1::1", true),
        ] {
            let networks = Networks::from_iter([network.parse().expect(network)]);
            let found = networks.contain(address.parse().expect(address));
            assert_eq!(found, expected, "{network} {address}");
        }
    }

    /// An address near an edge of few networks: those of IPv4, those that carry them, and others.
    fn any_address() -> impl Strategy<Value = IpAddr> {
        let low = prop::sample::select(vec![0, 1, 2, 3, 0xff, 0x100, 0x0a00_0000, 0x7fff_ffff]);
        let low = low.prop_flat_map(|bits: u32| prop::sample::select(vec![bits, !bits]));
        let carriers =
            ["::", "::ffff:0:0", "::ffff:0:0:0", "64:ff9b::", "64:ff9b::1:0:0", "ffff::"];
        let v6 = (prop::sample::select(carriers.to_vec()), low.clone()).prop_map(|(text, low)| {
            let carrier: Ipv6Addr = text.parse().unwrap();
            IpAddr::from((carrier.to_bits() | u128::from(low)).to_be_bytes())
        });
        prop_oneof![low.prop_map(|low| IpAddr::from(low.to_be_bytes())), v6]
    }

    fn any_network() -> impl Strategy<Value = IpNet> {
        (any_address(), prop_oneof![0..=3_u8, 0..=128_u8], any::<bool>()).prop_map(
            |(address, length, is_from_end)| {
                let most = if address.is_ipv4() { 32 } else { 128 };
                let length = length.min(most);
                IpNet::new(address, if is_from_end { most - length } else { length }).unwrap()
            },
        )
    }

    proptest! {
        #[test]
        fn a_search_finds_the_same_as_a_look_at_each_network(
            networks in prop::collection::vec(any_network(), 0..8),
            addresses in prop::collection::vec(any_address(), 1..8),
        ) {
            let found = Networks::from_iter(networks.clone());
            prop_assert_eq!(found.is_empty(), networks.is_empty());
            let inside = networks.iter().flat_map(|it| [it.network(), it.broadcast()]);
            for address in addresses.into_iter().chain(inside) {
                let own = canonical_address(address);
                let expected = networks.iter().any(|it| canonical(it).contains(&own));
                prop_assert_eq!(found.contain(address), expected, "{}", address);
            }
        }
    }

    /// If each address were compared with each network, this test would take minutes.
    #[test]
    fn a_long_list_is_not_searched_one_by_one() {
        let address = |number: u32| IpAddr::from((number << 1).to_be_bytes());
        let networks = Networks::from_iter((0..100_000).map(address).map(IpNet::from));
        assert!((0..100_000).all(|number| networks.contain(address(number))));
        let between = |number: u32| IpAddr::from((number << 1 | 1).to_be_bytes());
        assert!(!(0..100_000).any(|number| networks.contain(between(number))));
    }
}
