//! Which requests are traced, and how the upstream gets the trace (W3C Trace Context, level 1).

use std::sync::Arc;

use http::HeaderMap;

use crate::observe::trace::{LimitAnswers, ServerAnswer, SpanIds};
use crate::plan::Plan;
use crate::request::trace::{SpanId, TRACEPARENT, TRACESTATE, TraceId, TraceParent};

/// The most bytes of a `tracestate` that a span keeps. Every system should pass on as much (W3C Trace Context,
/// 3.3.1.5).
const MOST_STATE: usize = 512;

/// What a span needs that the record of the request does not have.
#[derive(Debug)]
pub(crate) struct SpanNotes {
    pub(crate) ids: SpanIds,
    /// What the limits said.
    pub(crate) limits: LimitAnswers,
    /// The server that failed.
    pub(crate) server: Option<Arc<str>>,
    /// Why the exchange with the upstream failed, in one word.
    pub(crate) failure: Option<&'static str>,
    /// What the upstream answered.
    pub(crate) answer: Option<ServerAnswer>,
    /// The gRPC status in the head of the answer to the client.
    pub(crate) grpc_status: Option<u16>,
}

/// Begins the span of a request that is traced. `trusted` is whether a trusted proxy sent it. Removes a `tracestate` that belongs to no trace. The fields
/// of other requests stay as they are.
pub(crate) fn begin(
    plan: &Plan,
    trusted: impl Fn() -> bool,
    headers: &mut HeaderMap,
) -> Option<Box<SpanNotes>> {
    plan.trace.otlp.as_ref()?;
    let parent = TraceParent::of(headers);
    let is_sampled = parent.is_some_and(|parent| parent.is_sampled);
    let is_chosen = is_sampled && trusted();
    if !is_chosen && !plan.trace.sample.takes(fastrand::f64()) {
        return None;
    }
    let trace = match parent {
        Some(parent) => parent.trace,
        None => {
            // The field belongs to no trace that can be read (W3C Trace Context, 4.2 and 4.3).
            headers.remove(&TRACESTATE);
            TraceId::from_random(fastrand::u128(..))
        }
    };
    let span = SpanId::from_random(fastrand::u64(..));
    let ids = SpanIds { trace, span, parent, state: state(headers) };
    let limits = LimitAnswers::default();
    Some(Box::new(SpanNotes {
        ids,
        limits,
        server: None,
        failure: None,
        answer: None,
        grpc_status: None,
    }))
}

impl SpanNotes {
    /// Writes the span's id for the upstream. To be called after the fields that `connection` names are removed: a
    /// client must not be able to cut a trace.
    pub(crate) fn write_traceparent(&self, headers: &mut HeaderMap) {
        let SpanIds { trace, span, .. } = self.ids;
        headers.insert(&TRACEPARENT, TraceParent { trace, span, is_sampled: true }.value());
    }
}

/// The request's `tracestate`, all of its fields in one. Empty if it is too long for a span.
fn state(headers: &HeaderMap) -> String {
    let fields = headers.get_all(&TRACESTATE).iter().filter_map(|field| field.to_str().ok());
    let state = fields.collect::<Vec<_>>().join(",");
    if state.len() <= MOST_STATE { state } else { String::new() }
}
