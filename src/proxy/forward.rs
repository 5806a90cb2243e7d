//! Sends a request upstream, and makes the client's answer from the upstream's response. `Proxy::pass`
//! calls [`send`]. The connections are in `upstream`.

use std::cell::Cell;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{Fuse, FusedFuture as _, LocalBoxFuture};
use http::header::{HOST, HeaderValue, UPGRADE};
use http::uri::PathAndQuery;
use http::{HeaderMap, Request, Response, StatusCode, Uri, Version, response};
use http_body::Body as _;
use hyper::ext::ReasonPhrase;
use tokio::time::Instant;

use super::headers::response::Framing;
use super::headers::x_forwarded::{Origin, write_forwarded};
use super::headers::{authorized_by, challenges_connection, hop, response as answer};
use crate::answer::refusal::Refusal;
use crate::exchange::Exchange;
use crate::exchange::body::{Answer, ResponseBody};
use crate::exchange::client::{ClientConnection, Switched};
use crate::exchange::record::RequestRecord;
use crate::limit::key::Key;
use crate::reading::{Seen, most_bytes};
use crate::request::client::Client;
use crate::request::key::View;
use crate::request::name::is_invalid;
use crate::request::network::client_network;
use crate::request::path::NormalPath;
use crate::request::route::Rewrite;
use crate::settings::{Balance, KeyDisplay, RouteSpec, Settings};
use crate::throttle::Permit;
use crate::upstream::balance::Affinity;
use crate::upstream::body::{RequestBody, Trailers};
use crate::upstream::progress::BodyFault;
use crate::upstream::trailers::{MOST_IN_ANSWER, list_size};
use crate::upstream::{
    ConnectionLease, Purpose, QueueError, RequestOrigin, RequestPermit, Sending, ServerFailure,
    Unanswered, Upstream, UpstreamError, UpstreamResponse,
};

/// Where a request goes.
pub(super) struct Way<'r> {
    pub(super) settings: &'r Settings,
    pub(super) upstream: &'r Rc<Upstream>,
    pub(super) route: &'r RouteSpec,
    pub(super) address: &'r Client,
    /// The path and query to ask for.
    pub(super) target: Uri,
    /// The hash by which the request's server is chosen, if `balance` is `"hash"`.
    pub(super) affinity: Option<Affinity>,
    /// The key by which the request would wait for the upstream.
    pub(super) share: Option<Box<Key>>,
    /// Gets the time from which on the upstream answers.
    pub(super) sent: &'r mut Instant,
}

