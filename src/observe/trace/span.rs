//! The contents of a span: what it tells about a request.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method, StatusCode, Version};
use tokio::time::Instant;

use crate::limit::Mode;
use crate::limit::decision::Decision;
use crate::limit::name::Name;
use crate::observe::metrics::DecisionKind;
use crate::request::trace::{SpanId, TraceId, TraceParent};

/// A sampled request that has ended.
#[derive(Debug)]
pub struct RequestSpan {
    /// Which span it is, of which trace.
    pub ids: SpanIds,
    /// From the request's head to the end of its response.
    pub times: (Instant, Instant),
    /// The request's method.
    pub method: Method,
    /// The route's name and its path's pattern; `None` where no route was found.
    pub route: Option<(Arc<str>, String)>,
    /// The path as the client sent it, without the query: a query may hold secrets.
    pub path: String,
    /// `http` or `https`, as the client speaks to tidegate.
    pub scheme: &'static str,
    /// The request's host; `None` where there was none, or an invalid one.
    pub host: Option<String>,
    /// The client's HTTP version.
    pub version: Version,
    /// The client's address.
    pub client: IpAddr,
    /// The client's `user-agent`.
    pub user_agent: Option<HeaderValue>,
    /// The answer's status.
    pub status: StatusCode,
    /// The status of a gRPC call, where the head of its answer has it.
    pub grpc_status: Option<u16>,
    /// The upstream of the request's route.
    pub upstream: Option<Name>,
    /// The server that answered or failed.
    pub server: Option<Arc<str>>,
    /// The limit that rejected the request.
    pub rejected_by: Option<Name>,
    /// Why the exchange with the upstream failed, in one word.
    pub failure: Option<&'static str>,
    /// The decisions of the limits.
    pub limits: LimitAnswers,
    /// The answer of the upstream.
    pub answer: Option<ServerAnswer>,
}

/// Which span it is, of which trace.
#[derive(Debug)]
pub struct SpanIds {
    /// The trace.
    pub trace: TraceId,
    /// The request's span.
    pub span: SpanId,
    /// The caller's span, where the request named one.
    pub parent: Option<TraceParent>,
    /// The request's `tracestate`.
    pub state: String,
}

/// The decisions of the limits about a request.
#[derive(Debug, Default)]
pub struct LimitAnswers {
    /// How long the question to the store took; `None` where it was not asked.
    pub store: Option<Duration>,
    /// One decision for each limit that was asked, in the route's order.
    pub decisions: Vec<LimitDecision>,
}

/// The decision of one limit about a request. The key is not here, because it may be a secret.
#[derive(Debug)]
pub struct LimitDecision {
    /// When the limit decided.
    pub at: Instant,
    /// The limit's name, or its candidate's.
    pub limit: Name,
    /// Whether the limit enforces, or is only tried.
    pub mode: Mode,
    /// The decision as the metrics count it.
    pub kind: DecisionKind,
    /// The decision; `None` where the store could not decide.
    pub decision: Option<Decision>,
}

/// The head of the upstream's answer.
#[derive(Debug)]
pub struct ServerAnswer {
    /// When it came.
    pub at: Instant,
    /// Its status.
    pub status: StatusCode,
    /// The time since the request was sent.
    pub after: Duration,
}
