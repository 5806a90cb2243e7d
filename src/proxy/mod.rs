//! The way of one request through the proxy. `downstream` calls [`Proxy::handle`] for each request.
//!
//! The request passes these steps in order: host, path, client, route, limits (`throttle`), upstream
//! (`forward`). A step that fails returns a [`Refusal`], which `answer` turns into a response.
//! `request_end` counts and logs the request when the response has ended.

mod answer;
mod body;
pub mod client;
mod forward;
mod grpc;
mod headers;
pub mod refusal;
mod rejection;
mod request_end;

use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderValue, USER_AGENT};
use http::{HeaderMap, Method, Request, StatusCode, request};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use self::answer::{Answer, Protocol, RefusedRequest};
pub use self::body::{ResponseBody, Switched, Uptake};
use self::client::ClientConnection;
use self::forward::Way;
pub use self::headers::forwarded::Peer;
use self::headers::quotas::QuotaFields;
use self::headers::{Seen, hop};
use self::refusal::{Refusal, TargetForm};
use self::rejection::Rejections;
use self::request_end::{Access, RequestEnd, RequestFindings};
use crate::clock::Clock;
use crate::limit::time::Timestamp;
use crate::observe::metrics::{RouteCounter, RouteCounters, WorkerMetrics};
use crate::observe::repeated::FailedExchanges;
use crate::plan::{Action, Plan, RouteSpec, ServerSpec};
use crate::request::client::{Client, Trust};
use crate::request::host::Host;
use crate::request::key::View;
use crate::request::method::{self, MethodCase};
use crate::request::path::NormalPath;
use crate::request::route::{NoRoute, Params};
use crate::throttle::{Permit, Quota, Quotas, Refused, Throttle};
use crate::upstream::Upstream;
use crate::upstream::body::BodyEnd;

/// If an upload is not used, at most this many bytes of the upload are read and thrown away, to keep the
/// connection.
const MOST_DISCARDED: u64 = 64 * 1024;

/// How long an answer waits for the end of such an upload if the length is not announced. Only the end
/// shows whether the connection can be kept.
const DISCARD_TIME: Duration = Duration::from_millis(250);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// What one worker needs to serve requests.
pub struct Proxy {
    active: Mutex<Arc<Active>>,
    throttle: Throttle,
    clock: Clock,
}

/// The plan in force, and this worker's connections to its upstreams, in the plan's order.
#[derive(Debug)]
pub struct Active {
    /// The plan.
    pub plan: Arc<Plan>,
    /// The plan's upstreams.
    pub upstreams: Vec<Arc<Upstream>>,
    /// Where this worker counts the requests of each route.
    counters: RouteCounters,
    /// All counts of this worker.
    metrics: Arc<WorkerMetrics>,
    /// Cached answers to throttled clients. They refer to the plan's limits, so they end with the plan.
    rejections: Rejections,
    /// Cached `ratelimit` fields of the answers to all other clients.
    fields: QuotaFields,
    /// The process's count of failed exchanges.
    failed: Arc<FailedExchanges>,
}

impl Active {
    /// A plan with this worker's connections to its upstreams, before the plan's first request.
    pub fn new(
        plan: Arc<Plan>,
        upstreams: Vec<Arc<Upstream>>,
        (failed, metrics): (Arc<FailedExchanges>, Arc<WorkerMetrics>),
    ) -> Self {
        let counters = RouteCounters::new(plan.routes.len());
        let (rejections, fields) = (Rejections::new(), QuotaFields::new());
        Self { plan, upstreams, counters, metrics, rejections, fields, failed }
    }

    /// The counter of the route at this place in the plan, or of requests without a route.
    fn counter(&self, route: Option<usize>) -> RouteCounter {
        route.map_or(RouteCounter::NO_ROUTE, |route| {
            self.counters.of(route, &self.plan.routes[route].name, &self.metrics)
        })
    }

    /// The upstream that an [`Action::Forward`] of the plan names.
    fn upstream(&self, place: u32) -> &Arc<Upstream> {
        &self.upstreams[usize::try_from(place).unwrap_or(usize::MAX)]
    }
}

/// The parts of a request. A part is taken out when it is used up.
struct Exchange {
    head: request::Parts,
    body: Option<Incoming>,
    /// How far the request's body has come on its way upstream.
    body_end: BodyEnd,
    /// The upstream's server that answered, for the access line.
    server: Option<Arc<str>>,
    /// Set where the answer changes the connection to another protocol (status 101).
    switched: Option<Box<Switched>>,
}