/// Sends the request upstream and returns the client's answer.
pub(super) async fn send(
    exchange: &mut Exchange,
    client: &ClientConnection,
    record: &mut RequestRecord,
    mut way: Way<'_>,
) -> Result<Answer, Refusal<'static>> {
    // While input after the request is unread, the connection's task does not notice that the client has
    // closed. So check once more before the API is asked.
    if client.socket.has_left() {
        return Err(Refusal::ClientLeft);
    }
    let network = || client_network(way.address.address, way.settings.server.prefixes);
    let options = way.route.options();
    let by = || RequestOrigin {
        uploads: exchange.body.as_ref().filter(|body| !body.is_end_stream()).map(|_| network()),
        priority: options.priority,
        slower_than: options.slower_than,
        key: way.share.take().map_or_else(Key::empty, |key| *key),
    };
    let entered = way.upstream.enter(by).await.map_err(|error| {
        // Otherwise all those who are refused now would come back at once.
        let (jitter, name) = (way.settings.reject.jitter, &way.upstream.spec().name);
        let client = Key::of([Some(network().to_string().as_bytes())]);
        let retry_after = jitter.spread(error.retry_after, name, &client);
        Refusal::Overload(QueueError { retry_after, ..error })
    })?;
    if entered.as_ref().is_some_and(|(permit, _)| permit.has_turn()) {
        *way.sent = Instant::now();
    }
    let (request_permit, upload) = entered.unzip();
    let seen = exchange.seen;
    // HTTP/1.0 knows no upgrades (RFC 9110, 7.8), and HTTP/2 has none of this kind (RFC 9113, 8.6).
    let offered = exchange.head.version == Version::HTTP_11;
    let switching = hop::upgrade(&exchange.head.headers, seen).filter(|_| offered);
    let mut request = request_to_server(exchange, client, switching.as_ref(), record, &mut way);
    if let Some(upload) = upload.flatten() {
        request.body_mut().counts_as(upload);
    }
    exchange.body_end = request.body().end();
    let Way { upstream, route, address, affinity, .. } = way;
    let by_upgrade = if switching.is_some() { Purpose::Http1 } else { Purpose::Any };
    let wanted = authorized_by(request.headers(), seen).unwrap_or(by_upgrade);
    let response_timeout = route.options().response_timeout;
    let sending =
        Sending { client: address.address.into(), response_timeout, affinity, wanted, open: None };
    let sent = match upstream.spec().outlives_client() {
        None => {
            let details = record.details.as_deref_mut();
            let asked = details.map(|details| Cell::from_mut(&mut details.server));
            let is_sent = &mut exchange.is_sent;
            upstream.send(request, sending, request_permit, asked, is_sent).await
        }
        Some(limit) => {
            let (answering, asked) = (Fuse::terminated(), Rc::default());
            let outliving = OutlivingRequest { answering, asked, limit, upstream, record };
            Box::pin(outliving.send(request, sending, request_permit)).await?
        }
    };
    let answered = match sent {
        Ok(answered) => answered,
        Err(Unanswered { error, unsent }) => {
            // Nothing of the body was read, so the body can be discarded like that of a rejected request.
            if let Some(body) = unsent.and_then(RequestBody::into_client_body) {
                exchange.body = Some(body);
                exchange.body_end = Default::default();
            }
            return Err(exchange.body_end.fault().map_or(Refusal::Upstream(error), faulty));
        }
    };
    if answered.response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return answer_to_client(answered, exchange.head.version, upstream);
    }
    // A server must not change the protocol before it has the whole request.
    if switching.is_none() || !exchange.body_end.is_reached() {
        return Err(failed(&answered.lease, ServerFailure::Switched));
    }
    let (answer, switched) = switch(answered);
    exchange.switched = Some(Box::new(switched));
    Ok(answer)
}

/// The request as a server gets it.
fn request_to_server(
    exchange: &mut Exchange,
    client: &ClientConnection,
    switching: Option<&HeaderValue>,
    record: &RequestRecord,
    way: &mut Way<'_>,
) -> Request<RequestBody> {
    let seen = exchange.seen;
    let trailers = match seen.has(Seen::TRAILER) {
        true => hop::limit_trailers(&mut exchange.head.headers, way.settings),
        false => Trailers::new(),
    };
    let body = exchange.body.take().map_or_else(RequestBody::empty, |body| {
        let most = most_bytes(way.settings, way.route);
        RequestBody::streamed(body, most, client.phase.times.clone(), trailers)
    });
    let mut request = Request::new(body);
    *request.method_mut() = exchange.head.method.clone();
    *request.uri_mut() = mem::take(&mut way.target);
    *request.headers_mut() = mem::take(&mut exchange.head.headers);
    let headers = request.headers_mut();
    let host = write_host(headers, way.upstream);
    way.settings.known_fields.remove_look_alikes(headers, seen.has(Seen::ODD_NAME));
    hop::remove_hop_by_hop(headers, seen);
    write_forwarded(headers, seen, Origin { client: way.address, peer: &client.peer, host });
    hop::write_connection(headers, seen, switching);
    if let Some(ids) = record.details.as_ref().and_then(|details| details.ids.as_ref()) {
        ids.write_traceparent(headers);
    }
    if let Some(changes) = &way.route.options().request {
        changes.apply(headers);
    }
    request
}

