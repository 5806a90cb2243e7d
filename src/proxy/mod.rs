//! The way of one request through the proxy. `downstream` calls [`Proxy::handle`] for each request.
//!
//! The request passes these steps in order: its head is read (`reading`), the limits decide (`throttle`), the upstream
//! answers (`forward`). A step that fails returns a [`Refusal`], which `answer` turns into a response.
//! `record` counts and logs the request when the response has ended.

mod active;
mod answer;
mod body;
mod calls;
pub(crate) mod client;
mod discard;
mod entry;
mod exchange;
mod forward;
mod grpc;
mod headers;
mod protocol;
mod record;
pub(crate) mod refusal;
mod rejection;
mod request_id;
mod response;
mod tasks;
mod trace;

use std::cell::{Cell, LazyCell, RefCell};
use std::mem;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::header::HeaderValue;
use http::{HeaderMap, Response, Version};
use http_body::Body as _;
use tokio::time::{Instant, timeout};

pub(crate) use self::active::Active;
pub(crate) use self::body::ResponseBody;
use self::body::{Answer, withhold_body};
pub(crate) use self::client::Switched;
use self::client::{ClientConnection, Overdue};
use self::discard::discard;
use self::exchange::Exchange;
use self::forward::Way;
pub(crate) use self::headers::x_forwarded::Peer;
use self::protocol::Protocol;
use self::record::{RequestFindings, RequestRecord};
use self::refusal::{Refusal, is_authority_form};
pub(crate) use self::tasks::WorkerTasks;
use crate::clock::Clock;
use crate::decide::{Form, Leases};
use crate::observe::metrics::{DecisionKind, WorkerMetrics};
use crate::observe::trace::ServerAnswer;
use crate::plan::{Action, RouteSpec};
use crate::reading::{self, RequestHead, RequestReading, Seen, Sender, TIDEGATE_OVER, TargetParts};
use crate::request::client::PeerAddress;
use crate::request::key::{Token, View};
use crate::request::network::client_network;
use crate::request::route::NoRoute;
use crate::throttle::{Admission, LimitQuestion, Quota, Throttle};
use crate::upstream::progress::BodyFault;
use crate::upstream::times::ClientTimes;

/// What one worker needs to serve requests.
pub(crate) struct Proxy {
    active: RefCell<Rc<Active>>,
    times: Rc<Cell<ClientTimes>>,
    throttle: Throttle,
    clock: Clock,
    /// What requests hold that other proxies forward.
    leases: Arc<Leases>,
    /// Clients' connections, and requests whose clients have left.
    pub(crate) tasks: Rc<WorkerTasks>,
}

/// The client has left before its answer.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the client has left")]
pub(crate) struct ClientLeft;

impl Proxy {
    /// A proxy with a first plan.
    pub(crate) fn new(
        active: Rc<Active>,
        throttle: Throttle,
        clock: Clock,
        leases: Arc<Leases>,
        tasks: WorkerTasks,
    ) -> Self {
        let times = Rc::new(Cell::new(ClientTimes::of(&active.plan.server)));
        let (active, tasks) = (RefCell::new(active), Rc::new(tasks));
        Self { active, times, throttle, clock, leases, tasks }
    }

    /// The plan in force.
    pub(crate) fn active(&self) -> Rc<Active> {
        self.active.borrow().clone()
    }

    /// The time-outs in force for clients.
    pub(crate) fn times(&self) -> &Rc<Cell<ClientTimes>> {
        &self.times
    }

    /// The most bytes of a request's head.
    pub(crate) fn max_header_size(&self) -> usize {
        self.active.borrow().plan.server.max_header_size
    }

    /// Puts another plan in force, for requests that begin from now on. Its time-outs for clients hold at once.
    pub(crate) fn activate(&self, active: Rc<Active>) {
        self.times.set(ClientTimes::of(&active.plan.server));
        self.active.replace(active);
    }

    /// All counts of this worker.
    pub(crate) fn metrics(&self) -> Arc<WorkerMetrics> {
        self.active().metrics.clone()
    }

