//! What changes in a message's headers on its way through.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, TE,
    TRANSFER_ENCODING, UPGRADE,
};
use smallvec::SmallVec;

use crate::limit::decision::Outcome;
use crate::plan::HeaderChanges;
use crate::request::client::{Client, ClientHeader, Trust};
use crate::throttle::Quota;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const RETRY_AFTER: HeaderName = http::header::RETRY_AFTER;
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// Fields that concern one connection alone, beside `connection` and what it names
/// (RFC 9110, 7.6.1). `te` and `trailer` are looked at on their own.
const HOP_BY_HOP: [HeaderName; 5] = [
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("proxy-authenticate"),
    HeaderName::from_static("proxy-authorization"),
    UPGRADE,
];

/// The protocol that a message offers or accepts to change to; an offer of h2c is none, since
/// whoever accepted it would no longer be limited.
pub(super) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let value = headers.get(UPGRADE)?;
    let named = listed(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"));
    let h2c = listed(headers, &UPGRADE).any(|token| token.eq_ignore_ascii_case("h2c"));
    (named && !h2c).then(|| value.clone())
}

/// Whether a request's body is coded in another way than chunked alone.
pub(super) fn has_unknown_coding(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => false,
        (Some(coding), None) => !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => true,
    }
}

/// Takes out what concerns the connection alone.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let named: SmallVec<[HeaderName; 4]> = listed(headers, &CONNECTION)
            .filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok())
            // Framing and addressing are not for a client to take out.
            .filter(|name| ![HOST, CONTENT_LENGTH, TRANSFER_ENCODING, TE].contains(name))
            .collect();
        for name in named {
            headers.remove(name);
        }
        headers.remove(CONNECTION);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    if headers.contains_key(TE) {
        let trailers = listed(headers, &TE).any(|token| token.eq_ignore_ascii_case("trailers"));
        headers.remove(TE);
        if trailers {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
    }
    // A length beside chunks is not the length of anything.
    if headers.remove(TRANSFER_ENCODING).is_some() {
        headers.remove(CONTENT_LENGTH);
    }
}

/// Writes what concerns the connection to the server: the protocol that the client offers to
/// change to, and that trailers are understood.
pub(super) fn write_connection(headers: &mut HeaderMap, upgrade: Option<&HeaderValue>) {
    let option = match (upgrade, headers.contains_key(TE)) {
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

/// Says a response's length once, as a number: servers may repeat it (RFC 9110, 8.6), and not every
/// client reads that. Lengths that differ frame no body here, so they go.
pub(super) fn unite_lengths(headers: &mut HeaderMap) {
    let mut lines = headers.get_all(CONTENT_LENGTH).iter();
    match (lines.next(), lines.next()) {
        (None, _) => return,
        (Some(line), None) if !line.as_bytes().contains(&b',') => return,
        _ => {}
    }
    let lengths: SmallVec<[_; 4]> =
        listed(headers, &CONTENT_LENGTH).map(|text| text.parse::<u64>().ok()).collect();
    match lengths.first() {
        Some(Some(length)) if lengths.iter().all(|other| *other == Some(*length)) => {
            let length = HeaderValue::from(*length);
            headers.insert(CONTENT_LENGTH, length);
        }
        _ => {
            headers.remove(CONTENT_LENGTH);
        }
    }
}

fn listed<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> {
    headers
        .get_all(name)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|token| !token.is_empty())
}

/// From whom a request came, and over what, for the `x-forwarded-*` fields.
pub(super) struct Origin<'r> {
    pub(super) trust: &'r Trust,
    pub(super) client: &'r Client,
    pub(super) peer: SocketAddr,
    pub(super) host: HeaderValue,
}

/// Writes who the client is, and takes out what strangers said of it.
pub(super) fn write_forwarded(headers: &mut HeaderMap, origin: &Origin<'_>) {
    if !origin.client.peer_trusted {
        let claimed: SmallVec<[HeaderName; 4]> =
            headers.keys().filter(|name| is_claim(name.as_str())).cloned().collect();
        for name in claimed {
            headers.remove(name);
        }
        if let ClientHeader::Single(name) = &origin.trust.header {
            headers.remove(name);
        }
    }
    if let Some(chain) = chain(origin) {
        headers.insert(X_FORWARDED_FOR, chain);
    }
    if !headers.contains_key(X_FORWARDED_PROTO) {
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static("http"));
    }
    if !headers.contains_key(X_FORWARDED_HOST) {
        headers.insert(X_FORWARDED_HOST, origin.host.clone());
    }
}

