//! The header fields that the proxy deals with: which a message has, and which concern one connection alone.

use http::header::{
    ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, DATE, EXPECT, HOST, HeaderMap,
    HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SERVER, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, USER_AGENT, WWW_AUTHENTICATE,
};
use memchr::memchr2_iter;
use smallvec::SmallVec;

use crate::request::known_fields::is_claim;
use crate::request::name::{are_alike, is_odd};

/// The time-out that a gRPC client sets for its call.
pub(crate) const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The field that tells the API which marking limits would refuse the request. Only tidegate writes it.
pub(crate) static TIDEGATE_OVER: HeaderName = HeaderName::from_static("tidegate-over");

/// Which of the fields that this proxy deals with are in a message. They are found in one pass over the
/// fields. For most messages, a search for each field would cost more than all other work on the headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen(u16);

impl Seen {
    pub(crate) const CONNECTION: Self = Self(1);
    pub(crate) const UPGRADE: Self = Self(1 << 1);
    pub(crate) const TE: Self = Self(1 << 2);
    /// `transfer-encoding`.
    pub(crate) const CODING: Self = Self(1 << 3);
    /// `content-length`.
    pub(crate) const LENGTH: Self = Self(1 << 4);
    pub(crate) const EXPECT: Self = Self(1 << 5);
    /// Another field that concerns one connection alone.
    pub(crate) const HOP: Self = Self(1 << 6);
    /// A field that says who the client is, or one like [`TIDEGATE_OVER`].
    pub(crate) const CLAIM: Self = Self(1 << 7);
    /// `content-type`.
    pub(crate) const TYPE: Self = Self(1 << 8);
    /// `trailer`.
    pub(crate) const TRAILER: Self = Self(1 << 9);
    /// `grpc-timeout`.
    pub(crate) const GRPC_TIMEOUT: Self = Self(1 << 10);
    /// `authorization`, `www-authenticate` or `proxy-authenticate`.
    pub(crate) const AUTH: Self = Self(1 << 11);
    /// `accept` with the word JSON.
    pub(crate) const JSON: Self = Self(1 << 12);

    /// A `connection` that may name fields.
    const NAMES: Self = Self(1 << 13);
    /// `content-length` that is repeated, or no number of at most 19 digits. Such a number always fits into a `u64`.
    pub(crate) const ODD_LENGTH: Self = Self(1 << 14);
    /// Another field whose name some servers may read as one with dashes.
    pub(crate) const ODD_NAME: Self = Self(1 << 15);

    /// The fields that these headers have.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        headers.iter().fold(Self(0), |seen, (name, value)| seen.with(name, value.as_bytes()))
    }

    pub(crate) fn has(self, field: Self) -> bool {
        self.0 & field.0 != 0
    }

    fn with(self, name: &HeaderName, value: &[u8]) -> Self {
        let field = match *name {
            CONNECTION if names_nothing(value) => Self::CONNECTION,
            CONNECTION => Self(Self::CONNECTION.0 | Self::NAMES.0),
            UPGRADE => Self::UPGRADE,
            TE => Self::TE,
            TRANSFER_ENCODING => Self::CODING,
            CONTENT_LENGTH if is_plain(value) && !self.has(Self::LENGTH) => Self::LENGTH,
            CONTENT_LENGTH => Self(Self::LENGTH.0 | Self::ODD_LENGTH.0),
            EXPECT => Self::EXPECT,
            CONTENT_TYPE => Self::TYPE,
            TRAILER => Self::TRAILER,
            ACCEPT if names_json(value) => Self::JSON,
            AUTHORIZATION | WWW_AUTHENTICATE => Self::AUTH,
            PROXY_AUTHENTICATE => Self(Self::AUTH.0 | Self::HOP.0),
            PROXY_AUTHORIZATION => Self::HOP,
            ACCEPT | HOST | USER_AGENT | DATE | SERVER => Self(0),
            _ if is_hop_by_hop(name) => Self::HOP,
            _ if is_claim(name) || is_over(name) => Self::CLAIM,
            _ if *name == GRPC_TIMEOUT => Self::GRPC_TIMEOUT,
            _ if is_odd(name) => Self::ODD_NAME,
            _ => Self(0),
        };
        Self(self.0 | field.0)
    }
}

/// Whether a `connection` field names no other field: it has `keep-alive` or `close` alone. This is the common case.
fn names_nothing(value: &[u8]) -> bool {
    // The usual spellings are compared as a whole, which costs less.
    matches!(value, b"keep-alive" | b"Keep-Alive" | b"close")
        || [&b"keep-alive"[..], b"close"].iter().any(|option| value.eq_ignore_ascii_case(option))
}

/// Whether a field has the word JSON, in any case of letters.
fn names_json(value: &[u8]) -> bool {
    let mut begins = memchr2_iter(b'j', b'J', value);
    begins.any(|at| value[at..].get(..4).is_some_and(|word| word.eq_ignore_ascii_case(b"json")))
}

