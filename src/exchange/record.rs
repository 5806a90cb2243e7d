//! The end of a request: it is counted, logged and settled.

use std::fmt::Display;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use http::header::{HeaderValue, USER_AGENT};
use http::{Method, StatusCode, Version};
use tokio::time::Instant;
use tracing::info;

use super::client::ClientConnection;
use super::trace::{self, SpanNotes};
use super::{Active, Exchange};
use crate::answer::protocol::Protocol;
use crate::answer::refusal::{Refusal, client_gone};
use crate::answer::response::OwnResponse;
use crate::limit::name::Name;
use crate::observe::events::{FailedExchange, RefusedRequests};
use crate::observe::metrics::{DecisionKind, RouteCounter, UpstreamFailure};
use crate::observe::trace::{LONGEST, RequestSpan, cut};
use crate::plan::{Action, HeaderChanges, NO_ROUTE};
use crate::reading::{BadHead, RequestReading, Unreadable};
use crate::request::client::PeerAddress;
use crate::request::host::Host;
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
    pub(crate) findings: RequestFindings,
    /// The client's HTTP version. In HTTP/1.0 the end of the connection may mark the end of a body.
    pub(crate) version: Version,
    /// How far the request's body has come.
    pub(crate) body_end: BodyEnd,
    /// Bytes of the response's body that were handed to the connection.
    pub(crate) sent: u64,
    /// The request ID, if the file names a header for it.
    pub(crate) request_id: Option<Box<HeaderValue>>,
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
    ) -> Self {
        let Exchange { began, head, protocol, .. } = exchange;
        let trusted = || is_trusted(&active, client, via);
        let span = trace::begin(&active.plan, trusted, &mut head.headers);
        let wants_details = active.plan.log.access || span.is_some();
        let details = wants_details.then(|| {
            Box::new(RequestDetails {
                method: head.method.clone(),
                host: None,
                path: head.uri.path().to_owned(),
                client: client.peer.address.as_client(),
                user_agent: head.headers.get(USER_AGENT).cloned(),
                limit: None,
                reason: None,
                server: None,
                span,
            })
        });
        Self {
            client: client.clone(),
            began: *began,
            active,
            version: head.version,
            body_end: BodyEnd::default(),
            sent: 0,
            request_id: None,
            protocol: *protocol,
            via,
            is_silent: false,
            status: client_gone(),
            findings: RequestFindings { details, ..RequestFindings::default() },
        }
    }

    /// Whether a trusted proxy sent the request.
    pub(super) fn is_of_trusted_proxy(&self) -> bool {
        is_trusted(&self.active, &self.client, self.via)
    }

    /// Notes why the request is refused, and answers it. `quotas` is what its limits say.
    pub(crate) fn refused(&mut self, refusal: &Refusal<'_>, quotas: &[Quota<'_>]) -> OwnResponse {
        self.findings.refused(refusal, &self.active, self.client.peer.address);
        let route = self.findings.route.map(|route| &self.active.plan.routes[route]);
        let answer = self.active.answers.respond(refusal, quotas, self.protocol, route);
        self.status = answer.status();
        answer
    }

    /// The route's name for logs.
    fn route(&self) -> &str {
        let route = self.findings.route.and_then(|route| self.active.plan.routes.get(route));
        route.map_or(NO_ROUTE, |route| &route.name)
    }

    /// The changes that the route makes to an answer's head.
    pub(crate) fn response_changes(&self) -> Option<&HeaderChanges> {
        self.active.plan.routes.get(self.findings.route?)?.options().response.as_ref()
    }

    /// The name of the route's upstream.
    pub(crate) fn upstream(&self) -> Option<&Name> {
        let plan = &self.active.plan;
        match &plan.routes.get(self.findings.route?)?.action {
            Action::Forward { upstream, .. } if self.via.is_none() => {
                plan.upstream(*upstream).map(|it| &it.name)
            }
            Action::Forward { .. } | Action::Decide | Action::Respond { .. } => None,
        }
    }

    /// Counts and logs a failed exchange with this server of the route's upstream.
    pub(crate) fn failed(&self, server: &str, failure: UpstreamFailure, error: &dyn Display) {
        let upstream = self.upstream();
        if let Some(upstream) = upstream {
            self.active.metrics.upstream_failed(upstream, failure);
        }
        let failed = FailedExchange {
            upstream: upstream.map_or_else(String::new, Name::to_string),
            server: server.to_owned(),
            route: self.route().to_owned(),
            error: error.to_string(),
        };
        self.active.error_log.failed.count(failed, (), Instant::now());
    }

    /// Writes the access line.
    fn log(&self, details: &RequestDetails, duration: Duration) {
        let user_agent =
            details.user_agent.as_ref().map(|it| String::from_utf8_lossy(it.as_bytes()));
        info!(
            target: ACCESS,
            method = details.method.as_str(),
            host = details.host.as_deref().unwrap_or("-"),
            path = details.path,
            protocol = protocol(self.version),
            status = self.status.as_u16(),
            bytes = self.sent,
            duration_ms = (duration.as_secs_f64() * 1e6).round() / 1e3,
            route = self.route(),
            client = %details.client,
            user_agent = user_agent.as_deref(),
            limit = details.limit.as_ref().map(Name::as_str),
            reason = details.reason,
            upstream = details.server.as_deref(),
            via = self.via,
            request_id = self.request_id.as_ref().and_then(|id| id.to_str().ok()),
            trace_id = details.span.as_ref().map(|span| span.ids.trace.to_string()),
            "request"
        );
    }

    /// The response ends before its body is complete. An HTTP/1.0 client gets a reset, since it would
    /// take a normal end of the connection for the end of the body.
    pub(crate) fn broke_off(&self) {
        if self.version < Version::HTTP_11 {
            self.client.socket.reset_at_close();
        }
    }
}

