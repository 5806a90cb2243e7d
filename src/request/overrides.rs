//! Overrides: other figures for some keys.
//!
//! A shape says for each part of a key whether it is exact, a network of some length, or anything. All
//! entries of one shape are in one hash map. The map's key has the value of an exact part, the network of a
//! network part, and nothing for an `Any` part. A look-up tries the shapes, the most specific first. Its
//! cost is one hash for each shape, however many entries there are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use http::header::AUTHORIZATION;
use ipnet::IpNet;

use super::host::Host;
use super::key::{KeySource, normal_credentials};
use super::network::{canonical, parse};
use super::path::NormalPath;
use crate::limit::key::Key;

/// The values that one part of an override's key matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// This value.
    Exact(String),
    /// Every address in this network.
    Network(IpNet),
    /// Any value, also an absent value.
    Any,
}

/// Other figures for some keys. The most specific entry wins: an exact value before a network, a longer
/// network before a shorter one, and `Any` last. Parts are compared from the left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyOverrides<T> {
    /// The entries by shape, the most specific shape first.
    shapes: BTreeMap<Vec<PartShape>, HashMap<String, T>>,
}

/// The shape of an entry, and its key in the map of this shape.
pub(crate) type OverrideKey<'o> = (&'o [PartShape], &'o str);

/// The kind of a part, without its value. The most specific kind is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum PartShape {
    Exact,
    /// The prefix length, the longest first.
    Network(Reverse<u8>),
    Any,
}

impl Part {
    /// Reads an operator's text for a part of a key from `source`: `*`, an address or network for `ip`, or
    /// a value. A value is changed to the form that keys use.
    ///
    /// # Errors
    /// A description, where no key can ever have the value.
    pub fn parse(text: &str, source: &KeySource, ipv6_prefix: u8) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self::Any);
        }
        match source {
            // There are overrides only for values of the first alternative.
            KeySource::FirstOf(sources) if !sources.is_empty() => {
                Self::parse(text, &sources[0], ipv6_prefix)
            }
            KeySource::Ip => address_part(text, ipv6_prefix),
            KeySource::Path => match NormalPath::parse(text, true) {
                Ok(path) => Ok(Self::Exact(path.matching().to_owned())),
                Err(error) => Err(format!("`{text}` is no path: {error}")),
            },
            KeySource::Host => match Host::without_port(text) {
                Some(host) => Ok(Self::Exact(host.as_str().to_owned())),
                None => Err(format!("`{text}` is no host without a port")),
            },
            KeySource::Header(name) if *name == AUTHORIZATION => {
                let form = normal_credentials(text.as_bytes());
                let form = form.and_then(|form| String::from_utf8(form.into_owned()).ok());
                form.map(Self::Exact).ok_or_else(|| {
                    format!("`{text}` has no one reading, and requests with it are refused")
                })
            }
            _ => Ok(Self::Exact(text.to_owned())),
        }
    }
}

fn address_part(text: &str, ipv6_prefix: u8) -> Result<Part, String> {
    let network = parse(text).ok_or_else(|| format!("`{text}` is no address and no network"))?;
    match canonical(&network) {
        IpNet::V6(v6) if v6.prefix_len() > ipv6_prefix => Err(format!(
            "IPv6 clients are counted by `ipv6_prefix = {ipv6_prefix}`, and `{text}` is longer"
        )),
        // A network of exactly this length is one value of a key, so it can be found as an exact value.
        IpNet::V6(v6) if v6.prefix_len() == ipv6_prefix => Ok(Part::Exact(v6.to_string())),
        IpNet::V4(v4) if v4.prefix_len() == 32 => Ok(Part::Exact(v4.addr().to_string())),
        network => Ok(Part::Network(network)),
    }
}

impl<T> KeyOverrides<T> {
    /// Takes the entries in any order. Of two entries with the same key the first counts.
    pub fn new(entries: Vec<(Vec<Part>, T)>) -> Self {
        let mut shapes: BTreeMap<_, HashMap<String, T>> = BTreeMap::new();
        for (parts, figures) in entries {
            let shape: Vec<_> = parts.iter().map(PartShape::of).collect();
            let texts = parts.iter().map(|part| match part {
                Part::Exact(value) => Key::of([Some(value.as_bytes())]).as_str().to_owned(),
                Part::Network(network) => canonical(network).to_string(),
                Part::Any => String::new(),
            });
            let common = texts.collect::<Vec<_>>().join("|");
            shapes.entry(shape).or_default().entry(common).or_insert(figures);
        }
        Self { shapes }
    }

