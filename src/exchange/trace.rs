//! Which requests are traced, and how the upstream gets the trace (W3C Trace Context, level 1).

use http::HeaderMap;

use crate::observe::trace::SpanIds;
use crate::request::trace::{SpanId, TRACESTATE, TraceId, TraceParent};
use crate::settings::Settings;

/// The most bytes of a `tracestate` that a span keeps. Every system should pass on as much (W3C Trace Context,
/// 3.3.1.5).
const MOST_STATE: usize = 512;

/// Begins the span of a request that is traced. `trusted` is whether a trusted proxy sent it. Removes a `tracestate`
/// that belongs to no trace. The fields of other requests stay as they are.
pub(crate) fn begin(
    settings: &Settings,
    trusted: impl Fn() -> bool,
    headers: &mut HeaderMap,
) -> Option<SpanIds> {
    settings.trace.otlp.as_ref()?;
    let parent = TraceParent::of(headers);
    let is_sampled = parent.is_some_and(|parent| parent.is_sampled);
    let is_chosen = is_sampled && trusted();
    if !is_chosen && !settings.trace.sample.takes(fastrand::f64()) {
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
    Some(SpanIds { trace, span, parent, state: state(headers) })
}

/// The request's `tracestate`, all of its fields in one. Empty if it is too long for a span.
fn state(headers: &HeaderMap) -> String {
    let fields = headers.get_all(&TRACESTATE).iter().filter_map(|field| field.to_str().ok());
    let state = fields.collect::<Vec<_>>().join(",");
    if state.len() <= MOST_STATE { state } else { String::new() }
}