fn is_trusted(active: &Active, client: &ClientConnection, via: Option<&str>) -> bool {
    via.is_some() || active.plan.server.trust.trusts_peer(client.peer.address)
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
    if active.plan.log.access {
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
            via,
            "request"
        );
    }
}

/// What becomes known about a request while it is served.
#[derive(Debug, Default)]
pub(crate) struct RequestFindings {
    /// The index of the request's route in the plan; `None` if no route was found.
    pub(crate) route: Option<usize>,
    /// The client, once the head has been read.
    client: Option<IpAddr>,
    /// What the request holds of its limits. It is settled when the response has ended.
    pub(crate) permit: Permit,
    /// The decision of all limits together.
    pub(crate) decision: DecisionKind,
    /// `Some` only if the request is logged or traced.
    pub(crate) details: Option<Box<RequestDetails>>,
    /// How long it took from the sending upstream to the head of the answer.
    pub(crate) answered_after: Option<Duration>,
}

impl RequestFindings {
    /// The notes for the request's span, if the request is traced.
    pub(crate) fn span(&mut self) -> Option<&mut SpanNotes> {
        self.details.as_mut()?.span.as_deref_mut()
    }

    /// Notes what the head of a request means.
    pub(crate) fn read(&mut self, reading: &RequestReading<'_, '_>) {
        self.route = reading.found.as_ref().ok().copied();
        self.client = Some(reading.client.address);
        if let Some(details) = &mut self.details {
            details.host = host_text(&reading.host);
            details.client = reading.client.address;
        }
    }

