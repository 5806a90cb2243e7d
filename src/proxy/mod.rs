//! A request's way through: the straight line that calls everything else.

pub mod answer;
mod body;
mod headers;
mod io;
pub mod refusal;
pub mod serve;
mod tunnel;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue, UPGRADE};
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version, request};
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;
use tokio::time::Instant;

use self::body::{Access, Ended, ResponseBody};
use self::headers::Origin;
use self::io::Phase;
use self::refusal::Refusal;
use self::serve::Slot;
use crate::clock::Clock;
use crate::observe::events;
use crate::observe::metrics::WorkerMetrics;
use crate::plan::{Action, Plan, RouteSpec};
use crate::request::client::Client;
use crate::request::host::Host;
use crate::request::key::View;
use crate::request::path::NormalPath;
use crate::request::route::{NoRoute, Rewrite};
use crate::throttle::{Quotas, Throttle};
use crate::upstream::body::RequestBody;
use crate::upstream::{Answered, Upstream, UpstreamError};

/// The most of a rejected upload that is read and thrown away to keep its connection.
const MOST_DISCARDED: u64 = 64 * 1024;

/// The status that the log shows for a client that left before its answer; nobody is sent it.
const CLIENT_GONE: u16 = 499;

/// What one worker needs to serve requests.
pub struct Proxy {
    active: Mutex<Arc<Active>>,
    throttle: Throttle,
    clock: Clock,
    metrics: Arc<WorkerMetrics>,
    unrouted: Arc<str>,
}

/// The plan in force, and this worker's connections to its upstreams, in the plan's order.
#[derive(Debug)]
pub struct Active {
    /// The plan.
    pub plan: Arc<Plan>,
    /// Its upstreams.
    pub upstreams: Vec<Arc<Upstream>>,
}

/// A client's connection, as its requests see it.
#[derive(Debug)]
struct Connection {
    peer: SocketAddr,
    phase: Arc<Phase>,
    slot: Arc<Slot>,
}

/// A request's parts, taken on its way as they are used up.
struct Exchange {
    parts: request::Parts,
    body: Option<Incoming>,
    /// The upstream's server that answered.
    server: Option<Arc<str>>,
}

impl Proxy {
    /// A proxy with a first plan.
    pub fn new(
        active: Arc<Active>,
        throttle: Throttle,
        clock: Clock,
        metrics: Arc<WorkerMetrics>,
    ) -> Self {
        Self { active: Mutex::new(active), throttle, clock, metrics, unrouted: "none".into() }
    }