impl Exchange {
    fn of(request: Request<Incoming>) -> Self {
        let (head, body) = request.into_parts();
        let (body, body_end) = (Some(body), BodyEnd::default());
        Self { head, body, body_end, server: None, switched: None }
    }
}

impl Proxy {
    /// A proxy with a first plan.
    pub fn new(active: Arc<Active>, throttle: Throttle, clock: Clock) -> Self {
        Self { active: Mutex::new(active), throttle, clock }
    }

    /// The plan in force.
    pub fn active(&self) -> Arc<Active> {
        // Only this worker's thread uses the lock, so no thread waits for it.
        self.active.lock().clone()
    }

    /// Puts another plan in force, for requests that begin from now on.
    pub fn activate(&self, active: Arc<Active>) {
        *self.active.lock() = active;
    }

    /// All counts of this worker.
    pub fn metrics(&self) -> Arc<WorkerMetrics> {
        self.active().metrics.clone()
    }

    /// The limits and their store.
    pub fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    /// Answers one request of a client's connection.
    // The request is taken apart before the future is made. Inside, the future would hold the request twice.
    pub fn handle(
        &self,
        request: Request<Incoming>,
        client: &Arc<ClientConnection>,
    ) -> impl Future<Output = Answer> + Send {
        let mut exchange = Exchange::of(request);
        // The record begins before the future is made. hyper drops the future unpolled if the client has
        // closed after the request, and the request must still be counted.
        let began = Instant::now();
        client.phase.begin(began);
        let seen = Seen::of(&exchange.head.headers);
        let protocol = answer::protocol(&exchange.head.headers, seen);
        let mut ended = self.begin(client, began, &exchange.head, protocol);
        ended.request_id =
            self.name(&ended.active.plan.server, client, began, &mut exchange.head.headers);
        async move {
            let head = &exchange.head;
            let patience = match protocol {
                Protocol::Http => None,
                Protocol::Grpc => grpc::patience(&head.headers, seen),
            };
            let target = TargetForm::of(head);
            let mut quotas = Quotas::new();
            let way = (&*ended.active, &**client, seen);
            let passed = {
                let noted = (began, ended.request_id.as_deref(), &mut ended.noted);
                let mut passing = pin!(self.pass(way, &mut exchange, noted, &mut quotas));
                match patience {
                    None => passing.await,
                    Some(patience) => {
                        let passed = timeout(patience, passing.as_mut()).await;
                        passed.unwrap_or(Err(Refusal::Deadline))
                    }
                }
            };
            let (mut answer, mut closes) = match passed {
                Ok(answer) => (answer, false),
                Err(refusal) => {
                    match &refusal {
                        Refusal::Upstream(error) => {
                            ended.failed(error.server(), error.failure(), error);
                        }
                        Refusal::Limits(Refused::Throttled { limit, .. }) => {
                            if let Some(access) = &mut ended.noted.access {
                                access.limit = Some((*limit).clone());
                            }
                        }
                        _ => {}
                    }
                    let by = (&*ended.active, protocol);
                    let answer = refused(&refusal, &quotas, by, &mut ended.noted.permit);
                    (answer, refusal.closes(target) || !exchange.body_end.is_reached())
                }
            };
            drop(quotas);
            answer::withhold_body(&mut answer, &exchange.head.method);
            // Over HTTP/2 an unread body ends with its stream.
            if !client.phase.is_multiplexed() {
                if let Some(body) = exchange.body.take().filter(|body| !body.is_end_stream()) {
                    let awaited = seen.has(Seen::EXPECT);
                    let patience = ended.active.plan.server.body_timeout;
                    closes |= !Box::pin(discard(body, awaited, client, patience)).await;
                }
                if closes {
                    answer::close(&mut answer);
                    client.phase.linger();
                }
            }
            if let Some((name, id)) =
                ended.active.plan.server.request_id.as_ref().zip(ended.request_id.as_deref())
            {
                answer.headers_mut().insert(name, id.clone());
            }
            ended.status = answer.status();
            ended.body_end = exchange.body_end;
            if let Some(mut switched) = exchange.switched {
                // The tunnel lives longer than the response, so the tunnel holds the concurrency slots.
                switched.slots = ended.noted.permit.take_slots();
                client.switch(switched);
            }
            answer.body_mut().until(ended);
            answer
        }
    }

