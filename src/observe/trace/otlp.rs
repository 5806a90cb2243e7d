//! Writes spans as OTLP, with OpenTelemetry's semantic conventions for HTTP servers. What the conventions
//! do not have is named `tidegate.…`.

use std::collections::VecDeque;
use std::time::Duration;

use http::{Method, Version};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode as SpanStatus;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use tokio::time::Instant;

use super::span::{LimitDecision, RequestDetails, ServerAnswer};
use crate::clock::Clock;
use crate::limit::decision::Outcome;
use crate::observe::metrics::OUTCOMES;
use crate::observe::start;
use crate::request::method::USUAL;
use crate::request::trace::TraceParent;

/// The most bytes of a text that a client chose.
pub(crate) const LONGEST: usize = 1024;

/// Bits of `SpanFlags` of OTLP: the span is sampled; the next bit is valid; the parent is remote.
const SAMPLED: u32 = 1;
const PARENT_IS_KNOWN: u32 = 1 << 8;
const PARENT_IS_REMOTE: u32 = 1 << 9;

/// The statuses of a gRPC call that are the server's errors: unknown, deadline exceeded, unimplemented,
/// internal, unavailable, data loss.
const GRPC_ERRORS: [u16; 6] = [2, 4, 12, 13, 14, 15];

/// The message that brings these spans to a collector. `process` identifies this process among others.
pub(super) fn message(
    spans: &VecDeque<Box<RequestDetails>>,
    process: &str,
    clock: &Clock,
) -> ExportTraceServiceRequest {
    let version = env!("CARGO_PKG_VERSION");
    let resource = Resource {
        attributes: vec![
            text("service.name", env!("CARGO_PKG_NAME")),
            text("service.version", version),
            text("service.instance.id", process),
        ],
        ..Resource::default()
    };
    let scope = InstrumentationScope {
        name: env!("CARGO_PKG_NAME").to_owned(),
        version: version.to_owned(),
        ..InstrumentationScope::default()
    };
    let spans = spans.iter().filter_map(|span| written(span, clock)).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
    let resource_spans =
        ResourceSpans { resource: Some(resource), scope_spans, ..ResourceSpans::default() };
    ExportTraceServiceRequest { resource_spans: vec![resource_spans] }
}

fn written(span: &RequestDetails, clock: &Clock) -> Option<Span> {
    let RequestDetails { times: (begin, end), limits, answer, .. } = span;
    let ids = span.ids.as_ref()?;
    let remote = ids.parent.map_or(0, |_| PARENT_IS_KNOWN | PARENT_IS_REMOTE);
    let parent = |parent: TraceParent| parent.span.to_bytes().to_vec();
    let decisions = limits.decisions.iter().map(|decision| decided(decision, clock));
    let answered = answer.iter().map(|answer| answered(answer, clock));
    let is_error = span.failure.is_some()
        || span.status.is_server_error()
        || span.grpc_status.is_some_and(|status| GRPC_ERRORS.contains(&status));
    let status = Status { code: SpanStatus::Error.into(), ..Status::default() };
    Some(Span {
        trace_id: ids.trace.to_bytes().to_vec(),
        span_id: ids.span.to_bytes().to_vec(),
        parent_span_id: ids.parent.map(parent).unwrap_or_default(),
        trace_state: ids.state.clone(),
        flags: SAMPLED | remote,
        name: name(span),
        kind: SpanKind::Server.into(),
        start_time_unix_nano: nanos(*begin, clock),
        end_time_unix_nano: nanos(*end, clock),
        attributes: attributes(span),
        events: decisions.chain(answered).collect(),
        status: is_error.then_some(status),
        ..Span::default()
    })
}

/// `METHOD /the/route`. There are few such names, whatever clients send.
fn name(span: &RequestDetails) -> String {
    let method = if is_known(&span.method) { span.method.as_str() } else { "HTTP" };
    match &span.route {
        Some((_, pattern)) => format!("{method} {pattern}"),
        None => method.to_owned(),
    }
}

/// Whether spans name the method. Names of spans must be few, and a client can invent methods.
fn is_known(method: &Method) -> bool {
    USUAL.contains(method) || matches!(*method, Method::CONNECT | Method::TRACE)
}

