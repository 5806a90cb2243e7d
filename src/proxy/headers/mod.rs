//! The changes to header fields on the way through the proxy. `hop` has those that concern one connection,
//! `answer` those to the upstream's answer, `forwarded` the client's identity, `quotas` the `ratelimit`
//! fields. This file has the rest, and [`Seen`], which tells which fields a message has.

pub(super) mod answer;
pub(super) mod hop;
pub(super) mod quotas;
pub(super) mod x_forwarded;

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT, HOST, HeaderMap,
    HeaderName, HeaderValue, PROXY_AUTHENTICATE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
    WWW_AUTHENTICATE,
};
use http::{Uri, Version};

use super::grpc;
use crate::plan::{HeaderChanges, RouteSpec, ServerSpec};
use crate::request::client::Client;

/// The name of a field that came over HTTP/2 and is no token (RFC 9110, 5.1). h2 lets a quotation mark pass. A
/// message with such a name is malformed (RFC 9113, 10.3), because HTTP/1.1 does not allow the name.
pub(super) fn invalid_name(headers: &HeaderMap) -> Option<&HeaderName> {
    headers.keys().find(|name| name.as_str().contains('"'))
}

/// Which of the fields that this proxy deals with are in a message. They are found in one pass over the
/// names. For most messages, a search for each field would cost more than all other work on the headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen(u16);

impl Seen {
    /// `connection`.
    pub(super) const CONNECTION: Self = Self(1);
    /// `upgrade`.
    pub(super) const UPGRADE: Self = Self(1 << 1);
    /// `te`.
    pub(super) const TE: Self = Self(1 << 2);
    /// `transfer-encoding`.
    pub(super) const CODING: Self = Self(1 << 3);
    /// `content-length`.
    pub(super) const LENGTH: Self = Self(1 << 4);
    /// `expect`.
    pub(super) const EXPECT: Self = Self(1 << 5);
    /// Another field that concerns one connection alone.
    pub(super) const HOP: Self = Self(1 << 6);
    /// A field that says who the client is.
    pub(super) const CLAIM: Self = Self(1 << 7);
    /// `content-type`.
    pub(super) const TYPE: Self = Self(1 << 8);
    /// `trailer`.
    pub(super) const TRAILER: Self = Self(1 << 9);
    /// `grpc-timeout`.
    pub(super) const GRPC_TIMEOUT: Self = Self(1 << 10);
    /// `authorization`, `www-authenticate` or `proxy-authenticate`.
    pub(super) const AUTH: Self = Self(1 << 11);

    /// The fields that these headers have.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        Self(headers.keys().fold(0, |seen, name| seen | Self::one(name).0))
    }

    pub(super) fn has(self, field: Self) -> bool {
        self.0 & field.0 != 0
    }

    fn one(name: &HeaderName) -> Self {
        match *name {
            CONNECTION => Self::CONNECTION,
            UPGRADE => Self::UPGRADE,
            TE => Self::TE,
            TRANSFER_ENCODING => Self::CODING,
            CONTENT_LENGTH => Self::LENGTH,
            EXPECT => Self::EXPECT,
            CONTENT_TYPE => Self::TYPE,
            TRAILER => Self::TRAILER,
            HOST => Self(0),
            AUTHORIZATION | WWW_AUTHENTICATE => Self::AUTH,
            PROXY_AUTHENTICATE => Self(Self::AUTH.0 | Self::HOP.0),
            _ if hop::is_hop_by_hop(name) => Self::HOP,
            _ if x_forwarded::is_claim(name) => Self::CLAIM,
            _ if grpc::is_timeout(name) => Self::GRPC_TIMEOUT,
            _ => Self(0),
        }
    }
}

/// Whether a request or an answer takes part in an authentication that holds for the whole connection, by NTLM
/// or Negotiate (RFC 4559, 6), also under other names that begin alike.
pub(super) fn authenticates_connection(headers: &HeaderMap, seen: Seen) -> bool {
    let is_such = |scheme: &[u8]| {
        let begin = scheme.trim_ascii_start().get(..4).unwrap_or_default();
        [b"ntlm", b"nego"].iter().any(|such| begin.eq_ignore_ascii_case(*such))
    };
    seen.has(Seen::AUTH)
        && (headers.get_all(AUTHORIZATION).iter().any(|value| is_such(value.as_bytes()))
            || listed(headers, &WWW_AUTHENTICATE).any(is_such)
            || listed(headers, &PROXY_AUTHENTICATE).any(is_such))
}