/// A server's answer as the client gets it. `asked_by` is the client's version.
///
/// # Errors
/// If the answer cannot be passed on.
fn answer_to_client(
    answered: UpstreamResponse,
    asked_by: Version,
    upstream: &Upstream,
) -> Result<Answer, Refusal<'static>> {
    let UpstreamResponse { response, mut lease } = answered;
    let (mut head, incoming) = response.into_parts();
    if let Err(fault) = examine(&mut head, &mut lease, Some(asked_by)) {
        return Err(failed(&lease, fault));
    }
    let spec = upstream.spec();
    let outlives_client = spec.outlives_client();
    let body = ResponseBody::streamed(incoming, lease, spec.idle_timeout, outlives_client);
    let reason = head.extensions.remove::<ReasonPhrase>();
    head.extensions.clear();
    if let Some(reason) = reason {
        head.extensions.insert(reason);
    }
    head.version = Version::HTTP_11;
    Ok(Response::from_parts(head, body))
}

/// Looks at the head of an answer before anybody reads its body, and removes what concerns the server's connection
/// alone. If another answer on this connection could not be trusted, the connection ends with this one. `asked_by` is the
/// version of who gets the answer. `None` if the client has left.
///
/// # Errors
/// If nobody may read the answer.
fn examine(
    head: &mut response::Parts,
    lease: &mut ConnectionLease,
    asked_by: Option<Version>,
) -> Result<(), ServerFailure> {
    if head.version == Version::HTTP_2 {
        if list_size(&head.headers) > MOST_IN_ANSWER {
            return Err(ServerFailure::HeadTooLarge);
        }
        // hyper looks only over HTTP/1.1.
        if head.headers.keys().any(is_invalid) {
            return Err(ServerFailure::FieldName);
        }
    }
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        return Err(ServerFailure::Switched);
    }
    // If a body comes in spite of the status, it must not be taken for the next answer.
    if head.status == StatusCode::NO_CONTENT && answer::announces_body(&head.headers) {
        lease.end_soon();
    }
    let seen = Seen::of(&head.headers);
    if challenges_connection(&head.headers, seen) {
        lease.stay_alone();
    }
    let tells_protocols = head.status == StatusCode::UPGRADE_REQUIRED
        && asked_by.is_some_and(|asked_by| asked_by != Version::HTTP_2);
    match answer::remove_hop_by_hop(&mut head.headers, seen, tells_protocols) {
        Framing::Clear => {}
        Framing::Doubtful => lease.end_soon(),
        Framing::Unknown => return Err(ServerFailure::Coding),
    }
    Ok(())
}

/// A request that goes on to its end if its client leaves and this is dropped, but for no longer than `limit` from then
/// on. What the request holds of its limits then goes with it.
struct OutlivingRequest<'r> {
    /// Is terminated once the answer has come.
    answering: Fuse<LocalBoxFuture<'static, Result<UpstreamResponse, Unanswered>>>,
    /// The server that was asked last.
    asked: Rc<Cell<Option<Arc<str>>>>,
    limit: Duration,
    upstream: &'r Rc<Upstream>,
    record: &'r mut RequestRecord,
}

impl OutlivingRequest<'_> {
    /// Sends the request and waits for the answer's head.
    ///
    /// # Errors
    /// If the request's body failed.
    async fn send(
        mut self,
        mut request: Request<RequestBody>,
        mut sending: Sending,
        request_permit: Option<RequestPermit>,
    ) -> Result<Result<UpstreamResponse, Unanswered>, Refusal<'static>> {
        let (open, fault) = request.body_mut().outlive_client();
        sending.open = Some(open);
        let (upstream, asked) = (self.upstream.clone(), self.asked.clone());
        let answering = async move {
            let mut is_sent = false;
            upstream.send(request, sending, request_permit, Some(&asked), &mut is_sent).await
        };
        self.answering = answering.boxed_local().fuse();
        tokio::select! {
            biased;
            answered = &mut self.answering => Ok(answered),
            // The server may already be at work, so the request goes on.
            Ok(fault) = fault => Err(faulty(fault)),
        }
    }
}