    /// Begins the record of a request. The record counts the request even if the client leaves now.
    fn begin(
        &self,
        client: &Arc<ClientConnection>,
        began: Instant,
        head: &request::Parts,
        protocol: Protocol,
    ) -> RequestEnd {
        let active = self.active();
        let access = active.plan.log.access.then(|| {
            Box::new(Access {
                method: head.method.clone(),
                host: "-".to_owned(),
                path: head.uri.path().to_owned(),
                client: client.peer.address,
                user_agent: head.headers.get(USER_AGENT).cloned(),
                limit: None,
                upstream: None,
            })
        });
        RequestEnd {
            client: client.clone(),
            began,
            active,
            version: head.version,
            body_end: BodyEnd::default(),
            sent: 0,
            request_id: None,
            protocol,
            status: client_gone(),
            noted: RequestFindings { access, ..RequestFindings::default() },
        }
    }

    /// Writes the request ID into its header, if the file names a header for the ID. The ID is that of a
    /// trusted proxy, or a new one.
    fn name(
        &self,
        server: &ServerSpec,
        client: &ClientConnection,
        began: Instant,
        headers: &mut HeaderMap,
    ) -> Option<Box<HeaderValue>> {
        let name = server.request_id.as_ref()?;
        let trusted = server.trust.trusts(client.peer.address);
        let given = headers.get(name).filter(|id| trusted && !id.is_empty()).cloned();
        let id = given.or_else(|| new_id(self.clock.wall().at(self.clock.at(began))))?;
        headers.insert(name, id.clone());
        Some(Box::new(id))
    }

    /// Takes a request through all steps: host, path, client, route, limits, upstream.
    async fn pass<'p>(
        &self,
        (active, client, seen): (&'p Active, &ClientConnection, Seen),
        exchange: &mut Exchange,
        (began, request_id, noted): (Instant, Option<&HeaderValue>, &mut RequestFindings),
        quotas: &mut Quotas<'p>,
    ) -> Result<Answer, Refusal<'p>> {
        let plan = &*active.plan;
        let head = &mut exchange.head;
        let host = Host::of(&head.uri, &head.headers, head.version).map_err(Refusal::Host)?;
        if hop::has_unknown_coding(&head.headers, seen) {
            return Err(Refusal::TransferCoding);
        }
        if hop::has_malformed_length(&head.headers, seen) {
            return Err(Refusal::Length);
        }
        method::check(&head.method).map_err(|MethodCase| Refusal::MethodCase)?;
        if is_never_served(&head.method) {
            return Err(Refusal::Method(Vec::new()));
        }
        let uri = mem::take(&mut head.uri);
        let path =
            NormalPath::parse(uri.path(), plan.server.merge_slashes).map_err(Refusal::Path)?;
        let trust = &plan.server.trust;
        let address = trust.client(client.peer.address, &head.headers);
        if let Some(access) = &mut noted.access {
            access.client = address.address;
        }
        headers::strip_unforwarded(
            (&uri, head.version),
            &mut head.headers,
            seen,
            (&address, trust),
        );
        let host = host.as_str();
        if let Some(access) = &mut noted.access {
            host.clone_into(&mut access.host);
        }
        let found = plan.table.find(&path, &head.method, host, &head.headers);
        noted.route = found.as_ref().ok().map(|found| found.route);
        let route = noted.route.map_or(&plan.no_route, |route| &plan.routes[route]);
        if found.is_ok() && is_too_large(&head.headers, (plan, route)) {
            return Err(Refusal::TooLarge);
        }
        let none = Params::none();
        let view = View {
            path: &path,
            query: uri.query(),
            method: &head.method,
            host,
            route: &route.name,
            client: address.address,
            headers: &head.headers,
            params: found.as_ref().map_or(&none, |found| &found.params),
            cert: client.cert.as_deref(),
            id: request_id.and_then(|id| id.to_str().ok()),
        };
        let now = self.clock.at(began);
        noted.permit = self.throttle.admit((plan, route), &view, now, quotas).await?;
        // The limits come before this error: a client that searches for routes is counted too.
        found.map_err(|none| match none {
            NoRoute::NotFound => Refusal::NotFound,
            NoRoute::MethodNotAllowed(allowed) => Refusal::Method(allowed),
        })?;
        let mut answer = match &route.action {
            Action::Respond { status, body } => {
                let kind = (!body.is_empty()).then_some(TEXT);
                answer::own(*status, kind, Bytes::clone(body))
            }
            Action::Forward { upstream, rewrite } => {
                let target = forward::target(&uri, &path, rewrite.as_deref())?.unwrap_or(uri);
                let upstream = active.upstream(*upstream);
                let way = Way { plan, upstream, route, address: &address, seen };
                let sent = Instant::now();
                let answer = forward::send(exchange, client, target, way).await?;
                noted.answered_after = Some(sent.elapsed());
                answer
            }
        };
        if let Some(access) = &mut noted.access {
            access.upstream = exchange.server.take();
        }
        noted.permit.answered(answer.status(), answer.headers());
        finish(answer.headers_mut(), active, route, quotas);
        Ok(answer)
    }
}