    /// The limits and their store.
    pub(crate) fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    /// Answers one request of a client's connection.
    ///
    /// # Errors
    /// If the client has left before its answer.
    // The request is taken apart before the future is made. Inside, the future would hold the request twice.
    fn answer(
        &self,
        mut exchange: Exchange,
        client: &Rc<ClientConnection>,
    ) -> impl Future<Output = Result<Answer, ClientLeft>> {
        let form = client.peer.address.asks().then(|| exchange.call_form());
        // The record begins before the future is made. hyper drops the future unpolled if the client has
        // closed after the request, and the request must still be counted.
        let Exchange { began, seen, protocol, .. } = exchange;
        let is_second = client.begin(began);
        let mut record =
            RequestRecord::begin(self.active(), client, began, &mut exchange.head, protocol);
        record.via = form.map(Form::name);
        let server = &record.active.plan.server;
        let headers = &mut exchange.head.headers;
        record.request_id = request_id::name(&self.clock, server, client, began, headers);
        async move {
            client.phase.wait_for_room(is_second).await;
            let head = &exchange.head;
            let time_limit = match protocol {
                Protocol::Grpc(_) if seen.has(Seen::GRPC_TIMEOUT) => {
                    grpc::time_limit(&head.headers)
                }
                Protocol::Grpc(_) | Protocol::Http(_) => None,
            };
            let is_authority_form = is_authority_form(head);
            let mut question = LimitQuestion::default();
            let (active, findings) = (&*record.active, &mut record.findings);
            let request_id = record.request_id.as_deref();
            let outcome = if let Some(form) = form {
                // The requests that it asks about have their own records.
                record.is_silent = true;
                let answering = self.answer_call(&record.active, client, form, &mut exchange);
                let answered = Box::pin(answering).await;
                record.is_silent = !matches!(answered, Err(Refusal::Call(_) | Refusal::Body(_)));
                answered
            } else {
                let passing =
                    self.pass(active, client, &mut exchange, request_id, findings, &mut question);
                let mut passing = pin!(passing);
                match time_limit {
                    None => passing.await,
                    Some(time_limit) => {
                        let outcome = timeout(time_limit, passing.as_mut()).await;
                        outcome.unwrap_or(Err(Refusal::Deadline))
                    }
                }
            };
            let (mut answer, status, mut closes) = match outcome {
                Ok(answer) => {
                    let status = answer.status();
                    (answer, status, false)
                }
                // The record ends here, and counts and logs the request with the status 499.
                Err(Refusal::ClientLeft) => return Err(ClientLeft),
                Err(refusal) => {
                    if let Refusal::Upstream(error) = &refusal {
                        record.failed(error.server().unwrap_or("-"), error.kind(), error);
                    }
                    if let Refusal::Body(BodyFault::Stalled) = &refusal {
                        client.phase.overdue.set(Some(Overdue::Body));
                    }
                    record.findings.refused(&refusal, &record.active, client.peer.address);
                    let (active, route) = (&*record.active, record.findings.route);
                    let route = route.map(|route| &active.plan.routes[route]);
                    let quotas = &question.quotas;
                    let answer = answer::respond(&refusal, quotas, active, protocol, route);
                    let status = match form {
                        // By gRPC the answer has the status 200 also if the call cannot be answered.
                        Some(_) => refusal.meaning().status,
                        None => answer.status(),
                    };
                    match exchange.is_cut(&refusal) {
                        // As if the client had left.
                        true => drop(mem::take(&mut record.findings.permit)),
                        false => record.findings.permit.refused(status),
                    }
                    let closes = refusal.closes() || is_authority_form;
                    let closes = closes || !exchange.body_end.is_reached();
                    (answer.map(ResponseBody::whole), status, closes)
                }
            };
            drop(question);
            withhold_body(&mut answer, &exchange.head.method);
            if client.phase.is_multiplexed() {
                // The rest of a body is thrown away when the body is dropped. A client that was not told to send its
                // body sends none.
                if let Some(body) = exchange.body.as_mut().filter(|_| seen.has(Seen::EXPECT)) {
                    body.give_up();
                }
            } else {
                if let Some(body) = exchange.body.take() {
                    let awaited = seen.has(Seen::EXPECT);
                    let time_limit = record.active.plan.server.body_timeout;
                    closes |= !Box::pin(discard(body, awaited, client, time_limit)).await;
                }
                if closes {
                    client.phase.lingers.set(true);
                }
                // An HTTP/1.0 client knows the end of a body without a length by the connection's end.
                let is_old = exchange.head.version < Version::HTTP_11;
                let ends = client.phase.ending.get()
                    || (is_old && answer.body().size_hint().exact().is_none());
                if closes || (ends && exchange.switched.is_none()) {
                    response::close(&mut answer, exchange.head.version);
                }
            }
            if let Some((name, id)) =
                record.active.plan.server.request_id.as_ref().zip(record.request_id.as_deref())
            {
                answer.headers_mut().insert(name, id.clone());
            }
            record.status = status;
            if let Some(span) = record.findings.span() {
                span.grpc_status = grpc::status(answer.headers());
            }
            record.body_end = exchange.body_end;
            if let Some(mut switched) = exchange.switched {
                switched.permit = record.findings.permit.take_for_tunnel();
                client.switch(switched);
            }
            answer.body_mut().record(record);
            Ok(answer)
        }
    }