    /// The plan in force.
    pub fn active(&self) -> Arc<Active> {
        // Only this worker's thread comes here, so the lock is never waited for.
        self.active.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts another plan in force: for requests that begin from now on.
    pub fn activate(&self, active: Arc<Active>) {
        *self.active.lock().unwrap_or_else(PoisonError::into_inner) = active;
    }

    /// The limits and their store.
    pub fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    /// Answers one request.
    async fn handle(
        &self,
        request: Request<Incoming>,
        connection: &Connection,
    ) -> Response<ResponseBody> {
        connection.phase.begin();
        let active = self.active();
        let mut ended = self.begin(connection);
        let (parts, body) = request.into_parts();
        let mut access = active.plan.log.access.then(|| {
            Box::new(Access {
                method: parts.method.clone(),
                path: parts.uri.path().to_owned(),
                client: connection.peer.ip().to_canonical(),
                upstream: None,
            })
        });
        let mut exchange = Exchange { parts, body: Some(body), server: None };
        let passed = self.pass(&active, &mut exchange, connection, &mut ended, &mut access).await;
        let response = match passed {
            Ok(response) => response,
            Err(refusal) => refuse(&refusal, exchange, &active.plan, connection, &ended).await,
        };
        ended.status = response.status();
        ended.access = access;
        response.map(|body| body.until(ended))
    }

    /// What is counted even if the client leaves now.
    fn begin(&self, connection: &Connection) -> Ended {
        Ended {
            phase: connection.phase.clone(),
            metrics: self.metrics.clone(),
            began: Instant::now(),
            route: self.unrouted.clone(),
            status: StatusCode::from_u16(CLIENT_GONE).unwrap_or(StatusCode::BAD_REQUEST),
            access: None,
        }
    }

    /// The straight line: host, path, route, client, limits, upstream.
    async fn pass(
        &self,
        active: &Active,
        exchange: &mut Exchange,
        connection: &Connection,
        ended: &mut Ended,
        access: &mut Option<Box<Access>>,
    ) -> Result<Response<ResponseBody>, Refusal> {
        let plan = &*active.plan;
        let parts = &exchange.parts;
        let host = Host::of(&parts.uri, &parts.headers, parts.version).map_err(Refusal::Host)?;
        if headers::has_unknown_coding(&parts.headers) {
            return Err(Refusal::TransferCoding);
        }
        if matches!(parts.method, Method::TRACE | Method::CONNECT) {
            return Err(Refusal::Method(Vec::new()));
        }
        let uri = parts.uri.clone();
        let path =
            NormalPath::parse(uri.path(), plan.server.merge_slashes).map_err(Refusal::Path)?;
        let client = plan.server.trust.client(connection.peer.ip().to_canonical(), &parts.headers);
        if let Some(access) = access {
            access.client = client.address;
        }
        let found = plan.table.find(&path, &parts.method, host.as_str(), &parts.headers).map_err(
            |none| match none {
                NoRoute::NotFound => Refusal::NotFound,
                NoRoute::MethodNotAllowed(allowed) => Refusal::Method(allowed),
            },
        )?;
        let route = &plan.routes[found.route];
        ended.route = route.name.clone();
        if is_too_large(&parts.headers, plan) {
            return Err(Refusal::TooLarge);
        }
        let view = View {
            path: &path,
            query: uri.query(),
            method: &parts.method,
            host: host.as_str(),
            route: &route.name,
            client: client.address,
            headers: &parts.headers,
            params: &found.params,
        };
        let now = self.clock.now();
        let quotas = self.throttle.admit(plan, route, &view, now).await?;
        let mut response = match &route.action {
            Action::Respond { status, body } => respond(*status, body.clone()),
            Action::Forward { upstream, rewrite } => {
                let target = target(&uri, &path, rewrite.as_ref());
                let upstream = &active.upstreams[*upstream];
                forward(exchange, plan, upstream, route, (target, &client), connection).await?
            }
        };
        if let Some(access) = access {
            access.upstream = exchange.server.take();
        }
        finish(&mut response, plan, route, &quotas);
        Ok(response)
    }
}

fn is_too_large(headers: &HeaderMap, plan: &Plan) -> bool {
    let length = || headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse::<u64>().ok();
    plan.server.max_body_size.is_some_and(|most| length().is_some_and(|length| length > most))
}

/// The path and query that go upstream; `None` where they go as they came.
fn target(uri: &Uri, path: &NormalPath<'_>, rewrite: Option<&Rewrite>) -> Option<Uri> {
    if rewrite.is_none() && uri.authority().is_none() && path.upstream() == uri.path() {
        return None;
    }
    let mut text = match rewrite {
        Some(rewrite) => rewrite.apply(path),
        None => path.upstream().to_owned(),
    };
    if let Some(query) = uri.query() {
        text.push('?');
        text.push_str(query);
    }
    let target = PathAndQuery::from_maybe_shared(Bytes::from(text)).ok()?;
    Some(Uri::from(target))
}

/// The answer of a route that has no upstream.
fn respond(status: StatusCode, body: Bytes) -> Response<ResponseBody> {
    let typed = !body.is_empty();
    let mut response = Response::new(ResponseBody::whole(body));
    *response.status_mut() = status;
    if typed {
        let kind = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, kind);
    }
    response
}

/// Sends the request upstream and takes what comes back.
async fn forward(
    exchange: &mut Exchange,
    plan: &Plan,
    upstream: &Upstream,
    route: &RouteSpec,
    (target, client): (Option<Uri>, &Client),
    connection: &Connection,
) -> Result<Response<ResponseBody>, Refusal> {
    let switching = headers::upgrade(&exchange.parts.headers);
    let client_side = exchange.parts.extensions.remove::<OnUpgrade>();
    let mut request = Request::new(body_of(exchange, plan));
    *request.method_mut() = exchange.parts.method.clone();
    *request.uri_mut() = target.unwrap_or_else(|| exchange.parts.uri.clone());
    let sent = request.headers_mut();
    *sent = std::mem::take(&mut exchange.parts.headers);
    let host = host_for(sent, &exchange.parts.uri, upstream);
    headers::remove_hop_by_hop(sent);
    headers::remove_answered(sent);
    sent.insert(HOST, host.clone());
    let origin = Origin { trust: &plan.server.trust, client, peer: connection.peer, host };
    headers::write_forwarded(sent, &origin);
    if let Some(protocol) = &switching {
        sent.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        sent.insert(UPGRADE, protocol.clone());
    }
    headers::change(sent, &route.request_headers);
    let body_end = request.body().end();
    let answered = upstream.send(request).await.map_err(|error| match body_end.fault() {
        Some(fault) => Refusal::Body(fault),
        None => Refusal::Upstream(error),
    })?;
    exchange.server = Some(answered.server.clone());
    if answered.response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let server = answered.server.clone();
        return match (switching, client_side) {
            (Some(_), Some(client_side)) => Ok(switch(answered, client_side, plan, connection)),
            _ => Err(Refusal::Upstream(UpstreamError::Switched { server })),
        };
    }
    let Answered { response, lease, .. } = answered;
    let (mut head, incoming) = response.into_parts();
    head.version = Version::HTTP_11;
    headers::remove_hop_by_hop(&mut head.headers);
    let body = ResponseBody::streamed(incoming, lease, upstream.spec().idle_timeout);
    Ok(Response::from_parts(head, body))
}

