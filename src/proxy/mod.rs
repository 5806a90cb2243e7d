//! A request's way through: the straight line that calls everything else.

pub mod answer;
mod body;
mod date;
mod exchange;
mod forward;
mod headers;
mod io;
mod phase;
pub mod refusal;
mod rejection;
pub mod serve;
mod tunnel;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderValue};
use http::{HeaderMap, Method, Request, StatusCode, Version, request};
use http_body::Body as _;
use tokio::time::Instant;

use self::answer::{Answer, Asked};
use self::body::{Access, Ended, Noted};
use self::date::DateCache;
use self::forward::Way;
use self::headers::forwarded::Peer;
use self::headers::quotas::write_quotas;
use self::headers::{Seen, hop};
use self::io::Socket;
use self::phase::Phase;
use self::refusal::Refusal;
use self::rejection::Rejections;
use self::serve::Slot;
use crate::clock::Clock;
use crate::http1::fields::Fields;
use crate::http1::incoming::Incoming;
use crate::observe::failed::Failed;
use crate::observe::metrics::{RouteCounter, RouteCounters, WorkerMetrics};
use crate::plan::{Action, Plan, RouteSpec};
use crate::request::client::{Client, Trust};
use crate::request::host::LastHost;
use crate::request::key::View;
use crate::request::method::{self, MethodCase};
use crate::request::path::NormalPath;
use crate::request::route::NoRoute;
use crate::throttle::{Quota, Quotas, Throttle};
use crate::upstream::Upstream;
use crate::upstream::body::BodyEnd;

/// The most of a rejected upload that is read and thrown away to keep its connection.
const MOST_DISCARDED: u64 = 64 * 1024;

/// How long an answer waits for such an upload's end where its length is not announced: until then
/// nobody knows whether the connection can be kept.
const DISCARD_TIME: Duration = Duration::from_millis(250);

/// What one worker needs to serve requests.
pub struct Proxy {
    active: Mutex<Arc<Active>>,
    throttle: Throttle,
    clock: Clock,
    metrics: Arc<WorkerMetrics>,
    date: DateCache,
}

/// The plan in force, and this worker's connections to its upstreams, in the plan's order.
#[derive(Debug)]
pub struct Active {
    /// The plan.
    pub plan: Arc<Plan>,
    /// Its upstreams.
    pub upstreams: Vec<Arc<Upstream>>,
    /// Where this worker counts its routes.
    counters: RouteCounters,
    /// What throttled clients are told under it: they keep its limits, and end with it.
    rejections: Rejections,
    /// The process's count of failed exchanges.
    failed: Arc<Failed>,
}

impl Active {
    /// A plan with this worker's connections to its upstreams, with which nothing was done yet.
    pub fn new(plan: Arc<Plan>, upstreams: Vec<Arc<Upstream>>, failed: Arc<Failed>) -> Self {
        let counters = RouteCounters::new(plan.routes.len());
        Self { plan, upstreams, counters, rejections: Rejections::new(), failed }
    }

    /// Where the requests of the route at this place are counted; `metrics` are the worker's.
    fn counter(&self, route: Option<usize>, metrics: &WorkerMetrics) -> RouteCounter {
        route.map_or(RouteCounter::NO_ROUTE, |route| {
            self.counters.of(route, &self.plan.routes[route].name, metrics)
        })
    }

    /// The upstream that an [`Action::Forward`] of the plan names.
    fn upstream(&self, place: u32) -> &Arc<Upstream> {
        &self.upstreams[usize::try_from(place).unwrap_or(usize::MAX)]
    }
}

/// A client's connection, as its requests see it.
#[derive(Debug)]
struct Connection {
    peer: Peer,
    phase: Arc<Phase>,
    socket: Socket,
    /// Held for as long as the connection is open.
    _slot: Slot,
}

/// A request's parts, taken on its way as they are used up. A connection has one, since what one
/// request has used the next one uses again.
struct Exchange {
    parts: request::Parts,
    /// Which fields the request came with.
    seen: Seen,
    host: LastHost,
    body: Option<Incoming>,
    /// How far the body has come that is on its way upstream.
    body_end: BodyEnd,
    /// The upstream's server that answered.
    server: Option<Arc<str>>,
    answer: Answer,
}

