//! The client's address, as its connection and trusted proxies say it.

use super::check_headers;

const TRUSTED: &str = "trusted_proxies = [\"127.0.0.0/8\", \"10.0.0.0/8\"]";

#[test]
fn the_client_is_whom_trusted_proxies_name() {
    let from = |addresses| [("x-forwarded-for", addresses)];
    let forwarded = |value| [("forwarded", value)];
    let cdn = |value| [("cf-connecting-ip", value)];
    for (server, limit, steps) in [
        (
            "",
            "",
            &[
                (&from("203.0.113.1")[..], 200),
                (&from("203.0.113.2"), 200),
                // What stands left of the first stranger, the client itself may have written.
                (&from("6.6.6.7, 203.0.113.1:4711 , 64:ff9b::10.1.2.3,127.0.0.9"), 429),
                // Several lines are one list. Other fields are not read.
                (&[("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", "203.0.113.1")], 429),
                (&[("x-forwarded-for", "203.0.113.1"), ("x-real-ip", "6.6.6.6")], 429),
                // IPv6 clients count by their network.
                (&from("2001:db8::1"), 200),
                (&from("2001:db8::ffff:1"), 429),
                (&from("2001:db8:0:1::1"), 200),
                // What is unreadable ends the trust: the client is the proxy in front of it.
                (&from("203.0.113.77, junk"), 200),
                (&[], 429),
            ][..],
        ),
        // A stranger is not believed.
        (
            "trusted_proxies = [\"10.0.0.0/8\"]",
            "",
            &[(&from("203.0.113.1"), 200), (&from("203.0.113.2"), 429), (&from("10.0.0.1"), 429)],
        ),
        (
            "client_ip_header = \"forwarded\"",
            "",
            &[
                (&forwarded("for=203.0.113.1;proto=https;by=10.0.0.1"), 200),
                (&forwarded("for=6.6.6.6, for=203.0.113.1, for=10.0.0.2"), 429),
                (&forwarded("for=203.0.113.9, for=_hidden"), 200),
                (&from("203.0.113.50"), 429),
            ],
        ),
        (
            "client_ip_header = \"cf-connecting-ip\"",
            "",
            &[
                (&cdn("203.0.113.1"), 200),
                (&[("x-forwarded-for", "203.0.113.9"), ("cf-connecting-ip", "203.0.113.1")], 429),
                // Two are none.
                (&[("cf-connecting-ip", "1.0.0.3"), ("cf-connecting-ip", "1.0.0.4")], 200),
                (&from("203.0.113.9"), 429),
            ],
        ),
        (
            "ipv6_prefix = 48",
            "",
            &[
                (&from("2001:db8:1:1::1"), 200),
                (&from("2001:db8:1:2::1"), 429),
                (&from("2001:db8:2:1::1"), 200),
            ],
        ),
        (
            "ipv4_prefix = 24",
            "overrides = [{ key = [\"198.51.100.0/24\"], rate = \"0/s\" }]",
            &[
                (&from("203.0.113.1"), 200),
                (&from("::ffff:203.0.113.200"), 429),
                (&from("203.0.114.1"), 200),
                (&from("198.51.100.7"), 429),
            ],
        ),
    ] {
        let trusted = if server.contains("trusted") { "" } else { TRUSTED };
        check_headers(&format!("{trusted}\n{server}"), &format!("key = [\"ip\"]\n{limit}"), steps);
    }
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