fn body_of(exchange: &mut Exchange, plan: &Plan) -> RequestBody {
    match exchange.body.take() {
        Some(body) => {
            RequestBody::streamed(body, plan.server.max_body_size, plan.server.body_timeout)
        }
        None => RequestBody::empty(),
    }
}

/// The host that the upstream is asked for: an absolute-form target's, the client's, or (where an
/// HTTP/1.0 client named none) the server's own.
fn host_for(headers: &HeaderMap, uri: &Uri, upstream: &Upstream) -> HeaderValue {
    uri.authority()
        .and_then(|authority| {
            let text = authority.as_str();
            let host = text.rsplit_once('@').map_or(text, |(_, host)| host);
            HeaderValue::from_str(host).ok()
        })
        .or_else(|| headers.get(HOST).cloned())
        .or_else(|| {
            let server = upstream.spec().servers.first()?;
            HeaderValue::from_str(server.url.trim_start_matches("http://")).ok()
        })
        .unwrap_or_else(|| HeaderValue::from_static(""))
}

/// Passes the answer to an upgrade on and joins the two connections behind it.
fn switch(
    answered: Answered,
    client_side: OnUpgrade,
    plan: &Plan,
    connection: &Connection,
) -> Response<ResponseBody> {
    let Answered { mut response, lease, .. } = answered;
    let server_side = hyper::upgrade::on(&mut response);
    let (mut head, _) = response.into_parts();
    let protocol = head.headers.get(UPGRADE).cloned();
    headers::remove_hop_by_hop(&mut head.headers);
    head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    if let Some(protocol) = protocol {
        head.headers.insert(UPGRADE, protocol);
    }
    let kept = (lease, connection.slot.clone());
    tunnel::start(client_side, server_side, plan.server.tunnel_timeout, kept);
    Response::from_parts(head, ResponseBody::whole(Bytes::new()))
}

/// What is the same for every answer that the limits let pass.
fn finish(response: &mut Response<ResponseBody>, plan: &Plan, route: &RouteSpec, quotas: &Quotas) {
    let headers = response.headers_mut();
    if !quotas.is_empty() {
        headers::write_quotas(headers, quotas, &plan.reject);
    }
    headers::change(headers, &route.response_headers);
}

/// Answers a request that does not pass, and deals with what is left of its body.
async fn refuse(
    refusal: &Refusal,
    mut exchange: Exchange,
    plan: &Plan,
    connection: &Connection,
    ended: &Ended,
) -> Response<ResponseBody> {
    if let Refusal::Upstream(error) = refusal {
        events::upstream_failed(error, &ended.route);
    }
    let mut response = answer::respond(refusal, &exchange.parts.headers, &plan.reject);
    if let Some(body) = exchange.body.take()
        && !discard(body, &exchange.parts.headers).await
    {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if response.headers().contains_key(CONNECTION) {
        connection.phase.linger();
    }
    response
}

/// Reads a body that nobody wants, or leaves it where it is long or not asked for yet. Says
/// whether the connection can be used again.
async fn discard(body: Incoming, headers: &HeaderMap) -> bool {
    if body.is_end_stream() {
        return true;
    }
    let awaited = headers.contains_key(http::header::EXPECT);
    match body.size_hint().exact() {
        _ if awaited => false,
        Some(length) if length <= MOST_DISCARDED => {
            // The answer need not wait for it.
            tokio::spawn(tunnel::drain(body, MOST_DISCARDED));
            true
        }
        Some(_) => false,
        None => tunnel::drain(body, MOST_DISCARDED).await,
    }
}
