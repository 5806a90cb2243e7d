//! The end of a request: it is counted, logged and settled.

use std::fmt::Display;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use http::header::{HeaderValue, USER_AGENT};
use http::{StatusCode, Version};
use tokio::time::Instant;
use tracing::info;

use super::client::ClientConnection;
use super::{Active, Exchange, request_id, trace};
use crate::answer::protocol::Protocol;
use crate::answer::refusal::{Refusal, client_gone};
use crate::answer::response::OwnResponse;
use crate::clock::Clock;
use crate::limit::Mode;
use crate::limit::name::Name;
use crate::observe::events::{FailedExchange, RefusedRequests};
use crate::observe::metrics::{DecisionKind, RouteCounter, UpstreamFailure};
use crate::observe::trace::{LONGEST, LimitAnswers, RequestDetails, ServerAnswer, cut};
use crate::observe::{PROCESS, json_object, next_access_line};
use crate::reading::{BadHead, RequestReading, Unreadable};
use crate::request::host::Host;
use crate::settings::{Action, HeaderChanges, NO_ROUTE, RouteSpec};
use crate::throttle::{Permit, Quota, Refused};
use crate::upstream::progress::{BodyEnd, BodyFault};

/// The target of access lines, for filters.
const ACCESS: &str = "tidegate::access";

/// The reason of a request that is not valid HTTP.
const MALFORMED: &str = "malformed";

/// The record of a request. It is dropped with the response's body, and then counts and logs the request.
#[derive(Debug)]
pub(crate) struct RequestRecord {
    pub(crate) client: Rc<ClientConnection>,
    pub(crate) began: Instant,
    pub(crate) active: Rc<Active>,
    pub(crate) status: StatusCode,
    /// The index of the request's route in the settings; `None` if no route was found.
    route: Option<usize>,
    /// The client, as the request's head names it. Before the head was read, the peer.
    address: IpAddr,
    /// What the request holds of its limits. It is settled when the response has ended.
    pub(crate) permit: Permit,
    /// The decision of all limits together.
    pub(crate) decision: DecisionKind,
    /// How long it took from the sending upstream to the head of the answer.
    pub(crate) answered_after: Option<Duration>,
    /// `Some` only if the request is logged or traced.
    pub(crate) details: Option<Box<RequestDetails>>,
    /// The client's HTTP version. In HTTP/1.0 the end of the connection may mark the end of a body.
    pub(crate) version: Version,
    /// How far the request's body has come.
    pub(crate) body_end: BodyEnd,
    /// Bytes of the response's body that were handed to the connection.
    pub(crate) sent: u64,
    /// The request ID, if the file names a header for it.
    pub(crate) request_id: Option<Box<HeaderValue>>,
    /// The result of [`CorsSpec::granted`](crate::settings::CorsSpec::granted) for the request.
    origin: Option<Box<HeaderValue>>,
    pub(crate) protocol: Protocol,
    /// The form of the call, if another proxy asks for a decision about the request.
    pub(crate) via: Option<&'static str>,
    /// Whether this is only a call about requests that have their own records.
    pub(crate) is_silent: bool,
}

