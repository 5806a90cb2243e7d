//! What the access line and the span of a request say.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, StatusCode, Version};
use tokio::time::Instant;

use crate::limit::Mode;
use crate::limit::decision::Decision;
use crate::limit::name::Name;
use crate::observe::metrics::DecisionKind;
use crate::request::trace::{SpanId, TRACEPARENT, TraceId, TraceParent};

/// What is said about a request that is logged or traced. If it is traced, its span consists of this once the request
/// has ended. What only the end of the request shows is a placeholder before.
#[derive(Debug)]
pub(crate) struct RequestDetails {
    /// Which span the request is. `None` if the request is not traced.
    pub(crate) ids: Option<SpanIds>,
    /// From the request's head to the end of its response.
    pub(crate) times: (Instant, Instant),
    pub(crate) method: Method,
    /// The route's name and its path's pattern; `None` if no route was found.
    pub(crate) route: Option<(Arc<str>, String)>,
    /// The path as the client sent it, without the query: a query may hold secrets.
    pub(crate) path: String,
    /// `http` or `https`, as the client speaks to tidegate.
    pub(crate) scheme: &'static str,
    /// The request's host; `None` if there was none, or an invalid one.
    pub(crate) host: Option<String>,
    pub(crate) version: Version,
    pub(crate) client: IpAddr,
    pub(crate) user_agent: Option<HeaderValue>,
    pub(crate) status: StatusCode,
    /// The status of a gRPC call, if the head of its answer has it.
    pub(crate) grpc_status: Option<u16>,
    pub(crate) upstream: Option<Name>,
    /// The upstream's server that was asked last, or that failed.
    pub(crate) server: Option<Arc<str>>,
    /// The limit that rejected the request.
    pub(crate) limit: Option<Name>,
    /// Why the API did not answer the request.
    pub(crate) reason: Option<&'static str>,
    /// Why the exchange with the upstream failed, in one word.
    pub(crate) failure: Option<&'static str>,
    /// What the limits said, if the request is traced.
    pub(crate) limits: LimitAnswers,
    pub(crate) answer: Option<ServerAnswer>,
}

/// Which span it is, of which trace.
#[derive(Debug)]
pub(crate) struct SpanIds {
    pub(crate) trace: TraceId,
    pub(crate) span: SpanId,
    /// The caller's span, if the request named one.
    pub(crate) parent: Option<TraceParent>,
    pub(crate) state: String,
}

impl SpanIds {
    /// Writes the span's id for the upstream. To be called after the fields that `connection` names are removed: a
    /// client must not be able to cut a trace.
    pub(crate) fn write_traceparent(&self, headers: &mut HeaderMap) {
        let parent = TraceParent { trace: self.trace, span: self.span, is_sampled: true };
        headers.insert(&TRACEPARENT, parent.value());
    }
}

/// The decisions of the limits about a request.
#[derive(Debug, Default)]
pub(crate) struct LimitAnswers {
    /// How long the question to the store took; `None` if it was not asked.
    pub(crate) store: Option<Duration>,
    /// One decision for each limit that was asked, in the route's order.
    pub(crate) decisions: Vec<LimitDecision>,
    /// The request's plan, if a limit has figures for it.
    pub(crate) plan: Option<Name>,
}

/// The decision of one limit about a request.
#[derive(Debug)]
pub(crate) struct LimitDecision {
    pub(crate) at: Instant,
    /// The limit's name, or its candidate's.
    pub(crate) limit: Name,
    /// The key as in Redis. The access line shows it, and no span does.
    pub(crate) key: String,
    /// The cost that the limit was asked for.
    pub(crate) cost: u64,
    /// Whether the limit enforces, or is only tried.
    pub(crate) mode: Mode,
    /// The decision as the metrics count it.
    pub(crate) kind: DecisionKind,
    /// The decision; `None` if the store could not decide.
    pub(crate) decision: Option<Decision>,
}

/// The head of the upstream's answer.
#[derive(Debug)]
pub(crate) struct ServerAnswer {
    /// When it came.
    pub(crate) at: Instant,
    /// The time since the request was sent.
    pub(crate) after: Duration,
    pub(crate) status: StatusCode,
}