fn attributes(span: &RequestDetails) -> Vec<KeyValue> {
    let is_known = is_known(&span.method);
    let method = if is_known { span.method.as_str() } else { "_OTHER" };
    let mut all = vec![
        text("http.request.method", method),
        text("url.path", &span.path),
        text("url.scheme", span.scheme),
        text("client.address", &span.client.to_string()),
        text("network.protocol.name", "http"),
        text("network.protocol.version", version(span.version)),
        number("http.response.status_code", span.status.as_u16().into()),
    ];
    let mut add = |name, value: Option<&str>| all.extend(value.map(|value| text(name, value)));
    add("http.request.method_original", (!is_known).then(|| cut(span.method.as_str())));
    add("http.route", span.route.as_ref().map(|(_, pattern)| pattern.as_str()));
    add("tidegate.route", span.route.as_ref().map(|(name, _)| &**name));
    add("server.address", span.host.as_deref());
    let user_agent = span.user_agent.as_ref().map(|it| String::from_utf8_lossy(it.as_bytes()));
    add("user_agent.original", user_agent.as_deref().map(cut));
    add("tidegate.upstream", span.upstream.as_ref().map(|name| name.as_str()));
    add("tidegate.server", span.server.as_deref());
    add("tidegate.rejected_by", span.limit.as_ref().map(|name| name.as_str()));
    let status = span.status.is_server_error().then_some(span.status.as_str());
    add("error.type", span.failure.or(status));
    all.extend(span.grpc_status.map(|status| number("rpc.grpc.status_code", status.into())));
    all.extend(span.limits.store.map(|took| millis("tidegate.store.duration_ms", took)));
    all
}

fn decided(limit: &LimitDecision, clock: &Clock) -> Event {
    let decision = OUTCOMES.get(limit.kind as usize).copied().unwrap_or_default();
    let mut attributes = vec![
        text("tidegate.limit", limit.limit.as_str()),
        text("tidegate.decision", decision),
        text("tidegate.mode", limit.mode.name()),
    ];
    if let Some(decision) = limit.decision {
        let remaining = i64::try_from(decision.remaining).unwrap_or(i64::MAX);
        attributes.push(number("tidegate.remaining", remaining));
        attributes.extend(match decision.outcome {
            Outcome::Allow => None,
            Outcome::Delay(delay) => Some(millis("tidegate.delay_ms", delay)),
            Outcome::Reject { retry_after } => {
                retry_after.map(|after| millis("tidegate.retry_after_ms", after))
            }
        });
    }
    event("decision", limit.at, attributes, clock)
}

fn answered(answer: &ServerAnswer, clock: &Clock) -> Event {
    let attributes = vec![
        number("http.response.status_code", answer.status.as_u16().into()),
        millis("tidegate.upstream.duration_ms", answer.after),
    ];
    event("upstream answered", answer.at, attributes, clock)
}

fn event(name: &str, at: Instant, attributes: Vec<KeyValue>, clock: &Clock) -> Event {
    Event {
        time_unix_nano: nanos(at, clock),
        name: name.to_owned(),
        attributes,
        ..Event::default()
    }
}

/// The time of day at a moment, in nanoseconds since 1970.
fn nanos(at: Instant, clock: &Clock) -> u64 {
    clock.wall().at(clock.at(at)).as_micros().saturating_mul(1_000)
}

/// An HTTP version in the spelling of the conventions.
fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_09 => "0.9",
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}

/// The beginning of a text that a client chose.
pub(crate) fn cut(text: &str) -> &str {
    start(text, LONGEST)
}

fn text(name: &str, value: &str) -> KeyValue {
    attribute(name, Value::StringValue(value.to_owned()))
}

fn number(name: &str, value: i64) -> KeyValue {
    attribute(name, Value::IntValue(value))
}

/// A duration in milliseconds, to the microsecond.
fn millis(name: &str, duration: Duration) -> KeyValue {
    let millis = (duration.as_secs_f64() * 1e6).round() / 1e3;
    attribute(name, Value::DoubleValue(millis))
}

fn attribute(name: &str, value: Value) -> KeyValue {
    let value = Some(AnyValue { value: Some(value) });
    KeyValue { key: name.to_owned(), value, ..KeyValue::default() }
}