    /// Takes a request through all steps: its head, limits, upstream.
    async fn pass<'p>(
        &self,
        active: &'p Active,
        client: &ClientConnection,
        exchange: &mut Exchange,
        request_id: Option<&HeaderValue>,
        findings: &mut RequestFindings,
        question: &mut LimitQuestion<'_, 'p>,
    ) -> Result<Answer, Refusal<'p>> {
        let (plan, seen) = (&*active.plan, exchange.seen);
        if let Some(fault) = exchange.asked.as_mut().and_then(|asked| asked.fault.take()) {
            return Err(Refusal::Call(fault));
        }
        let asked = exchange.asked.as_deref();
        let form = asked.map(|asked| asked.form);
        let head = &mut exchange.head;
        let peer = asked.and_then(|asked| asked.ip).map(PeerAddress::Network);
        let peer = peer.unwrap_or(client.peer.address);
        let sender = match form.and_then(Form::client_header) {
            // A client may have written the header that `[server]` names.
            Some(header) => {
                Sender::Client(plan.server.trust.client_in(&header, peer, &head.headers))
            }
            None => Sender::Peer(peer),
        };
        let uri = mem::take(&mut head.uri);
        let came = RequestHead {
            method: &head.method,
            target: TargetParts::from(&uri),
            version: head.version,
            headers: &mut head.headers,
            seen,
            sender,
            goes_as_it_came: form.is_some(),
        };
        let reading =
            reading::read(plan, came).map_err(|unreadable| findings.unread(unreadable))?;
        findings.read(&reading);
        active.note_untrusted(&reading);
        let route = reading.route;
        let began = exchange.began;
        let client_address = reading.client.address;
        let token = LazyCell::new(|| {
            let now = self.clock.wall().at(self.clock.at(began));
            let client = client_network(client_address, plan.server.prefixes);
            active.tokens.read_of(Some(client), &head.headers, now)
        });
        let view = View {
            // The certificate of a proxy that asks is not that of its client.
            cert: client.cert.as_deref().filter(|_| form.is_none()),
            token: Token(&token),
            has_end: form.is_none_or(Form::tells_end),
            may_wait: form != Some(Form::Envoy),
            cost: asked.and_then(|asked| asked.cost),
            id: request_id.and_then(|id| id.to_str().ok()),
            ..reading.view(&head.method, &head.headers)
        };
        let named = asked.and_then(|asked| asked.limits.as_deref());
        let limits = named.unwrap_or(&route.limits);
        let now = self.clock.at(began);
        // If the client leaves before the limits have decided, the request counts as held.
        findings.decision = DecisionKind::Delayed;
        let traced = findings.span().map(|span| &mut span.limits);
        let admitted = self.throttle.admit(plan, limits, &view, now, question, traced).await;
        findings.decision = DecisionKind::default();
        let over;
        Admission { permit: findings.permit, decision: findings.decision, over } = admitted?;
        if let Some(form) = form {
            // This is no answer for the client, which gets that of its API. `answer_call` makes the answer to the call.
            let mut answer = Response::new(Bytes::new());
            *answer.status_mut() = form.allowed();
            // The proxy that asks may pass this field on to the API, as tidegate does.
            answer.headers_mut().extend(over.map(|over| (TIDEGATE_OVER.clone(), over)));
            write_quotas(answer.headers_mut(), active, &question.quotas);
            return Ok(answer.map(ResponseBody::whole));
        }
        let affinity = match &route.action {
            Action::Forward { upstream, .. } => {
                forward::affinity(active.upstream(*upstream), &view)
            }
            Action::Respond { .. } | Action::Decide => None,
        };
        let RequestReading { client: address, path, found, .. } = reading;
        // The limits come before this error: a client that searches for routes is counted too.
        found.map_err(|none| match none {
            NoRoute::NotFound => Refusal::NotFound,
            NoRoute::MethodNotAllowed(allowed) => Refusal::Method(allowed),
        })?;
        let mut answer = match &route.action {
            // Until a restart, requests come here even if the file has no `server.listen` any more.
            Action::Decide => return Err(Refusal::NotFound),
            Action::Respond { status, body } => {
                let kind = (!body.is_empty()).then_some(response::PLAIN_TEXT);
                response::own(*status, kind, Bytes::clone(body)).map(ResponseBody::whole)
            }
            Action::Forward { upstream, rewrite } => {
                let target = forward::target(&uri, &path, rewrite.as_deref())?.unwrap_or(uri);
                let upstream = active.upstream(*upstream);
                let (details, permit) = (findings.details.as_deref_mut(), &mut findings.permit);
                let address = &address;
                if let Some(over) = over {
                    exchange.head.headers.insert(&TIDEGATE_OVER, over);
                }
                let way = Way { plan, upstream, route, address, affinity, details, permit };
                let sent = Instant::now();
                let answer = forward::send(exchange, client, target, way).await?;
                let (at, status) = (Instant::now(), answer.status());
                let after = at.saturating_duration_since(sent);
                findings.answered_after = Some(after);
                if let Some(span) = findings.span() {
                    span.answer = Some(ServerAnswer { at, status, after });
                }
                answer
            }
        };
        findings.permit.answered(answer.status(), answer.headers());
        finish(answer.headers_mut(), active, route, &question.quotas);
        Ok(answer)
    }
}

/// The last changes to the answer of a request that the limits let pass.
fn finish(headers: &mut HeaderMap, active: &Active, route: &RouteSpec, quotas: &[Quota<'_>]) {
    write_quotas(headers, active, quotas);
    if let Some(changes) = &route.options().response {
        headers::change(headers, changes);
    }
}

fn write_quotas(headers: &mut HeaderMap, active: &Active, quotas: &[Quota<'_>]) {
    if !quotas.is_empty() {
        active.fields.write(headers, quotas, &active.plan.reject);
    }
}