impl RequestRecord {
    /// Begins the record of a request. `via` is as in [`WorkerContext::begin`](super::WorkerContext::begin).
    pub(super) fn begin(
        active: Rc<Active>,
        client: &Rc<ClientConnection>,
        exchange: &mut Exchange,
        via: Option<&'static str>,
        clock: &Clock,
    ) -> Self {
        let Exchange { began, head, protocol, .. } = exchange;
        let server = &active.settings.server;
        let trusted = || via.is_some() || server.trust.trusts_peer(client.peer.address);
        let ids = trace::begin(&active.settings, trusted, &mut head.headers);
        let address = client.peer.address.as_client();
        let details = (active.settings.log.access || ids.is_some()).then(|| {
            Box::new(RequestDetails {
                ids,
                times: (*began, *began),
                method: head.method.clone(),
                route: None,
                path: head.uri.path().to_owned(),
                scheme: client.peer.scheme(),
                host: None,
                version: head.version,
                client: address,
                user_agent: head.headers.get(USER_AGENT).cloned(),
                status: client_gone(),
                grpc_status: None,
                upstream: None,
                server: None,
                limit: None,
                reason: None,
                failure: None,
                limits: LimitAnswers::default(),
                answer: None,
            })
        });
        let cors = active.settings.cors.as_ref();
        let origin = cors.and_then(|cors| cors.granted(&head.headers)).map(Box::new);
        let request_id = request_id::name(clock, server, trusted, *began, &mut head.headers);
        Self {
            client: client.clone(),
            began: *began,
            active,
            status: client_gone(),
            route: None,
            address,
            permit: Permit::default(),
            decision: DecisionKind::default(),
            answered_after: None,
            details,
            version: head.version,
            body_end: BodyEnd::default(),
            sent: 0,
            request_id,
            origin,
            protocol: *protocol,
            via,
            is_silent: false,
        }
    }

    /// Notes what the head of the request means.
    pub(crate) fn read(&mut self, reading: &RequestReading<'_, '_>) {
        self.route = reading.found.as_ref().ok().copied();
        self.address = reading.client.address;
        self.note_host(&reading.host);
    }