    /// All entries, each with a text that no other entry has.
    pub(crate) fn by_key(&self) -> HashMap<OverrideKey<'_>, &T> {
        let mut all = HashMap::new();
        for (shape, entries) in &self.shapes {
            all.extend(entries.iter().map(|(key, figures)| ((shape.as_slice(), &**key), figures)));
        }
        all
    }

    /// The figures of all entries.
    pub(crate) fn figures(&self) -> impl Iterator<Item = &T> {
        self.shapes.values().flat_map(HashMap::values)
    }

    /// The keys, as texts, of the entries that fit one key alone.
    pub(crate) fn single_keys(&self) -> impl Iterator<Item = &str> {
        let is_exact = |shape: &[PartShape]| shape.iter().all(|part| *part == PartShape::Exact);
        let exact = self.shapes.iter().filter(move |(shape, _)| is_exact(shape));
        exact.flat_map(|(_, entries)| entries.keys().map(String::as_str))
    }

    /// Calls `change` for each entry whose key has an entry in `before` too, with both figures.
    pub(crate) fn for_same_keys(&mut self, before: &Self, change: impl Fn(&T, &mut T)) {
        for (shape, entries) in &mut self.shapes {
            let Some(before) = before.shapes.get(shape) else { continue };
            for (key, figures) in entries {
                if let Some(before) = before.get(key) {
                    change(before, figures);
                }
            }
        }
    }

    /// The figures of the most specific entry that fits `key`. The key must not be hashed.
    pub fn find(&self, key: &Key) -> Option<&T> {
        self.shapes.iter().find_map(|(shape, entries)| {
            if shape.iter().all(|part| *part == PartShape::Exact) {
                return entries.get(key.as_str());
            }
            entries.get(common_with(shape, key)?.as_str())
        })
    }
}

impl<T> Default for KeyOverrides<T> {
    fn default() -> Self {
        Self { shapes: BTreeMap::new() }
    }
}

impl PartShape {
    fn of(part: &Part) -> Self {
        match part {
            Part::Exact(_) => Self::Exact,
            Part::Network(network) => Self::Network(Reverse(canonical(network).prefix_len())),
            Part::Any => Self::Any,
        }
    }
}

/// The map's key for entries of this shape that fit `key`; `None` where no entry of the shape can fit.
fn common_with(shape: &[PartShape], key: &Key) -> Option<String> {
    let mut common = String::with_capacity(key.as_str().len() + 4);
    let mut values = key.as_str().split('|');
    for (place, part) in shape.iter().enumerate() {
        let value = values.next()?;
        if place > 0 {
            common.push('|');
        }
        match part {
            PartShape::Exact => common.push_str(value),
            PartShape::Network(Reverse(length)) => {
                // Writing into a string never fails.
                let _ = write!(common, "{}", network_around(value, *length)?);
            }
            PartShape::Any => {}
        }
    }
    values.next().is_none().then_some(common)
}

