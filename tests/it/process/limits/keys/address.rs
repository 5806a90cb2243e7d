//! The client's address, as its connection and trusted proxies say it.

use super::check_headers;

const TRUSTED: &str = "trusted_proxies = [\"127.0.0.0/8\", \"10.0.0.0/8\"]";

#[test]
fn by_address_as_trusted_proxies_say_it() {
    let from = |addresses| [("x-forwarded-for", addresses)];
    check_headers(
        TRUSTED,
        "key = [\"ip\"]",
        &[
            (&from("203.0.113.1"), 200),
            (&from("203.0.113.2"), 200),
            // What stands left of the first stranger, the client itself may have written.
            (&from("6.6.6.7, 203.0.113.1:4711 , 64:ff9b::10.1.2.3,127.0.0.9"), 429),
            // Several lines are one list. Other fields are not read.
            (&[("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", "203.0.113.1")], 429),
            (&[("x-forwarded-for", "203.0.113.1"), ("forwarded", "for=6.6.6.6")], 429),
            (&[("x-forwarded-for", "203.0.113.1"), ("x-real-ip", "6.6.6.6")], 429),
            (&from("::ffff:203.0.113.1"), 429),
            // IPv6 clients count by their network.
            (&from("2001:db8::1"), 200),
            (&from("2001:db8::ffff:1"), 429),
            (&from("2001:db8:0:1::1"), 200),
            // What is unreadable ends the trust: the client is the proxy in front of it.
            (&from("203.0.113.77, junk"), 200),
            (&[], 429),
        ],
    );
}

#[test]
fn a_stranger_is_not_believed() {
    check_headers(
        "trusted_proxies = [\"10.0.0.0/8\"]",
        "key = [\"ip\"]",
        &[
            (&[("x-forwarded-for", "203.0.113.1")], 200),
            (&[("x-forwarded-for", "203.0.113.2")], 429),
            (&[("x-forwarded-for", "10.0.0.1")], 429),
            (&[], 429),
        ],
    );
}

#[test]
fn by_address_in_forwarded() {
    let server = format!("{TRUSTED}\nclient_ip_header = \"forwarded\"");
    let from = |value| [("forwarded", value)];
    check_headers(
        &server,
        "key = [\"ip\"]",
        &[
            (&from("for=203.0.113.1;proto=https;by=10.0.0.1"), 200),
            (&from("For=\"203.0.113.1:4711\""), 429),
            (&from("for=6.6.6.6, for=203.0.113.1, for=10.0.0.2"), 429),
            (&from("for=\"[2001:db8::1]:4711\""), 200),
            (&from("for=\"[2001:db8::2]\""), 429),
            (&from("for=203.0.113.9, for=_hidden"), 200),
            (&from("for=203.0.113.8, for=unknown"), 429),
            (&[("x-forwarded-for", "203.0.113.50")], 429),
        ],
    );
}

#[test]
fn by_address_in_a_header_of_one() {
    let server = format!("{TRUSTED}\nclient_ip_header = \"cf-connecting-ip\"");
    let from = |value| [("cf-connecting-ip", value)];
    check_headers(
        &server,
        "key = [\"ip\"]",
        &[
            (&from("203.0.113.1"), 200),
            (&from("203.0.113.1"), 429),
            (&[("x-forwarded-for", "203.0.113.9"), ("cf-connecting-ip", "203.0.113.1")], 429),
            // Two are none.
            (&[("cf-connecting-ip", "203.0.113.3"), ("cf-connecting-ip", "203.0.113.4")], 200),
            (&[("x-forwarded-for", "203.0.113.9")], 429),
        ],
    );
}

/// Issue 31: all clients behind NAT64 were one.
#[test]
fn networks_of_an_operator_hold_what_carries_their_addresses() {
    let from = |value| [("x-forwarded-for", value)];
    for carrier in ["", "::ffff:", "::ffff:0:", "64:ff9b::"] {
        let trusted = format!("trusted_proxies = [\"127.0.0.0/8\", \"{carrier}10.1.2.3\"]");
        let limit = format!(
            "key = [\"ip\"]\nexempt = {{ ip = [\"{carrier}198.51.100.1\"] }}\n\
             overrides = [{{ key = [\"{carrier}203.0.113.9\"], rate = \"0/s\" }}]"
        );
        check_headers(
            &trusted,
            &limit,
            &[
                (&from("64:ff9b::203.0.113.9"), 429),
                (&from("203.0.113.9, ::ffff:0:10.1.2.3"), 429),
                (&from("64:ff9b::198.51.100.1"), 200),
                (&from("::ffff:0:198.51.100.1"), 200),
                (&from("198.51.100.1"), 200),
                (&from("203.0.113.1"), 200),
                (&from("203.0.113.1, 64:ff9b::10.1.2.3"), 429),
            ],
        );
    }
}

#[test]
fn the_ipv6_prefix_is_the_operators() {
    let server = format!("{TRUSTED}\nipv6_prefix = 48");
    let from = |value| [("x-forwarded-for", value)];
    check_headers(
        &server,
        "key = [\"ip\"]",
        &[
            (&from("2001:db8:1:1::1"), 200),
            (&from("2001:db8:1:2::1"), 429),
            (&from("2001:db8:2:1::1"), 200),
        ],
    );
}

#[test]
fn ipv4_clients_can_share_a_network() {
    let server = format!("{TRUSTED}\nipv4_prefix = 24");
    let from = |value| [("x-forwarded-for", value)];
    check_headers(
        &server,
        "key = [\"ip\"]\noverrides = [{ key = [\"198.51.100.0/24\"], rate = \"0/s\" }]",
        &[
            (&from("203.0.113.1"), 200),
            (&from("203.0.113.9"), 429),
            (&from("::ffff:203.0.113.200"), 429),
            (&from("203.0.114.1"), 200),
            (&from("198.51.100.7"), 429),
        ],
    );
}
