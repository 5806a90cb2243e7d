//! The fields that tell the API who the client is: `x-forwarded-for`, `x-forwarded-proto` and
//! `x-forwarded-host`. `reading` has removed those that an untrusted client sent.

use std::fmt::Write as _;

use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::exchange::peer::{Peer, value};
use crate::reading::Seen;
use crate::request::client::{Client, PeerAddress};

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
static X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
static X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// From whom a request came, and for which host.
pub(in crate::proxy) struct Origin<'r> {
    pub(in crate::proxy) client: &'r Client,
    pub(in crate::proxy) peer: &'r Peer,
    pub(in crate::proxy) host: HeaderValue,
}

/// Writes the `x-forwarded-*` fields. The claims of untrusted clients must have been removed before: a protocol or host
/// that is still there is believed.
pub(in crate::proxy) fn write_forwarded(headers: &mut HeaderMap, seen: Seen, origin: Origin<'_>) {
    let claims = seen.has(Seen::CLAIM);
    headers.insert(&X_FORWARDED_FOR, chain(&origin));
    let believed = |headers: &HeaderMap, name| claims && headers.contains_key(name);
    if !believed(headers, &X_FORWARDED_PROTO) {
        headers.insert(&X_FORWARDED_PROTO, origin.peer.scheme.clone());
    }
    if !believed(headers, &X_FORWARDED_HOST) {
        headers.insert(&X_FORWARDED_HOST, origin.host);
    }
}

/// The value of `x-forwarded-for`: the client, then the trusted proxies, the nearest last.
fn chain(origin: &Origin<'_>) -> HeaderValue {
    let (client, peer) = (origin.client, origin.peer);
    let own = peer.address.as_client();
    // A trusted proxy that named no client is the client itself. A Unix socket has no address to name.
    let is_named = client.peer_trusted && peer.address != PeerAddress::UnixSocket;
    let proxy = (is_named && own != client.address).then_some(own);
    if client.via.is_empty() && proxy.is_none() && client.address == own {
        return peer.text.clone();
    }
    let mut text = String::with_capacity(48);
    for address in [client.address].iter().chain(&client.via).chain(&proxy) {
        let separator = if text.is_empty() { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = write!(text, "{separator}{address}");
    }
    value(&text)
}