/// The answer to a request that was refused or has failed.
fn refused(
    refusal: &Refusal<'_>,
    quotas: &[Quota<'_>],
    (active, protocol): (&Active, Protocol),
    permit: &mut Permit,
) -> Answer {
    let Active { plan, rejections, .. } = active;
    let asked = RefusedRequest { protocol, quotas, default: &plan.reject, rejections };
    let answer = answer::respond(refusal, &asked);
    if !matches!(refusal, Refusal::ClientLeft) {
        permit.refused(answer.status());
    }
    answer
}

/// Whether requests of this method (TRACE, CONNECT) are refused on every route.
pub fn is_never_served(method: &Method) -> bool {
    matches!(*method, Method::TRACE | Method::CONNECT)
}

/// Removes the header fields of a request that are not forwarded, as [`Proxy::handle`] does before routes
/// and limits read the request. `tidegate explain` calls this.
pub fn strip_unforwarded(head: &mut request::Parts, address: &Client, trust: &Trust) {
    let seen = Seen::of(&head.headers);
    let headers = &mut head.headers;
    headers::strip_unforwarded((&head.uri, head.version), headers, seen, (address, trust));
}

/// The status 499, for a client that left before its answer. It is never sent; it appears in logs and
/// metrics.
fn client_gone() -> StatusCode {
    StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST)
}

/// A new request ID for a request that came at this time of day: a UUID of version 7 (RFC 9562, 5.7).
fn new_id(wall: Timestamp) -> Option<HeaderValue> {
    let random = fastrand::u128(..).to_be_bytes();
    let random = random.first_chunk()?;
    let id =
        uuid::Builder::from_unix_timestamp_millis(wall.as_micros() / 1_000, random).into_uuid();
    let mut text = uuid::Uuid::encode_buffer();
    HeaderValue::from_str(id.hyphenated().encode_lower(&mut text)).ok()
}

fn is_too_large(headers: &HeaderMap, (plan, route): (&Plan, &RouteSpec)) -> bool {
    let length = || headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse::<u64>().ok();
    let most = route.max_body_size().or(plan.server.max_body_size);
    most.is_some_and(|most| length().is_some_and(|length| length > most))
}

/// The last changes to the answer of a request that the limits let pass: quota fields, then the route's
/// changes.
fn finish(headers: &mut HeaderMap, active: &Active, route: &RouteSpec, quotas: &[Quota<'_>]) {
    if !quotas.is_empty() {
        active.fields.write(headers, quotas, &active.plan.reject);
    }
    if let Some(changes) = route.response_headers() {
        headers::change(headers, changes);
    }
}

/// Reads and throws away a body that is not used. A long body is left unread, and so is a body for which
/// the client still awaits `100 Continue` (`awaited`). Returns whether the connection can be used again.
async fn discard(
    body: Incoming,
    awaited: bool,
    client: &Arc<ClientConnection>,
    patience: Duration,
) -> bool {
    let phase = &client.phase;
    match body.size_hint().exact() {
        _ if awaited => phase.unsettle(),
        Some(length) if length <= MOST_DISCARDED => {
            // The end of the body is known, so the answer need not wait for it.
            phase.discard();
            let client = client.clone();
            tokio::spawn(async move {
                drain(body, patience).await;
                client.phase.discarded();
            });
            return true;
        }
        Some(_) => phase.unsettle(),
        None => {
            phase.unsettle();
            return timeout(DISCARD_TIME, drain(body, patience)).await.unwrap_or(false);
        }
    }
    false
}

/// Reads a body of up to [`MOST_DISCARDED`] bytes, each piece within `patience` of the one before, and
/// throws it away. Returns whether the body reached its end.
async fn drain(mut body: Incoming, patience: Duration) -> bool {
    let mut left = MOST_DISCARDED;
    loop {
        match timeout(patience, body.frame()).await {
            Ok(None) => return true,
            Ok(Some(Ok(frame))) => {
                let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                let Some(rest) = left.checked_sub(length) else { return false };
                left = rest;
            }
            Ok(Some(Err(_))) | Err(_) => return false,
        }
    }
}