impl Exchange {
    fn new() -> Self {
        Self {
            parts: Request::new(()).into_parts().0,
            seen: Seen::default(),
            host: LastHost::default(),
            body: None,
            body_end: BodyEnd::default(),
            server: None,
            answer: Answer::default(),
        }
    }

    /// Another request, whose parts are there already.
    fn begin(&mut self, body: Incoming) {
        self.seen = Seen::default();
        self.body = Some(body);
        self.body_end = BodyEnd::default();
        self.server = None;
    }
}

impl Proxy {
    /// A proxy with a first plan.
    pub fn new(
        active: Arc<Active>,
        throttle: Throttle,
        clock: Clock,
        metrics: Arc<WorkerMetrics>,
    ) -> Self {
        let (active, date) = (Mutex::new(active), DateCache::default());
        Self { active, throttle, clock, metrics, date }
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

    /// Answers one request: the answer is in the exchange then.
    async fn handle(&self, exchange: &mut Exchange, connection: &Connection) {
        let began = Instant::now();
        connection.phase.begin(began);
        let parts = &exchange.parts;
        let mut ended = self.begin(connection, began, parts.version);
        // From the start, so that a client that leaves is logged too.
        ended.noted.access = ended.active.plan.log.access.then(|| {
            Box::new(Access {
                method: parts.method.clone(),
                path: parts.uri.path().to_owned(),
                client: connection.peer.address,
                upstream: None,
            })
        });
        let mut quotas = Quotas::new();
        let way = (&*ended.active, connection);
        let passed = self.pass(way, exchange, (began, &mut ended.noted), &mut quotas).await;
        let answer = &mut exchange.answer;
        if let Err(refusal) = passed {
            if let Refusal::Upstream(error) = &refusal {
                ended.failed(error);
            }
            let protocol = answer::protocol(&exchange.parts.headers, exchange.seen);
            let default = &ended.active.plan.reject;
            let rejections = &ended.active.rejections;
            let asked = Asked { protocol, quotas: &quotas, default, rejections };
            answer::respond(answer, &refusal, &asked);
            if !matches!(refusal, Refusal::ClientLeft) {
                ended.noted.permit.refused(answer.status);
            }
            if !exchange.body_end.is_reached() {
                answer.close();
            }
        }
        drop(quotas);
        if let Some(body) = exchange.body.take()
            && !discard(body, &exchange.parts.headers, connection, &ended.active.plan).await
        {
            answer.close();
        }
        if answer.closes() {
            connection.phase.linger();
        }
        ended.status = answer.status;
        ended.body_end = std::mem::take(&mut exchange.body_end);
        if let Some(body) = &mut answer.body {
            body.until(ended);
        }
    }

    /// What is counted even if the client leaves now.
    fn begin(&self, connection: &Connection, began: Instant, version: Version) -> Ended {
        Ended {
            phase: connection.phase.clone(),
            metrics: self.metrics.clone(),
            began,
            active: self.active(),
            version,
            body_end: BodyEnd::default(),
            status: client_gone(),
            noted: Noted::default(),
            now: None,
        }
    }

    /// The straight line: host, path, route, client, limits, upstream.
    async fn pass<'p>(
        &self,
        (active, connection): (&'p Active, &Connection),
        exchange: &mut Exchange,
        (began, noted): (Instant, &mut Noted),
        quotas: &mut Quotas<'p>,
    ) -> Result<(), Refusal<'p>> {
        let plan = &*active.plan;
        let parts = &mut exchange.parts;
        let host = exchange.host.of(&parts.uri, &parts.headers, parts.version);
        let host = host.map_err(Refusal::Host)?;
        let seen = Seen::of(&parts.headers);
        exchange.seen = seen;
        if hop::has_unknown_coding(&parts.headers, seen) {
            return Err(Refusal::TransferCoding);
        }
        method::check(&parts.method).map_err(|MethodCase| Refusal::MethodCase)?;
        if is_never_served(&parts.method) {
            return Err(Refusal::Method(Vec::new()));
        }
        let uri = &parts.uri;
        let path =
            NormalPath::parse(uri.path(), plan.server.merge_slashes).map_err(Refusal::Path)?;
        let trust = &plan.server.trust;
        let client = trust.client(connection.peer.address, &parts.headers);
        if let Some(access) = &mut noted.access {
            access.client = client.address;
        }
        headers::leave_sent(uri, &mut parts.headers, seen, &client, trust);
        let found = plan.table.find(&path, &parts.method, host.as_str(), &parts.headers).map_err(
            |none| match none {
                NoRoute::NotFound => Refusal::NotFound,
                NoRoute::MethodNotAllowed(allowed) => Refusal::Method(allowed),
            },
        )?;
        let route = &plan.routes[found.route];
        noted.route = Some(found.route);
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
            cert: None,
        };
        let now = self.clock.at(began);
        noted.permit = self.throttle.admit((plan, route), &view, now, quotas).await?;
        match &route.action {
            Action::Respond { status, body } => {
                respond(&mut exchange.answer, *status, Bytes::clone(body));
            }
            Action::Forward { upstream, rewrite } => {
                let target = forward::target(uri, &path, rewrite.as_deref())?;
                let upstream = active.upstream(*upstream);
                let way = Way { plan, upstream, route, client: &client, seen };
                forward::send(exchange, connection, target, way).await?;
            }
        }
        if let Some(access) = &mut noted.access {
            access.upstream = exchange.server.take();
        }
        let answer = &mut exchange.answer;
        noted.permit.answered(answer.status, &answer.fields);
        finish(&mut answer.fields, plan, route, quotas);
        Ok(())
    }
}