    /// Notes what is known about a request whose head cannot be read, and returns the refusal.
    pub(crate) fn unread(&mut self, unreadable: Unreadable) -> Refusal<'static> {
        let Unreadable { host, why } = unreadable;
        if let Some(details) = &mut self.details {
            details.host = host.as_ref().and_then(host_text);
        }
        if let BadHead::TooLarge { client, route } = why {
            (self.route, self.client) = (Some(route), Some(client));
            if let Some(details) = &mut self.details {
                details.client = client;
            }
        }
        why.into()
    }

    /// Notes why the request is not answered by the API. `peer` is the other end of its connection.
    fn refused(&mut self, refusal: &Refusal<'_>, active: &Active, peer: PeerAddress) {
        let reason = refusal.reason();
        if let Some(details) = &mut self.details {
            details.reason = Some(reason);
        }
        match refusal {
            Refusal::Upstream(error) => self.failed(error.server(), error.kind()),
            Refusal::Deadline => self.failed(None, UpstreamFailure::Timeout),
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
                active.metrics.refused(reason);
                // The record counts a body that broke among the malformed requests.
                if !matches!(refusal, Refusal::Body(BodyFault::Broken)) {
                    let route = self.route.and_then(|route| active.plan.routes.get(route));
                    let route = route.map_or_else(|| NO_ROUTE.into(), |route| route.name.clone());
                    let client = self.client.unwrap_or_else(|| peer.as_client());
                    let limit = match refusal {
                        Refusal::Limits(Refused::Key { limit, .. }) => Some((*limit).clone()),
                        _ => None,
                    };
                    let refused = RefusedRequests { reason, limit, route };
                    active.error_log.refused.count(refused, client, Instant::now());
                }
            }
            _ => {}
        }
    }

    /// Notes a failed exchange for the request's span. `server` is `None` if no server was asked.
    pub(crate) fn failed(&mut self, server: Option<&str>, failure: UpstreamFailure) {
        if let Some(span) = self.span() {
            span.failure = Some(failure.reason());
            span.server = server.map(Arc::from);
        }
    }
}

/// The host for logs. `None` if HTTP/1.0 names no host.
fn host_text(host: &Host) -> Option<String> {
    Some(host.as_str()).filter(|host| !host.is_empty()).map(str::to_owned)
}

/// What the access line and the span have besides the record of a request.
#[derive(Debug)]
pub(crate) struct RequestDetails {
    pub(crate) method: Method,
    /// `None` until the host is known, and if HTTP/1.0 names no host.
    pub(crate) host: Option<String>,
    pub(crate) path: String,
    pub(crate) client: IpAddr,
    pub(crate) user_agent: Option<HeaderValue>,
    /// The limit that rejected the request.
    pub(crate) limit: Option<Name>,
    /// Why the API did not answer the request.
    reason: Option<&'static str>,
    /// The upstream's server that was asked last.
    pub(crate) server: Option<Arc<str>>,
    /// `None` if the request is not traced.
    pub(crate) span: Option<Box<SpanNotes>>,
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        if self.status == client_gone() && thread::panicking() {
            self.status = StatusCode::INTERNAL_SERVER_ERROR;
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
                let counter = self.active.counter(self.findings.route);
                let upstream = self.upstream().zip(self.findings.answered_after);
                let decision = self.findings.decision;
                metrics.request(counter, self.status, decision, duration, upstream);
            }
        }
        if let Some(details) = &self.findings.details {
            if self.active.plan.log.access {
                self.log(details, duration);
            }
            if let Some(span) = end_span(self, now) {
                self.active.spans.put(span);
            }
        }
    }
}

/// The span of a request that ends now. `None` if the request is not traced.
fn end_span(request: &mut RequestRecord, now: Instant) -> Option<Box<RequestSpan>> {
    let details = request.findings.details.as_mut()?;
    let notes = details.span.take()?;
    let details = request.findings.details.as_ref()?;
    let SpanNotes { ids, limits, server, failure, answer, grpc_status } = *notes;
    let plan = &request.active.plan;
    let route = request.findings.route.and_then(|index| {
        let name = plan.routes.get(index)?.name.clone();
        Some((name, plan.table.pattern(index).as_str().to_owned()))
    });
    Some(Box::new(RequestSpan {
        ids,
        times: (request.began, now),
        method: details.method.clone(),
        route,
        // These copies have a bounded size: thousands of spans may wait for a collector that is away.
        path: cut(&details.path).to_owned(),
        scheme: request.client.peer.scheme(),
        host: details.host.as_deref().map(|it| cut(it).to_owned()),
        version: request.version,
        client: details.client,
        user_agent: details.user_agent.as_ref().and_then(|agent| {
            let agent = agent.as_bytes();
            HeaderValue::from_bytes(agent.get(..LONGEST).unwrap_or(agent)).ok()
        }),
        status: request.status,
        grpc_status,
        upstream: request.upstream().cloned(),
        server: server.or_else(|| details.server.clone()),
        rejected_by: details.limit.clone(),
        failure,
        limits,
        answer,
    }))
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