/// Whether a length is a number that fits into a `u64`, in digits alone.
fn is_plain(length: &[u8]) -> bool {
    (1..20).contains(&length.len()) && length.iter().all(u8::is_ascii_digit)
}

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Fields that concern one connection alone, besides `connection` and the fields that it names (RFC 9110,
/// 7.6.1). `upgrade`, `te` and `trailer` are handled separately.
const HOP_BY_HOP: [HeaderName; 4] =
    [KEEP_ALIVE, PROXY_CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION];

/// Whether a field is always removed, from the head and from trailers.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    HOP_BY_HOP.contains(name)
}

/// Whether some server takes the field for [`TIDEGATE_OVER`].
pub(super) fn is_over(name: &HeaderName) -> bool {
    are_alike(name, &TIDEGATE_OVER)
}

/// Whether the transfer coding is other than chunked alone.
pub(crate) fn has_unknown_coding(headers: &HeaderMap, seen: Seen) -> bool {
    if !seen.has(Seen::CODING) {
        return false;
    }
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => false,
        (Some(coding), None) => !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => true,
    }
}

/// Whether a `content-length` is not a number. Over HTTP/1.1 hyper refuses such a request. Over HTTP/2,
/// if no length is needed, hyper lets an empty one pass.
pub(super) fn has_malformed_length(headers: &HeaderMap, seen: Seen) -> bool {
    seen.has(Seen::ODD_LENGTH)
        && headers
            .get_all(CONTENT_LENGTH)
            .iter()
            .any(|length| length.is_empty() || !length.as_bytes().iter().all(u8::is_ascii_digit))
}

/// Removes the fields that `connection` names. A field for which `is_kept` is true stays. Another step may still remove
/// it.
pub(crate) fn remove_named(
    headers: &mut HeaderMap,
    seen: Seen,
    is_kept: impl Fn(&HeaderName) -> bool,
) {
    if !seen.has(Seen::NAMES) {
        return;
    }
    let named: SmallVec<[HeaderName; 4]> = listed(headers, &CONNECTION)
        .filter_map(|token| HeaderName::from_bytes(token).ok())
        .collect();
    for name in named.iter().filter(|name| !is_kept(name)) {
        headers.remove(name);
    }
}

/// Removes the fields that always concern the connection alone. A `content-length` beside
/// `transfer-encoding` is removed too, since the chunks say where the body ends.
pub(crate) fn remove_connection_fields(headers: &mut HeaderMap, seen: Seen) {
    if seen.has(Seen::CONNECTION) {
        headers.remove(CONNECTION);
    }
    if seen.has(Seen::HOP) {
        for name in HOP_BY_HOP {
            headers.remove(name);
        }
    }
    if seen.has(Seen::UPGRADE) {
        headers.remove(UPGRADE);
    }
    if seen.has(Seen::TE) {
        headers.remove(TE);
    }
    if seen.has(Seen::CODING) {
        headers.remove(TRANSFER_ENCODING);
        headers.remove(CONTENT_LENGTH);
    }
}

/// The members of a list field, over all its lines. They are bytes, since a member that is not text must
/// not hide the others.
pub(crate) fn listed<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'h [u8]> {
    let lines = headers.get_all(name).into_iter().map(HeaderValue::as_bytes);
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
            ("connection", Seen(Seen::CONNECTION.0 | Seen::NAMES.0)),
            ("upgrade", Seen::UPGRADE),
            ("te", Seen::TE),
            ("transfer-encoding", Seen::CODING),
            ("content-length", Seen(Seen::LENGTH.0 | Seen::ODD_LENGTH.0)),
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
            ("tidegate-over", Seen::CLAIM),
            ("tidegate_over", Seen::CLAIM),
            ("tidegate-overs", Seen(0)),
            ("content_length", Seen::ODD_NAME),
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
    fn common_fields_are_not_looked_at_again() {
        for (lines, seen) in [
            (&[("connection", "keep-alive")][..], Seen::CONNECTION),
            (&[("connection", "Close")], Seen::CONNECTION),
            (&[("connection", "close, x-own")], Seen(Seen::CONNECTION.0 | Seen::NAMES.0)),
            (
                &[("connection", "close"), ("connection", "x-own")],
                Seen(Seen::CONNECTION.0 | Seen::NAMES.0),
            ),
            (&[("content-length", "1234567890123456789")], Seen::LENGTH),
            (&[("accept", "text/html, application/xjs, */*")], Seen(0)),
            (&[("accept", "*/*"), ("accept", "text/j, application/vnd.a+Json")], Seen::JSON),
            (
                &[("content-length", "12345678901234567890")],
                Seen(Seen::LENGTH.0 | Seen::ODD_LENGTH.0),
            ),
            (
                &[("content-length", "1"), ("content-length", "1")],
                Seen(Seen::LENGTH.0 | Seen::ODD_LENGTH.0),
            ),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.append(*name, HeaderValue::from_static(value));
            }
            assert_eq!(Seen::of(&headers), seen, "{lines:?}");
        }
    }
}