/// Whether a field says who the client is. Many servers read an underscore as a dash.
fn is_claim(name: &str) -> bool {
    let dash = |byte: &u8| matches!(byte, b'-' | b'_');
    let x_forwarded = name.starts_with("x") && name.get(2..11) == Some("forwarded");
    name == FORWARDED
        || x_forwarded && [1, 11].into_iter().all(|at| name.as_bytes().get(at).is_some_and(dash))
}

/// The client and the trusted proxies behind it, the nearest last.
fn chain(origin: &Origin<'_>) -> Option<HeaderValue> {
    let mut text = String::with_capacity(48);
    let peer = origin.peer.ip().to_canonical();
    let behind = origin.client.peer_trusted.then_some(peer);
    // A trusted proxy that named nobody is the client itself.
    let behind = behind.filter(|peer| *peer != origin.client.address);
    let all = [origin.client.address].into_iter().chain(origin.client.via.iter().copied());
    for address in all.chain(behind) {
        push(&mut text, address);
    }
    HeaderValue::from_str(&text).ok()
}

fn push(text: &mut String, address: IpAddr) {
    if !text.is_empty() {
        text.push_str(", ");
    }
    // Writing to a string cannot fail.
    let _ = write!(text, "{address}");
}

/// Takes out what is answered by this proxy and not passed on.
pub(super) fn remove_answered(headers: &mut HeaderMap) {
    headers.remove(EXPECT);
}

/// Makes a route's changes.
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

/// Writes what the limits say to the client: `ratelimit-policy` and `ratelimit` as in
/// draft-ietf-httpapi-ratelimit-headers-11, and the older `x-ratelimit-*`, each for the limits
/// whose answer asks for it.
pub(super) fn write_quotas(
    headers: &mut HeaderMap,
    quotas: &[Quota],
    default: &crate::plan::AnswerSpec,
) {
    let mut policy = String::new();
    let mut state = String::new();
    let mut tightest: Option<&Quota> = None;
    for quota in quotas {
        let answer = quota.limit.reject.as_deref().unwrap_or(default);
        if answer.ratelimit {
            write_member(&mut policy, &mut state, quota);
        }
        if answer.x_ratelimit && tightest.is_none_or(|other| is_tighter(quota, other)) {
            tightest = Some(quota);
        }
    }
    if !policy.is_empty() {
        insert(headers, RATELIMIT_POLICY, policy);
        insert(headers, RATELIMIT, state);
    }
    if let Some(quota) = tightest {
        insert(headers, X_RATELIMIT_LIMIT, quota.burst.to_string());
        insert(headers, X_RATELIMIT_REMAINING, quota.remaining.to_string());
        if let Some(seconds) = reset(quota) {
            insert(headers, X_RATELIMIT_RESET, seconds.to_string());
        }
    }
}

/// `retry-after` in whole seconds, rounded up, at least 1.
pub(super) fn write_retry_after(headers: &mut HeaderMap, wait: std::time::Duration) {
    headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
}

fn write_member(policy: &mut String, state: &mut String, quota: &Quota) {
    let name = &quota.limit.name;
    for text in [&mut *policy, &mut *state] {
        if !text.is_empty() {
            text.push_str(", ");
        }
    }
    // Writing to a string cannot fail.
    let _ = write!(policy, "\"{name}\";q={}", quota.burst);
    if let Some(window) = quota.window {
        let _ = write!(policy, ";w={window}");
    }
    let _ = write!(state, "\"{name}\";r={}", quota.remaining);
    if let Some(seconds) = reset(quota) {
        let _ = write!(state, ";t={seconds}");
    }
}

/// The seconds after which a limit is as it was: its window, or what a refused client waits.
fn reset(quota: &Quota) -> Option<u64> {
    match quota.outcome {
        Outcome::Allow => quota.window,
        Outcome::Reject { retry_after } => retry_after.map(whole_seconds),
    }
}

fn whole_seconds(wait: std::time::Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

fn is_tighter(quota: &Quota, other: &Quota) -> bool {
    let refuses = |quota: &Quota| quota.outcome != Outcome::Allow;
    (refuses(quota) && !refuses(other))
        || (refuses(quota) == refuses(other) && quota.remaining < other.remaining)
}

fn insert(headers: &mut HeaderMap, name: HeaderName, text: String) {
    if let Ok(value) = HeaderValue::from_maybe_shared(bytes::Bytes::from(text)) {
        headers.insert(name, value);
    }
}