/// The network of this length around an address. `value` is the address as keys write it.
fn network_around(value: &str, length: u8) -> Option<IpNet> {
    let inner = parse(value)?;
    let fits = length <= inner.prefix_len();
    IpNet::new(inner.addr(), length).ok().filter(|_| fits).map(|network| network.trunc())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::request::key::ip_text;
    use proptest::prelude::*;

    fn part(text: &str) -> Part {
        match text.parse::<IpNet>() {
            Ok(network) => Part::Network(network),
            Err(_) if text == "*" => Part::Any,
            Err(_) => Part::Exact(text.to_owned()),
        }
    }

    fn overrides(entries: &[&[&str]]) -> KeyOverrides<usize> {
        let entry =
            |(place, parts): (usize, &&[&str])| (parts.iter().map(|t| part(t)).collect(), place);
        KeyOverrides::new(entries.iter().enumerate().map(entry).collect())
    }

    fn key(values: &[&str]) -> Key {
        Key::of(values.iter().map(|value| (*value != "-").then_some(value.as_bytes())))
    }

    #[test]
    fn the_most_specific_entry_wins() {
        let one: &[&[&str]] =
            &[&["*"], &["10.0.0.0/8"], &["10.1.0.0/16"], &["10.1.1.1"], &["2001:db8::/32"]];
        let two: &[&[&str]] =
            &[&["*", "x"], &["a", "*"], &["10.0.0.0/8", "x"], &["10.0.0.0/8", "*"], &["a", "x"]];
        for (name, entries, values, expected) in [
            ("none", &[][..], &["a"][..], None),
            ("any", one, &["11.1.1.1"], Some(0)),
            ("absent", one, &["-"], Some(0)),
            ("network", one, &["10.2.2.2"], Some(1)),
            ("longer network", one, &["10.1.2.2"], Some(2)),
            ("exact", one, &["10.1.1.1"], Some(3)),
            ("v6", one, &["2001:db8:1::/64"], Some(4)),
            ("v6 elsewhere", one, &["2001:db9:1::/64"], Some(0)),
            ("longer than the key's", &[&["2001:db8::/72"]], &["2001:db8::/64"], None),
            ("v6 shorter than v4's", &[&["0.0.0.0/0"]], &["::/64"], None),
            ("mapped", &[&["::ffff:10.0.0.0/104"]], &["10.1.1.1"], Some(0)),
            ("no address", &[&["0.0.0.0/0"]], &["a"], None),
            ("left before right", two, &["a", "y"], Some(1)),
            ("both", two, &["a", "x"], Some(4)),
            ("network, exact", two, &["10.1.1.1", "x"], Some(2)),
            ("network, any", two, &["10.1.1.1", "y"], Some(3)),
            ("any, exact", two, &["b", "x"], Some(0)),
            ("neither", two, &["b", "y"], None),
            ("too few", two, &["a"], None),
            ("too many", two, &["a", "x", "x"], None),
            ("escaped", &[&["a|b", "*"]], &["a|b", "c"], Some(0)),
            ("not joined", &[&["a|b", "*"]], &["a", "b", "c"], None),
            ("absent is no text", &[&["%-"]], &["-"], None),
            ("nor empty", &[&[""]], &["-"], None),
            ("empty", &[&[""]], &[""], Some(0)),
            ("no parts", &[&[]], &[], Some(0)),
            ("the first of two", &[&["a"], &["a"]], &["a"], Some(0)),
        ] {
            let found = overrides(entries).find(&key(values)).copied();
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn parts_are_read_into_the_form_of_keys() {
        use KeySource as S;
        let network = |text: &str| Ok(Part::Network(text.parse().expect(text)));
        let exact = |text: &str| Ok(Part::Exact(text.to_owned()));
        for (source, text, expected) in [
            (S::Ip, "*", Ok(Part::Any)),
            (S::Ip, "10.1.1.1", exact("10.1.1.1")),
            (S::Ip, "10.1.1.1/8", network("10.0.0.0/8")),
            (S::Ip, "::ffff:10.1.1.1/128", exact("10.1.1.1")),
            (S::Ip, "2001:db8::1/64", exact("2001:db8::/64")),
            (S::Ip, "2001:db8::1/48", network("2001:db8::/48")),
            (S::Path, "/caf%c3%A9;x", exact("/caf%C3%A9")),
            (S::Host, "API.Example.", exact("api.example")),
            (S::Method, "GET", exact("GET")),
            (S::Param("id".into()), "a b", exact("a b")),
        ] {
            assert_eq!(Part::parse(text, &source, 64), expected, "{source} {text}");
        }
        for (source, text, word) in [
            (S::Ip, "x", "no address"),
            (S::Ip, "2001:db8::1", "ipv6_prefix = 64"),
            (S::Path, "a", "no path"),
            (S::Host, "a:80", "no host"),
        ] {
            let error = Part::parse(text, &source, 64).expect_err(text);
            assert!(error.contains(word), "{source} {text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn an_address_is_found_in_every_network_around_it(bits: u32, v6 in any::<u64>(), length in 0u8..=32) {
            let v4 = IpAddr::from(bits.to_be_bytes());
            let v6 = IpAddr::from((u128::from(v6) << 64).to_be_bytes());
            for address in [v4, v6] {
                let network = IpNet::new(address, length).expect("a network");
                let overrides = KeyOverrides::new(vec![(vec![Part::Network(network)], ())]);
                let text = ip_text(address, 64);
                let mapped = address.to_canonical() != address;
                prop_assert!(mapped || overrides.find(&Key::of([Some(text.as_slice())])).is_some());
            }
        }
    }
}
