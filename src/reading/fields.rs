//! The header fields that the proxy deals with: which a message has, and which concern one connection alone.

use http::header::{
    ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, FORWARDED, HOST,
    HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, WWW_AUTHENTICATE,
};
use smallvec::SmallVec;

/// The time-out that a gRPC client sets for its call.
pub(crate) const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Which of the fields that this proxy deals with are in a message. They are found in one pass over the
/// names. For most messages, a search for each field would cost more than all other work on the headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen(u16);

impl Seen {
    /// `connection`.
    pub(crate) const CONNECTION: Self = Self(1);
    /// `upgrade`.
    pub(crate) const UPGRADE: Self = Self(1 << 1);
    /// `te`.
    pub(crate) const TE: Self = Self(1 << 2);
    /// `transfer-encoding`.
    pub(crate) const CODING: Self = Self(1 << 3);
    /// `content-length`.
    pub(crate) const LENGTH: Self = Self(1 << 4);
    /// `expect`.
    pub(crate) const EXPECT: Self = Self(1 << 5);
    /// Another field that concerns one connection alone.
    pub(crate) const HOP: Self = Self(1 << 6);
    /// A field that says who the client is.
    pub(crate) const CLAIM: Self = Self(1 << 7);
    /// `content-type`.
    pub(crate) const TYPE: Self = Self(1 << 8);
    /// `trailer`.
    pub(crate) const TRAILER: Self = Self(1 << 9);
    /// `grpc-timeout`.
    pub(crate) const GRPC_TIMEOUT: Self = Self(1 << 10);
    /// `authorization`, `www-authenticate` or `proxy-authenticate`.
    pub(crate) const AUTH: Self = Self(1 << 11);
    /// `accept`.
    pub(crate) const ACCEPT: Self = Self(1 << 12);

    /// The fields that these headers have.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        Self(headers.keys().fold(0, |seen, name| seen | Self::one(name).0))
    }

    pub(crate) fn has(self, field: Self) -> bool {
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
            ACCEPT => Self::ACCEPT,
            AUTHORIZATION | WWW_AUTHENTICATE => Self::AUTH,
            PROXY_AUTHENTICATE => Self(Self::AUTH.0 | Self::HOP.0),
            _ if is_hop_by_hop(name) => Self::HOP,
            _ if is_claim(name) => Self::CLAIM,
            _ if *name == GRPC_TIMEOUT => Self::GRPC_TIMEOUT,
            _ => Self(0),
        }
    }
}

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Fields that concern one connection alone, besides `connection` and the fields that it names (RFC 9110,
/// 7.6.1). `upgrade`, `te` and `trailer` are handled separately.
pub(crate) const HOP_BY_HOP: [HeaderName; 4] =
    [KEEP_ALIVE, PROXY_CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION];

/// Fields that stay although `connection` names them: framing, addressing, and fields that are handled
/// separately.
pub(crate) const KEPT: [HeaderName; 7] =
    [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, TE, UPGRADE, EXPECT, CONNECTION];

/// Whether a field is always removed, from the head and from trailers.
pub(crate) fn is_hop_by_hop(name: &HeaderName) -> bool {
    HOP_BY_HOP.contains(name)
}

/// Whether a field says who the client is: `forwarded` or `x-forwarded-*`. Many servers read an underscore, and some
/// any other such character, as a dash.
pub(crate) fn is_claim(name: &HeaderName) -> bool {
    let text = name.as_str();
    let dash = |byte: &u8| !byte.is_ascii_alphanumeric();
    let x_forwarded = || text.starts_with('x') && text.get(2..11) == Some("forwarded");
    *name == FORWARDED
        || x_forwarded() && [1, 11].into_iter().all(|at| text.as_bytes().get(at).is_some_and(dash))
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
/// where no length is needed, hyper lets an empty one pass.
pub(super) fn has_malformed_length(headers: &HeaderMap, seen: Seen) -> bool {
    seen.has(Seen::LENGTH)
        && headers
            .get_all(CONTENT_LENGTH)
            .iter()
            .any(|length| length.is_empty() || !length.as_bytes().iter().all(u8::is_ascii_digit))
}

/// The length of a request's body, where the head has it.
pub(super) fn whole_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Removes the fields that `connection` names, but for those that are kept.
pub(crate) fn remove_named(
    headers: &mut HeaderMap,
    seen: Seen,
    is_kept: impl Fn(&HeaderName) -> bool,
) {
    let lines = || headers.get_all(CONNECTION).into_iter().map(HeaderValue::as_bytes);
    if !seen.has(Seen::CONNECTION) || names_nothing(lines()) {
        return;
    }
    let named: SmallVec<[HeaderName; 4]> =
        tokens(lines()).filter_map(|token| HeaderName::from_bytes(token).ok()).collect();
    for name in named.iter().filter(|name| !KEPT.contains(name) && !is_kept(name)) {
        headers.remove(name);
    }
}

/// Whether `connection` names no field: it is one line, with `keep-alive` or `close` alone. This is the
/// common case.
fn names_nothing<'h>(mut lines: impl Iterator<Item = &'h [u8]>) -> bool {
    let option = |option: &[u8]| {
        [&b"keep-alive"[..], b"close"].iter().any(|plain| option.eq_ignore_ascii_case(plain))
    };
    lines.next().is_some_and(option) && lines.next().is_none()
}

/// The members of a list field, over all its lines. They are bytes, since a member that is not text must
/// not hide the others.
pub(crate) fn listed<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'h [u8]> {
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
}
