//! Removes the fields of a request that are not forwarded to the API.

use http::header::{CONTENT_LENGTH, COOKIE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Version};

use super::fields::{Seen, is_over, remove_named};
use crate::request::client::{Client, ClientHeader};
use crate::request::known_fields::{is_claim, is_protected};
use crate::request::name::{are_alike, is_odd, remove_all};
use crate::settings::Settings;

/// Removes the fields of a request that are not forwarded to the API. The host of an absolute target replaces
/// `host`. Fields that HTTP/2 allows several times are united.
pub(super) fn strip_unforwarded(
    authority: Option<&str>,
    version: Version,
    headers: &mut HeaderMap,
    seen: Seen,
    client: &Client,
    settings: &Settings,
) {
    // A trusted proxy may have passed on the client's `connection`. That must not hide a field that is read here.
    remove_named(headers, seen, |name| {
        is_protected(name)
            || settings.server.request_id.as_ref() == Some(name)
            || client.peer_trusted && settings.known_fields.has(name)
    });
    // An untrusted client must not say who it is. Trusted proxies pass on what their clients send: `tidegate-over`, and
    // fields whose names differ from those of the proxy only in a dash, an underscore or the like. Many servers take
    // them for the same fields.
    let is_trusted = client.peer_trusted;
    if seen.has(Seen::CLAIM) {
        let is_foreign = |name: &HeaderName| is_claim(name) && (!is_trusted || is_odd(name));
        remove_all(headers, |name| is_foreign(name) || is_over(name));
    }
    if let ClientHeader::Single(own) = &settings.server.trust.header {
        remove_all(headers, |name| are_alike(name, own) && !(is_trusted && name == own));
    }
    if let Some(authority) = authority
        && let Ok(host) = HeaderValue::from_str(authority)
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
    if seen.has(Seen::ODD_LENGTH)
        && let Some(length) = headers.get(CONTENT_LENGTH).cloned()
    {
        headers.insert(CONTENT_LENGTH, length);
    }
}