/// Whether requests of this method are refused, whatever the routes say.
pub fn is_never_served(method: &Method) -> bool {
    matches!(*method, Method::TRACE | Method::CONNECT)
}

/// Takes out of a request what its API will not be sent, as it is done before routes and limits look
/// at it.
pub fn leave_sent(parts: &mut request::Parts, client: &Client, trust: &Trust) {
    let seen = Seen::of(&parts.headers);
    headers::leave_sent(&parts.uri, &mut parts.headers, seen, client, trust);
}

/// The status for a client that left before its answer: for logs and metrics, nobody is sent it.
fn client_gone() -> StatusCode {
    StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST)
}

fn is_too_large(headers: &HeaderMap, plan: &Plan) -> bool {
    let length = || headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse::<u64>().ok();
    plan.server.max_body_size.is_some_and(|most| length().is_some_and(|length| length > most))
}

/// The answer of a route that has no upstream.
fn respond(answer: &mut Answer, status: StatusCode, body: Bytes) {
    let typed = !body.is_empty();
    answer.begin(status, body);
    if typed {
        let kind = HeaderValue::from_static("text/plain; charset=utf-8");
        answer.fields.append(&CONTENT_TYPE, &kind);
    }
}

/// What is the same for every answer that the limits let pass.
fn finish(fields: &mut Fields, plan: &Plan, route: &RouteSpec, quotas: &[Quota<'_>]) {
    if !quotas.is_empty() {
        write_quotas(fields, quotas, &plan.reject, None);
    }
    if let Some(changes) = route.response_headers() {
        headers::answer::change(fields, changes);
    }
}

/// Reads a body that nobody wants, or leaves it where it is long or not asked for yet. Says
/// whether the connection can be used again.
async fn discard(
    body: Incoming,
    headers: &HeaderMap,
    connection: &Connection,
    plan: &Plan,
) -> bool {
    if body.is_end_stream() {
        return true;
    }
    connection.phase.unsettle();
    let awaited = headers.contains_key(EXPECT);
    match body.size_hint().exact() {
        _ if awaited => false,
        Some(length) if length <= MOST_DISCARDED => {
            // The answer need not wait for it.
            let (phase, patience) = (connection.phase.clone(), plan.server.body_timeout);
            tokio::spawn(async move {
                tunnel::drain(body, MOST_DISCARDED, patience).await;
                phase.discarded();
            });
            true
        }
        Some(_) => false,
        None => tunnel::drain(body, MOST_DISCARDED, DISCARD_TIME).await,
    }
}
