//! Carries a request upstream and brings back what comes of it.

use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderValue, TRAILER, UPGRADE};
use http::uri::PathAndQuery;
use http::{HeaderMap, StatusCode, Uri, Version};

use super::answer::Answer;
use super::body::ResponseBody;
use super::headers::forwarded::{Forwarded, Origin};
use super::headers::{self, Seen, answer, hop};
use super::refusal::Refusal;
use super::tunnel::Switched;
use super::{Connection, Exchange};
use crate::plan::{Plan, RouteSpec};
use crate::request::client::Client;
use crate::request::path::NormalPath;
use crate::request::route::Rewrite;
use crate::throttle::Slots;
use crate::upstream::body::RequestBody;
use crate::upstream::{Answered, RequestHead, Upstream, UpstreamError};

/// Which way a request goes.
pub(super) struct Way<'r> {
    pub(super) plan: &'r Plan,
    pub(super) upstream: &'r Upstream,
    pub(super) route: &'r RouteSpec,
    pub(super) client: &'r Client,
    /// Which fields the request has.
    pub(super) seen: Seen,
}

/// Sends the request upstream and takes what comes back as the exchange's answer.
///
/// `target` is the path and query to ask for, where they are not the client's.
pub(super) async fn send(
    exchange: &mut Exchange,
    connection: &Connection,
    target: Option<Uri>,
    way: Way<'_>,
) -> Result<(), Refusal<'static>> {
    let Way { plan, upstream, route, client, seen } = way;
    // With unread input behind its request a client's end goes unnoticed: look before anything is
    // done in its name.
    if connection.socket.has_left() {
        return Err(Refusal::ClientLeft);
    }
    // HTTP/1.0 knows no upgrades (RFC 9110, 7.8).
    let offered = exchange.parts.version == Version::HTTP_11;
    let switching = hop::upgrade(&exchange.parts.headers, seen).filter(|_| offered);
    let body = body_of(exchange, plan);
    exchange.body_end = body.end();
    let parts = &mut exchange.parts;
    let sent = &mut parts.headers;
    let host = write_host(sent, upstream);
    hop::remove_hop_by_hop(sent, seen);
    if !body.is_empty() && sent.contains_key(TRAILER) {
        hop::limit_trailers(sent, &plan.server.trust);
    }
    let forwarded = Forwarded::of(Origin { client, peer: &connection.peer, host });
    let fields;
    let more: &[_] = if route.request_headers().is_none() && !seen.has(Seen::CLAIM) {
        // Nothing can be there of these names, so that they need not go through a table.
        fields = forwarded.fields();
        &fields
    } else {
        forwarded.write(sent, seen);
        &[]
    };
    hop::write_connection(sent, seen, switching.as_ref());
    if let Some(changes) = route.request_headers() {
        headers::change(sent, changes);
    }
    let asked = target.as_ref().unwrap_or(&parts.uri).path_and_query();
    let head = RequestHead {
        method: &parts.method,
        target: asked.map_or("/", PathAndQuery::as_str),
        headers: sent,
        more,
    };
    let answered =
        upstream.send(head, body).await.map_err(|error| match exchange.body_end.fault() {
            Some(fault) => Refusal::Body(fault),
            None => Refusal::Upstream(error),
        })?;
    exchange.server = Some(answered.server.clone());
    if answered.head.status == StatusCode::SWITCHING_PROTOCOLS {
        let server = answered.server.clone();
        let switched = switching.and_then(|_| switch(answered, plan));
        exchange.answer = switched.ok_or(Refusal::Upstream(UpstreamError::Switched { server }))?;
        return Ok(());
    }
    let Answered { head, body, server } = answered;
    let answer = &mut exchange.answer;
    answer.fields = head.fields.with_space_of(std::mem::take(&mut answer.fields));
    if answer::take_hop_by_hop(&mut answer.fields).is_err() {
        return Err(Refusal::Upstream(UpstreamError::Coding { server }));
    }
    (answer.status, answer.reason) = (head.status, head.reason);
    answer.body = Some(ResponseBody::streamed(body, upstream.spec().idle_timeout, server));
    Ok(())
}

fn body_of(exchange: &mut Exchange, plan: &Plan) -> RequestBody {
    match exchange.body.take() {
        Some(body) => {
            RequestBody::streamed(body, plan.server.max_body_size, plan.server.body_timeout)
        }
        None => RequestBody::empty(),
    }
}

/// Writes the host that the upstream is asked for, and returns it: the client's, or (where an
/// HTTP/1.0 client named none) the server's own.
fn write_host(headers: &mut HeaderMap, upstream: &Upstream) -> HeaderValue {
    if let Some(host) = headers.get(HOST) {
        return host.clone();
    }
    let server = upstream.spec().servers.first();
    let host = server.map_or("", |server| server.url.trim_start_matches("http://"));
    let host = HeaderValue::from_str(host).unwrap_or_else(|_| HeaderValue::from_static(""));
    headers.insert(HOST, host.clone());
    host
}

/// Passes the answer to an upgrade on, with the server's side of what follows behind it. `None` where
/// the server did not wait for the request's end.
fn switch(answered: Answered, plan: &Plan) -> Option<Answer> {
    let Answered { head, body, .. } = answered;
    let server = body.into_upgraded()?;
    let mut fields = head.fields;
    let protocol = fields.values(&UPGRADE).next().map(HeaderValue::from_bytes);
    // Nothing of HTTP follows, however it would be coded.
    let _ = answer::take_hop_by_hop(&mut fields);
    fields.append(&CONNECTION, &HeaderValue::from_static("upgrade"));
    if let Some(Ok(protocol)) = protocol {
        fields.append(&UPGRADE, &protocol);
    }
    let (patience, slots) = (plan.server.tunnel_timeout, Slots::default());
    let body = Some(ResponseBody::switched(Switched { server, patience, slots }));
    Some(Answer { status: head.status, reason: head.reason, fields, body })
}

/// The path and query that go upstream; `None` where they go as they came.
///
/// # Errors
/// Where a rewrite makes them longer than a URI may be here.
pub(super) fn target(
    uri: &Uri,
    path: &NormalPath<'_>,
    rewrite: Option<&Rewrite>,
) -> Result<Option<Uri>, Refusal<'static>> {
    if rewrite.is_none() && uri.authority().is_none() && path.upstream() == uri.path() {
        return Ok(None);
    }
    let mut text = match rewrite {
        Some(rewrite) => rewrite.apply(path),
        None => path.upstream().to_owned(),
    };
    if let Some(query) = uri.query() {
        text.push('?');
        text.push_str(query);
    }
    let target = PathAndQuery::from_maybe_shared(Bytes::from(text));
    target.map(|target| Some(Uri::from(target))).map_err(|_| Refusal::TargetTooLong)
}
