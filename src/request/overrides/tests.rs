use std::net::IpAddr;

use http::HeaderName;
use http::header::AUTHORIZATION;

use super::*;
use crate::request::key::ip_text;
use crate::request::network::{ClientPrefixes, canonical_address};
use proptest::prelude::{prop_assert, proptest};

fn exact(text: &str) -> Part {
    Part { shape: PartShape::Exact, index: 0, text: text.to_owned() }
}

fn any() -> Part {
    Part { shape: PartShape::Any, ..exact("") }
}

fn part(text: &str) -> Part {
    match text.parse() {
        Ok(network) => Part::of_network(&network, 0),
        Err(_) if text == "*" => any(),
        Err(_) => exact(text),
    }
}

fn overrides(entries: &[&[&str]]) -> KeyOverrides<usize> {
    let entry =
        |(index, parts): (usize, &&[&str])| (parts.iter().map(|t| part(t)).collect(), index);
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
        ("behind NAT64", &[&["64:ff9b::10.0.0.0/104"]], &["10.1.1.1"], Some(0)),
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
    let network = |text: &str| Ok(Part::of_network(&text.parse().expect(text), 0));
    let exact = |text: &str| Ok(exact(text));
    for (source, text, expected) in [
        (S::Ip, "*", Ok(any())),
        (S::Ip, "10.1.1.1", exact("10.1.1.1")),
        (S::Ip, "10.1.1.1/8", network("10.0.0.0/8")),
        (S::Ip, "::ffff:10.1.1.1/128", exact("10.1.1.1")),
        (S::Ip, "64:ff9b::10.1.1.1", exact("10.1.1.1")),
        (S::Ip, "2001:db8::1/64", exact("2001:db8::/64")),
        (S::Ip, "2001:db8::1/48", network("2001:db8::/48")),
        (S::Path, "/caf%c3%A9;x", exact("/caf%C3%A9")),
        (S::Host, "API.Example.", exact("api.example")),
        (S::Method, "GET", exact("GET")),
        (S::Param("id".into()), "a b ", exact("a b")),
        (S::Header(AUTHORIZATION), "bearer  abc", exact("abc")),
        (S::Header(HeaderName::from_static("x-api-key")), "\u{a0}abc", exact("abc")),
    ] {
        assert_eq!(
            Part::parse(text, &source, ClientPrefixes::default(), false),
            expected,
            "{source} {text}"
        );
    }
    for (source, text, word) in [
        (S::Ip, "x", "no address"),
        (S::Ip, "2001:db8::1", "ipv6_prefix = 64"),
        (S::Path, "a", "no path"),
        (S::Host, "a:80", "no host"),
        (S::Header(AUTHORIZATION), "n1 Bearer abc", "two ways"),
    ] {
        let error = Part::parse(text, &source, ClientPrefixes::default(), false).expect_err(text);
        assert!(error.contains(word), "{source} {text}: {error}");
    }
}

#[test]
fn a_network_of_the_counted_length_is_one_key() {
    let prefixes = ClientPrefixes { v4: 24, ..ClientPrefixes::default() };
    let part = |text| Part::parse(text, &KeySource::Ip, prefixes, false);
    assert_eq!(part("203.0.113.0/24"), Ok(exact("203.0.113.0/24")));
    assert_eq!(part("203.0.0.0/16").unwrap().value(), None);
    let error = part("203.0.113.7").unwrap_err();
    assert!(error.contains("ipv4_prefix = 24`: write `203.0.113.0/24`"), "{error}");
}

/// A regression: no override could name a value of any alternative but the first.
#[test]
fn a_number_names_the_alternative() {
    let source = KeySource::FirstOf([KeySource::Method, KeySource::Ip, KeySource::Host].into());
    let entries = ["a", "2=10.1.1.1", "2=10.1.0.0/16", "2=10.0.0.0/8", "3=A.test", "4=b", "*"];
    let parts = entries.map(|text| {
        vec![Part::parse(text, &source, ClientPrefixes::default(), false).expect(text)]
    });
    let overrides = KeyOverrides::new(parts.into_iter().zip(0..).collect());
    for (index, value, expected) in [
        (0, "a", 0),
        (1, "10.1.1.1", 1),
        (1, "10.1.1.2", 2),
        (1, "10.2.1.1", 3),
        (2, "a.test", 4),
        (0, "4=b", 5),
        (1, "11.1.1.1", 6),
        (0, "10.1.1.1", 6),
        (2, "10.1.1.1", 6),
    ] {
        let key = Key::of_parts([(index, Some(value))]);
        assert_eq!(overrides.find(&key), Some(&expected), "{index} {value}");
    }
    for (text, word) in [
        ("10.0.0.0/8", "write \"2=10.0.0.0/8\" for this network of `ip`, or \"1=10.0.0.0/8\""),
        ("2=x", "no address"),
        ("2=*", "\"*\" alone"),
    ] {
        let error = Part::parse(text, &source, ClientPrefixes::default(), false).expect_err(text);
        assert!(error.contains(word), "{text}: {error}");
    }
    assert_eq!(
        Part::parse("1=10.0.0.0/8", &source, ClientPrefixes::default(), false),
        Ok(exact("10.0.0.0/8"))
    );
}

proptest! {
    #[test]
    fn an_address_is_found_in_every_network_around_it(bits: u32, v6: u64, length in 0u8..=32) {
        let v4 = IpAddr::from(bits.to_be_bytes());
        let v6 = IpAddr::from((u128::from(v6) << 64).to_be_bytes());
        for address in [v4, v6] {
            let network = IpNet::new(address, length).expect("a network");
            let overrides = KeyOverrides::new(vec![(vec![Part::of_network(&network, 0)], ())]);
            let text = ip_text(address, ClientPrefixes::default());
            let mapped = canonical_address(address) != address;
            prop_assert!(mapped || overrides.find(&Key::of([Some(text.as_slice())])).is_some());
        }
    }
}