impl Drop for OutlivingRequest<'_> {
    fn drop(&mut self) {
        if let Some(details) = &mut self.record.details {
            details.server = self.asked.take();
        }
        // After a panic there is nothing to go on with.
        if !self.answering.is_terminated() && !thread::panicking() {
            let answering = mem::replace(&mut self.answering, Fuse::terminated());
            let (upstream, held) = (self.upstream.clone(), mem::take(&mut self.record.permit));
            let rest = async move { read_out(&upstream, answering.await, held).await };
            self.record.client.tasks.go_on(self.limit, rest);
        }
    }
}

/// Reads an answer that nobody waits for, and throws it away. `held` is what the request holds of its limits.
async fn read_out(
    upstream: &Upstream,
    answered: Result<UpstreamResponse, Unanswered>,
    mut held: Permit,
) {
    let Ok(UpstreamResponse { response, mut lease }) = answered else { return };
    held.answered(response.status(), response.headers());
    let (mut head, body) = response.into_parts();
    if examine(&mut head, &mut lease, None).is_ok() {
        let time_limit = upstream.spec().idle_timeout;
        ResponseBody::streamed(body, lease, time_limit, None).read_out(held).await;
    }
}

pub(super) fn faulty(fault: BodyFault) -> Refusal<'static> {
    match fault {
        BodyFault::ClientLeft => Refusal::ClientLeft,
        fault => Refusal::Body(fault),
    }
}

fn failed(lease: &ConnectionLease, failure: ServerFailure) -> Refusal<'static> {
    Refusal::Upstream(UpstreamError::Server { server: lease.server().clone(), failure })
}

/// Writes the `host` field for the upstream, and returns its value. This is the client's host. For an
/// HTTP/1.0 client that named none, it is that of the upstream's first server.
fn write_host(headers: &mut HeaderMap, upstream: &Upstream) -> HeaderValue {
    if let Some(host) = headers.get(HOST) {
        return host.clone();
    }
    let spec = upstream.spec();
    let host = spec.servers.first().map(|server| spec.host_of(&server.address));
    let host = host.unwrap_or(HeaderValue::from_static(""));
    headers.insert(HOST, host.clone());
    host
}

/// The answer to an upgrade, and the server's side of the tunnel.
fn switch(answered: UpstreamResponse) -> (Answer, Switched) {
    let UpstreamResponse { response, mut lease } = answered;
    // A client of another protocol may have said all, and still read.
    let upgrade = response.headers().get(UPGRADE).map(HeaderValue::as_bytes);
    let is_websocket = upgrade.is_some_and(|it| it.eq_ignore_ascii_case(b"websocket"));
    lease.switch(is_websocket);
    let (mut head, _) = response.into_parts();
    // No HTTP body follows, so its coding does not matter.
    let seen = Seen::of(&head.headers);
    answer::remove_hop_by_hop(&mut head.headers, seen, true);
    let permit = Permit::default();
    let mut answer = Response::new(ResponseBody::whole(Bytes::new()));
    *answer.status_mut() = head.status;
    *answer.headers_mut() = head.headers;
    (answer, Switched { permit, lease })
}

/// The hash by which the request's server is chosen. `None` if the upstream has no `hash_key`, or the request lacks a
/// part of the key, or has a part twice.
pub(super) fn affinity(upstream: &Upstream, request: &View<'_>) -> Option<Affinity> {
    let Balance::Hash(key) = &upstream.spec().balance else { return None };
    // A token that does not verify says nothing about the client.
    let key = key.key(request).ok().flatten();
    key.filter(|key| key.values().all(|value| value.is_some())).as_ref().map(Affinity::of)
}

/// The key by which a request would wait for its upstream. `None` while nobody would.
pub(super) fn share(
    upstream: &Upstream,
    request: &View<'_>,
    display: KeyDisplay,
) -> Option<Box<Key>> {
    let spec = upstream.spec().share_by.as_ref().filter(|_| upstream.is_bound())?;
    // A token that does not verify says nothing about the client.
    let key = spec.key(request).ok()??;
    Some(Box::new(if display == KeyDisplay::Hashed { spec.hashed(&key) } else { key }))
}

/// The path and query that go upstream; `None` if they go unchanged.
///
/// # Errors
/// If a rewrite makes the path and query longer than a URI may be here.
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
