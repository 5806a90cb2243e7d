//! Hop-by-hop fields, which concern one connection alone. Also the checks of a message's framing, and the
//! trailers that may be passed on.

use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, MAX_FORWARDS,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use smallvec::SmallVec;

use super::x_forwarded::{is_address, is_claim};
use super::{Seen, listed, tokens};
use crate::plan::{Plan, ServerSpec};
use crate::request::name::are_alike;
use crate::request::trace::{TRACEPARENT, TRACESTATE};
use crate::upstream::body::Trailers;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Fields that concern one connection alone, besides `connection` and the fields that it names (RFC 9110,
/// 7.6.1). `upgrade`, `te` and `trailer` are handled separately.
const HOP_BY_HOP: [HeaderName; 4] =
    [KEEP_ALIVE, PROXY_CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION];

/// Fields that stay although `connection` names them: framing, addressing, and fields that are handled
/// separately.
const KEPT: [HeaderName; 7] =
    [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, TE, UPGRADE, EXPECT, CONNECTION];

/// Whether a field is always removed, from the head and from trailers.
pub(super) fn is_hop_by_hop(name: &HeaderName) -> bool {
    HOP_BY_HOP.contains(name)
}

/// The protocol to which a request offers to change. An offer of HTTP (`h2c`, or an older name of HTTP/2)
/// does not count: after such a change the client's requests would no longer be limited.
pub(in crate::proxy) fn upgrade(headers: &HeaderMap, seen: Seen) -> Option<HeaderValue> {
    if !seen.has(Seen::UPGRADE) {
        return None;
    }
    let value = headers.get(UPGRADE)?;
    let named = listed(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case(b"upgrade"));
    let begins = |token: &[u8], with: &[u8]| {
        token.get(..with.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(with))
    };
    let http =
        listed(headers, &UPGRADE).any(|token| begins(token, b"h2c") || begins(token, b"http"));
    (named && !http).then(|| value.clone())
}

/// Whether the transfer coding is other than chunked alone.
pub(in crate::proxy) fn has_unknown_coding(headers: &HeaderMap, seen: Seen) -> bool {
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
pub(in crate::proxy) fn has_malformed_length(headers: &HeaderMap, seen: Seen) -> bool {
    seen.has(Seen::LENGTH)
        && headers
            .get_all(CONTENT_LENGTH)
            .iter()
            .any(|length| length.is_empty() || !length.as_bytes().iter().all(u8::is_ascii_digit))
}

/// Whether a field of a request concerns more than one connection, so that `connection` cannot remove it: what
/// trusted proxies say about the client, the request ID, and the request's trace. tidegate or a trusted proxy
/// wrote it, and `connection` may come from the client.
pub(super) fn is_end_to_end(name: &HeaderName, server: &ServerSpec) -> bool {
    is_claim(name)
        || is_address(name, &server.trust)
        || server.request_id.as_ref() == Some(name)
        || *name == TRACEPARENT
        || *name == TRACESTATE
}

/// Removes the fields that `connection` names, but for those that are kept.
pub(super) fn remove_named(
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

/// Removes the fields of a request that always concern the connection alone, and `expect`, which tidegate
/// answers itself. `te` stays if it accepts trailers. The fields that `connection` names were removed before
/// routes and limits read the request.
pub(in crate::proxy) fn remove_hop_by_hop(headers: &mut HeaderMap, seen: Seen) {
    let trailers =
        seen.has(Seen::TE) && listed(headers, &TE).any(|te| te.eq_ignore_ascii_case(b"trailers"));
    remove_always(headers, seen);
    if seen.has(Seen::EXPECT) {
        headers.remove(EXPECT);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Removes the fields that always concern the connection alone. A `content-length` beside
/// `transfer-encoding` is removed too, since the chunks say where the body ends.
pub(super) fn remove_always(headers: &mut HeaderMap, seen: Seen) {
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

/// The trailers of a request that are passed on: those that the client announces and the API may believe. A
/// field that is removed or rewritten in the head, or that a limit or a route reads there, must not reach the API
/// after the body: servers that merge trailers would read it. `trailer` is rewritten to name only the trailers that
/// are passed on.
pub(in crate::proxy) fn limit_trailers(headers: &mut HeaderMap, plan: &Plan) -> Trailers {
    let kept = listed(headers, &TRAILER)
        .filter_map(|name| HeaderName::from_bytes(name).ok())
        .filter(|name| !is_hop_by_hop(name) && !KEPT.contains(name) && !NEVER_BEHIND.contains(name))
        .filter(|name| !is_end_to_end(name, &plan.server))
        .filter(|name| !plan.read_headers.iter().any(|read| are_alike(read, name)));
    let kept: Trailers = kept.collect();
    headers.remove(TRAILER);
    for name in &kept {
        headers.append(TRAILER, name.clone().into());
    }
    kept
}

/// Fields that do not belong behind a body (RFC 9110, 6.5.1). They say what a message is or where it goes,
/// and limits read them from the head.
const NEVER_BEHIND: [HeaderName; 8] = [
    AUTHORIZATION,
    CACHE_CONTROL,
    CONTENT_ENCODING,
    CONTENT_RANGE,
    CONTENT_TYPE,
    COOKIE,
    MAX_FORWARDS,
    TRAILER,
];

/// Whether `connection` names no field: it is one line, with `keep-alive` or `close` alone. This is the
/// common case.
fn names_nothing<'h>(mut lines: impl Iterator<Item = &'h [u8]>) -> bool {
    let option = |option: &[u8]| {
        [&b"keep-alive"[..], b"close"].iter().any(|plain| option.eq_ignore_ascii_case(plain))
    };
    lines.next().is_some_and(option) && lines.next().is_none()
}

/// Writes `connection` and `upgrade` for the server: the protocol to which the client offers to change.
/// `connection` also names `te`, if the client accepts trailers.
pub(in crate::proxy) fn write_connection(
    headers: &mut HeaderMap,
    seen: Seen,
    upgrade: Option<&HeaderValue>,
) {
    let trailers = seen.has(Seen::TE) && headers.contains_key(TE);
    let option = match (upgrade, trailers) {
        (None, false) => return,
        (None, true) => "te",
        (Some(_), false) => "upgrade",
        (Some(_), true) => "upgrade, te",
    };
    headers.insert(CONNECTION, HeaderValue::from_static(option));
    if let Some(protocol) = upgrade {
        headers.insert(UPGRADE, protocol.clone());
    }
}