    /// Notes what is known about a request whose head cannot be read, and returns the refusal.
    pub(crate) fn unread(&mut self, Unreadable { host, why }: Unreadable) -> Refusal<'static> {
        host.iter().for_each(|host| self.note_host(host));
        if let BadHead::TooLarge { client, route } = why {
            (self.route, self.address) = (Some(route), client);
        }
        why.into()
    }

    /// HTTP/1.0 may name no host.
    fn note_host(&mut self, host: &Host) {
        if let Some(details) = &mut self.details {
            details.host = Some(host.as_str()).filter(|host| !host.is_empty()).map(str::to_owned);
        }
    }

    /// Notes why the request is refused, and answers it. `quotas` is what its limits say.
    pub(crate) fn refused(&mut self, refusal: &Refusal<'_>, quotas: &[Quota<'_>]) -> OwnResponse {
        let reason = refusal.reason();
        if let Some(details) = &mut self.details {
            details.reason = Some(reason);
        }
        match refusal {
            // The failure was told.
            Refusal::Upstream(_) => {}
            Refusal::Deadline => self.note_failure(None, UpstreamFailure::Timeout),
            Refusal::Limits(Refused::StoreUnavailable) => self.decision = DecisionKind::Error,
            Refusal::Limits(Refused::Throttled { limit, .. }) => {
                self.decision = DecisionKind::Rejected;
                if let Some(details) = &mut self.details {
                    details.limit = Some((*limit).clone());
                }
            }
            _ if matches!(refusal, Refusal::Limits(_))
                || refusal.meaning().status.is_client_error() =>
            {
                self.decision = DecisionKind::Refused;
                self.active.metrics.refused(reason);
                // The record counts a body that broke among the malformed requests.
                if !matches!(refusal, Refusal::Body(BodyFault::Broken)) {
                    let limit = match refusal {
                        Refusal::Limits(Refused::Key { limit, .. }) => Some((*limit).clone()),
                        _ => None,
                    };
                    let route = self.route().map_or_else(|| NO_ROUTE.into(), |it| it.name.clone());
                    let refused = RefusedRequests { reason, limit, route };
                    self.active.error_log.refused.count(refused, self.address, Instant::now());
                }
            }
            _ => {}
        }
        let (protocol, route) = (self.protocol, self.route());
        let answer = self.active.answers.respond(refusal, quotas, protocol, route, self.origin());
        self.status = answer.status();
        answer
    }

    /// The origin whose page may read an answer that tidegate makes. [`Answers::open`](crate::answer::Answers::open)
    /// writes it.
    pub(crate) fn origin(&self) -> Option<&HeaderValue> {
        self.origin.as_deref()
    }

    /// The route of the request, if one was found.
    fn route(&self) -> Option<&RouteSpec> {
        self.active.settings.routes.get(self.route?)
    }

    /// The route's name for logs.
    fn route_name(&self) -> &str {
        self.route().map_or(NO_ROUTE, |route| &route.name)
    }

    /// Notes the answer of a server to which the request was sent at `sent`.
    pub(crate) fn answered(&mut self, sent: Instant, status: StatusCode) {
        let at = Instant::now();
        let after = at.saturating_duration_since(sent);
        self.answered_after = Some(after);
        if let Some(details) = &mut self.details {
            details.answer = Some(ServerAnswer { at, status, after });
        }
    }

    /// The changes that the route makes to an answer's head.
    pub(crate) fn response_changes(&self) -> Option<&HeaderChanges> {
        self.route()?.options().response.as_ref()
    }

    /// The name of the route's upstream.
    pub(crate) fn upstream(&self) -> Option<&Name> {
        let settings = &self.active.settings;
        match &self.route()?.action {
            Action::Forward { upstream, .. } if self.via.is_none() => {
                settings.upstream(*upstream).map(|it| &it.name)
            }
            _ => None,
        }
    }

    /// Counts and logs a failed exchange with the route's upstream. `server` is `None` if no server was asked.
    pub(crate) fn failed(
        &mut self,
        server: Option<&str>,
        failure: UpstreamFailure,
        error: &dyn Display,
    ) {
        let upstream = self.upstream();
        if let Some(upstream) = upstream {
            self.active.metrics.upstream_failed(upstream, failure);
        }
        let failed = FailedExchange {
            upstream: upstream.map_or_else(String::new, Name::to_string),
            server: server.unwrap_or("-").to_owned(),
            route: self.route_name().to_owned(),
            error: error.to_string(),
        };
        self.active.error_log.failed.count(failed, (), Instant::now());
        self.note_failure(server, failure);
    }

    fn note_failure(&mut self, server: Option<&str>, failure: UpstreamFailure) {
        if let Some(details) = &mut self.details {
            details.failure = Some(failure.reason());
            details.server = server.map(Arc::from).or_else(|| details.server.take());
        }
    }

    /// Writes the access line.
    fn log(&self, details: &RequestDetails, duration: Duration) {
        let user_agent =
            details.user_agent.as_ref().map(|it| String::from_utf8_lossy(it.as_bytes()));
        let LimitAnswers { decisions, plan, .. } = &details.limits;
        let counted = || decisions.iter().filter(|it| it.mode != Mode::Candidate);
        let keys = counted().map(|it| (&it.limit, it.key.as_str()));
        let costs = counted().map(|it| {
            let used = self.permit.used().find(|(limit, _)| **limit == it.limit);
            (&it.limit, used.map_or(it.cost, |(_, used)| used))
        });
        info!(
            target: ACCESS,
            method = details.method.as_str(),
            host = details.host.as_deref().unwrap_or("-"),
            path = details.path,
            protocol = protocol(self.version),
            status = self.status.as_u16(),
            bytes = self.sent,
            duration_ms = (duration.as_secs_f64() * 1e6).round() / 1e3,
            route = self.route_name(),
            client = %self.address,
            user_agent = user_agent.as_deref(),
            limit = details.limit.as_ref().map(Name::as_str),
            reason = details.reason,
            upstream = details.server.as_deref(),
            upstream_ms = details.answer.as_ref().map(|it| (it.after.as_secs_f64() * 1e6).round() / 1e3),
            process = PROCESS.as_str(),
            n = next_access_line(),
            keys = (!decisions.is_empty()).then(|| json_object(keys)),
            costs = (!decisions.is_empty()).then(|| json_object(costs)),
            plan = plan.as_ref().map(Name::as_str),
            via = self.via,
            request_id = self.request_id.as_ref().and_then(|id| id.to_str().ok()),
            trace_id = details.ids.as_ref().map(|ids| ids.trace.to_string()),
            "request"
        );
    }

    /// Completes the span of a request that ends now. Texts of the client are copied: thousands of spans may wait for a
    /// collector that is away, and these copies have a bounded size.
    fn complete(&self, details: &mut RequestDetails, now: Instant) {
        details.times.1 = now;
        details.route = self.route.and_then(|index| {
            let settings = &self.active.settings;
            let name = settings.routes.get(index)?.name.clone();
            Some((name, settings.table.pattern(index).as_str().to_owned()))
        });
        details.path = cut(&details.path).to_owned();
        details.host = details.host.as_deref().map(|host| cut(host).to_owned());
        details.user_agent = details.user_agent.take().and_then(|agent| {
            let agent = agent.as_bytes();
            HeaderValue::from_bytes(agent.get(..LONGEST).unwrap_or(agent)).ok()
        });
        (details.client, details.status) = (self.address, self.status);
        details.upstream = self.upstream().cloned();
    }

    /// The response ends before its body is complete. An HTTP/1.0 client gets a reset, since it would
    /// take a normal end of the connection for the end of the body.
    pub(crate) fn broke_off(&self) {
        if self.version < Version::HTTP_11 {
            self.client.socket.reset_at_close();
        }
    }
}

