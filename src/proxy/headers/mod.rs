//! The changes to header fields on the way through the proxy. `hop` has those that concern one connection,
//! `response` those to the upstream's answer, `x_forwarded` the client's identity. This file has the rest. The fields that neither routes nor limits nor the API may read are removed before
//! this, by `reading`.

pub(super) mod hop;
pub(super) mod response;
pub(super) mod x_forwarded;

use http::header::{AUTHORIZATION, HeaderMap, PROXY_AUTHENTICATE, WWW_AUTHENTICATE};

use crate::reading::{Seen, listed};
use crate::upstream::Purpose;

/// Whether an answer's server authenticates the connection, by NTLM or Negotiate (RFC 4559, 6), also under other names
/// that begin alike.
pub(super) fn challenges_connection(headers: &HeaderMap, seen: Seen) -> bool {
    let is_such = |scheme: &[u8]| begins(scheme, b"ntlm") || begins(scheme, b"nego");
    seen.has(Seen::AUTH)
        && (listed(headers, &WWW_AUTHENTICATE).any(is_such)
            || listed(headers, &PROXY_AUTHENTICATE).any(is_such))
}

/// What the client's `authorization` needs of the connection. A token of Negotiate may authenticate it at once, so
/// nobody else may use it afterwards. With NTLM nothing happens before the server's challenge, which ends the
/// connection; over HTTP/2 it would not end.
pub(super) fn authorized_by(headers: &HeaderMap, seen: Seen) -> Option<Purpose> {
    if !seen.has(Seen::AUTH) {
        return None;
    }
    headers.get_all(AUTHORIZATION).iter().find_map(|value| match value.as_bytes() {
        scheme if begins(scheme, b"nego") => Some(Purpose::Own),
        scheme if begins(scheme, b"ntlm") => Some(Purpose::Http1),
        _ => None,
    })
}

fn begins(scheme: &[u8], with: &[u8; 4]) -> bool {
    scheme.trim_ascii_start().get(..4).is_some_and(|begin| begin.eq_ignore_ascii_case(with))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(name, line.parse().unwrap());
        }
        headers
    }

    #[test]
    fn ntlm_and_negotiate_hold_for_the_whole_connection() {
        let is_such = |name: &'static str, lines: &[&str]| {
            let headers = with(name, lines);
            challenges_connection(&headers, Seen::of(&headers))
        };
        for name in ["www-authenticate", "proxy-authenticate"] {
            for value in ["NTLM", "ntlm TlRM", "Negotiate", "NEGOTIATE YII=", "Nego2", "\tNTLM"] {
                assert!(is_such(name, &[value]), "{name}: {value}");
                assert!(is_such(name, &["Basic YTpi", value]), "{name}: {value}");
            }
            for value in ["", "Basic YTpi", "Bearer ntlm", "NT", "Digest realm=\"a\""] {
                assert!(!is_such(name, &[value]), "{name}: {value}");
            }
        }
        assert!(is_such("www-authenticate", &["Basic realm=\"a\",NtLm"]));
        assert!(is_such("proxy-authenticate", &["Digest realm=\"a\", nonce=b, Negotiate"]));
        assert!(!is_such("x-authenticate", &["NTLM"]));
        assert!(!is_such("authorization", &["NTLM"]), "a client challenges nobody");
    }

    #[test]
    fn a_client_authenticates_the_connection_by_negotiate_alone() {
        let (own, http1) = (Some(Purpose::Own), Some(Purpose::Http1));
        for (lines, needs) in [
            (&["Negotiate YII="][..], own),
            (&["\tnego2"], own),
            (&["Basic YTpi", "Negotiate YII="], own),
            (&["NTLM TlRM"], http1),
            (&["ntlm"], http1),
            (&["Bearer NTLM"], None),
            (&["Neg"], None),
            (&[], None),
        ] {
            let headers = with("authorization", lines);
            assert_eq!(authorized_by(&headers, Seen::of(&headers)), needs, "{lines:?}");
        }
    }
}
