//! Hop-by-hop fields, which concern one connection alone. Also the trailers that may be passed on.

use http::header::{CONNECTION, EXPECT, HeaderMap, HeaderName, HeaderValue, TE, TRAILER, UPGRADE};

use crate::reading::{Seen, listed, remove_connection_fields};
use crate::settings::Settings;
use crate::upstream::body::Trailers;

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

/// Removes the fields of a request that always concern the connection alone, and `expect`, which tidegate
/// answers itself. `te` stays if it accepts trailers. The fields that `connection` names were removed before
/// routes and limits read the request.
pub(in crate::proxy) fn remove_hop_by_hop(headers: &mut HeaderMap, seen: Seen) {
    let trailers =
        seen.has(Seen::TE) && listed(headers, &TE).any(|te| te.eq_ignore_ascii_case(b"trailers"));
    remove_connection_fields(headers, seen);
    if seen.has(Seen::EXPECT) {
        headers.remove(EXPECT);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// The trailers of a request that are passed on: those that the client announces and the API may believe. A field that
/// the proxy knows from the head must not reach the API after the body: servers that merge trailers would read it.
/// `trailer` is rewritten to name only the trailers that are passed on.
pub(in crate::proxy) fn limit_trailers(headers: &mut HeaderMap, settings: &Settings) -> Trailers {
    let kept = listed(headers, &TRAILER)
        .filter_map(|name| HeaderName::from_bytes(name).ok())
        .filter(|name| !settings.known_fields.has(name));
    let kept: Trailers = kept.collect();
    headers.remove(TRAILER);
    for name in &kept {
        headers.append(TRAILER, name.clone().into());
    }
    kept
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