/// Removes the fields of a request that are not forwarded to the API. This comes before routes and limits
/// read the request: they must not use a field that the API does not see. The host of an absolute target
/// replaces `host`. Fields that HTTP/2 allows several times are united.
pub(super) fn strip_unforwarded(
    uri: &Uri,
    version: Version,
    headers: &mut HeaderMap,
    seen: Seen,
    client: &Client,
    server: &ServerSpec,
) {
    hop::remove_named(headers, seen, |name| hop::is_end_to_end(name, server));
    let trust = &server.trust;
    match client.peer_trusted {
        true => x_forwarded::remove_twins(headers, seen, trust),
        false => x_forwarded::remove_claims(headers, seen, trust),
    }
    if let Some(authority) = uri.authority()
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        headers.insert(HOST, host);
    }
    if version == Version::HTTP_2 {
        join_cookies(headers);
        say_length_once(headers, seen);
    }
}

/// Joins the `cookie` fields into one. Over HTTP/2 a client may split a cookie into several fields (RFC
/// 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut crumbs = headers.get_all(COOKIE).iter();
    let (Some(first), Some(second)) = (crumbs.next(), crumbs.next()) else { return };
    let mut whole = first.as_bytes().to_vec();
    for crumb in std::iter::once(second).chain(crumbs) {
        whole.extend_from_slice(b"; ");
        whole.extend_from_slice(crumb.as_bytes());
    }
    if let Ok(whole) = HeaderValue::from_bytes(&whole) {
        headers.insert(COOKIE, whole);
    }
}

/// Leaves one `content-length`. Over HTTP/2 a client may repeat it; h2 has refused lengths that differ.
fn say_length_once(headers: &mut HeaderMap, seen: Seen) {
    if seen.has(Seen::LENGTH)
        && let Some(length) = headers.get(CONTENT_LENGTH).cloned()
    {
        headers.insert(CONTENT_LENGTH, length);
    }
}

/// Makes a route's changes to a request or an answer.
pub(super) fn change(headers: &mut HeaderMap, changes: &HeaderChanges) {
    for name in &changes.remove {
        headers.remove(name);
    }
    for (name, value) in &changes.set {
        headers.insert(name, value.clone());
    }
    for (name, value) in &changes.add {
        headers.append(name, value.clone());
    }
}

/// Makes the changes of a route's `response_headers` to an answer. They come after all other fields, also on an
/// answer of tidegate's own: a page of another site can read a 429 and its `retry-after` only where CORS fields
/// allow it.
pub(super) fn change_answer(headers: &mut HeaderMap, route: &RouteSpec) {
    if let Some(changes) = &route.options().response {
        change(headers, changes);
    }
}

/// The members of a list field, over all its lines. They are bytes, since a member that is not text must
/// not hide the others.
fn listed<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h [u8]> {
    tokens(headers.get_all(name).into_iter().map(HeaderValue::as_bytes))
}

/// The members of a list field that has these lines.
fn tokens<'h>(lines: impl Iterator<Item = &'h [u8]>) -> impl Iterator<Item = &'h [u8]> {
    lines
        .flat_map(|line| line.split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_that_is_dealt_with_is_seen() {
        for (name, seen) in [
            ("connection", Seen::CONNECTION),
            ("upgrade", Seen::UPGRADE),
            ("te", Seen::TE),
            ("transfer-encoding", Seen::CODING),
            ("content-length", Seen::LENGTH),
            ("expect", Seen::EXPECT),
            ("keep-alive", Seen::HOP),
            ("proxy-connection", Seen::HOP),
            ("proxy-authenticate", Seen(Seen::HOP.0 | Seen::AUTH.0)),
            ("authorization", Seen::AUTH),
            ("www-authenticate", Seen::AUTH),
            ("proxy-authorization", Seen::HOP),
            ("forwarded", Seen::CLAIM),
            ("x-forwarded-for", Seen::CLAIM),
            ("x_forwarded_for", Seen::CLAIM),
            ("x.forwarded.for", Seen::CLAIM),
            ("x-forwarded-anything", Seen::CLAIM),
            ("x-forwarded", Seen(0)),
            ("x-forward-for", Seen(0)),
            ("content-type", Seen::TYPE),
            ("trailer", Seen::TRAILER),
            ("grpc-timeout", Seen::GRPC_TIMEOUT),
            ("accept", Seen(0)),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("host", HeaderValue::from_static("a"));
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static("a"));
            assert_eq!(Seen::of(&headers), seen, "{name}");
        }
    }

    #[test]
    fn ntlm_and_negotiate_hold_for_the_whole_connection() {
        let is_such = |name: &'static str, lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(name, line.parse().unwrap());
            }
            authenticates_connection(&headers, Seen::of(&headers))
        };
        for name in ["authorization", "www-authenticate", "proxy-authenticate"] {
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
    }
}