/// Where the limits note what they said, if the request with these details is traced or has an access line.
pub(crate) fn traced(details: &mut Option<Box<RequestDetails>>) -> Option<&mut LimitAnswers> {
    Some(&mut details.as_mut()?.limits)
}

/// Counts and logs a malformed request, which is answered with `status`. `via` is as in
/// [`WorkerContext::begin`](super::WorkerContext::begin).
pub(crate) fn malformed(
    active: &Active,
    client: &ClientConnection,
    via: Option<&'static str>,
    status: StatusCode,
) {
    let metrics = &active.metrics;
    metrics.refused(MALFORMED);
    match via {
        Some(via) => metrics.asked(via, status),
        None => {
            let (counter, decision) = (RouteCounter::NO_ROUTE, DecisionKind::Refused);
            metrics.request(counter, status, decision, Duration::ZERO, None);
        }
    }
    if active.settings.log.access {
        info!(
            target: ACCESS,
            method = "-",
            host = "-",
            path = "-",
            protocol = "-",
            status = status.as_u16(),
            bytes = 0,
            duration_ms = 0.0,
            route = NO_ROUTE,
            client = %client.peer.address.as_client(),
            reason = MALFORMED,
            process = PROCESS.as_str(),
            n = next_access_line(),
            via,
            "request"
        );
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        if self.status == client_gone() && thread::panicking() {
            self.status = StatusCode::INTERNAL_SERVER_ERROR;
            self.client.origin_of_panic.replace(self.origin.take());
        }
        let now = Instant::now();
        let duration = now.saturating_duration_since(self.began);
        let phase = &self.client.phase;
        phase.end(now);
        if !self.body_end.is_reached() && !phase.is_multiplexed() {
            phase.unsettled.set(true);
            phase.lingers.set(true);
        }
        if let Some(fault @ BodyFault::Broken) = self.body_end.fault() {
            let client = self.client.peer.address.as_client();
            self.active.error_log.malformed.count(fault.to_string(), client, now);
        }
        if self.is_silent {
            return;
        }
        let metrics = &self.active.metrics;
        match self.via {
            Some(via) => metrics.asked(via, self.status),
            None => {
                let counter = self.active.counter(self.route);
                let upstream = self.upstream().zip(self.answered_after);
                metrics.request(counter, self.status, self.decision, duration, upstream);
            }
        }
        if let Some(mut details) = self.details.take() {
            if self.active.settings.log.access {
                self.log(&details, duration);
            }
            if details.ids.is_some() {
                self.complete(&mut details, now);
                self.active.spans.put(details);
            }
        }
    }
}

/// An HTTP version in the spelling of access logs.
fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_09 => "HTTP/0.9",
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        _ => "HTTP/1.1",
    }
}
