//! The fuzz targets: each gives any bytes to code that reads what strangers or operators write, and says
//! what must hold for all bytes. The tests run them over the corpus and over mutations of it. `fuzz/` makes
//! programs for libFuzzer of the same functions.

mod bodies;
mod connection;
mod costs;
mod forwarded;
mod http2;
mod keys;
mod logs;
mod messages;
mod path;
mod scene;
mod settings;

use std::net::IpAddr;

use ipnet::Ipv6Net;

/// A fuzz target.
pub(crate) struct FuzzTarget {
    /// The name, also of the folder of its inputs and of its dictionary in `tests/corpus`.
    pub(crate) name: &'static str,
    /// Panics if something does not hold for these bytes.
    pub(crate) check: fn(&[u8]),
}

/// All targets.
pub(crate) const TARGETS: [FuzzTarget; 9] = [
    FuzzTarget { name: "path", check: path::check },
    FuzzTarget { name: "keys", check: keys::check },
    FuzzTarget { name: "forwarded", check: forwarded::check },
    FuzzTarget { name: "settings", check: settings::check },
    FuzzTarget { name: "costs", check: costs::check },
    FuzzTarget { name: "bodies", check: bodies::check },
    FuzzTarget { name: "logs", check: logs::check },
    FuzzTarget { name: "connection", check: connection::check },
    FuzzTarget { name: "http2", check: http2::check },
];

/// The IPv4 address that an IPv6 address carries, or else the address itself.
fn canonical(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let carriers = ["::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96"];
    let [.., a, b, c, d] = v6.octets();
    match carriers.iter().any(|carrier| carrier.parse::<Ipv6Net>().unwrap().contains(&v6)) {
        true => IpAddr::from([a, b, c, d]),
        false => address,
    }
}

/// Numbers that depend on an input alone: an input that fails must fail again.
struct Choices(u64);

impl Choices {
    fn of(input: &[u8]) -> Self {
        // FNV-1a.
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        Self(input.iter().fold(0xcbf2_9ce4_8422_2325, step) | 1)
    }

    /// A number below `of`.
    fn below(&mut self, of: usize) -> usize {
        // Xorshift64.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 11) % of.max(1) as u64).unwrap()
    }

    /// An input in pieces of 1 to `most` bytes.
    fn cut<'i>(&mut self, input: &'i [u8], most: usize) -> Vec<&'i [u8]> {
        let (mut pieces, mut rest) = (Vec::new(), input);
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at((1 + self.below(most)).min(rest.len()));
            pieces.push(piece);
            rest = behind;
        }
        pieces
    }
}
