//! Which requests are traced, and what the upstream and the log are told of it.

use opentelemetry_proto::tonic::trace::v1::Span;

use crate::support::client::get;
use crate::support::collector::{Collector, said};
use crate::support::proxy::Proxy;
use crate::support::upstream::Upstream;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// The value of `traceparent` that a caller sends who has sampled its span.
fn sampled() -> String {
    format!("00-{TRACE}-{PARENT}-01")
}

fn unsampled() -> String {
    format!("00-{TRACE}-{PARENT}-00")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The span of a request with these headers, and what the upstream was told. The proxy takes `sample` of
/// the requests of strangers.
struct Traced {
    span: Option<Span>,
    traceparent: Option<String>,
    tracestate: Option<String>,
}

fn trace(sample: u8, is_trusted: bool, headers: &[(&str, &str)]) -> Traced {
    let (collector, api) = (Collector::start(), Upstream::echoing());
    let section = collector.section().replace("sample = 1", &format!("sample = {sample}"));
    let trusted = if is_trusted { "trusted_proxies = [\"127.0.0.1\"]" } else { "" };
    let mut proxy = Proxy::to(&api).server(trusted).section(&section).start();
    assert_eq!(get(proxy.address, "/a", headers).status, 200);
    assert!(proxy.stop().success());
    let got = api.last();
    let (traceparent, tracestate) = (got.header("traceparent"), got.header("tracestate"));
    Traced { span: collector.spans().pop(), traceparent, tracestate }
}

#[test]
fn a_sampled_request_of_a_trusted_proxy_is_traced() {
    let (parent, state) = (sampled(), "a=1,b=2");
    let headers = [("traceparent", parent.as_str()), ("tracestate", state)];
    let traced = trace(0, true, &headers);
    let span = traced.span.unwrap();
    assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.into(), PARENT.into()));
    assert_eq!((span.trace_state.as_str(), span.flags), (state, 0x301));
    let told = format!("00-{TRACE}-{}-01", hex(&span.span_id));
    assert_eq!(traced.traceparent, Some(told));
    assert_eq!(traced.tracestate.as_deref(), Some(state));
    // The flag of anybody else counts for nothing, and nothing is changed.
    let traced = trace(0, false, &headers);
    assert_eq!(traced.span, None);
    assert_eq!(traced.traceparent, Some(parent));
    assert_eq!(traced.tracestate.as_deref(), Some(state));
}

#[test]
fn what_is_not_sampled_is_traced_by_its_share() {
    let parent = unsampled();
    for is_trusted in [true, false] {
        let none = trace(0, is_trusted, &[("traceparent", &parent)]);
        assert_eq!((none.span, none.traceparent.as_ref()), (None, Some(&parent)));
        let all = trace(1, is_trusted, &[("traceparent", &parent)]);
        let span = all.span.unwrap();
        assert_eq!(hex(&span.trace_id), TRACE);
        assert_eq!(all.traceparent, Some(format!("00-{TRACE}-{}-01", hex(&span.span_id))));
    }
    let none = trace(0, false, &[]);
    assert_eq!((none.span, none.traceparent), (None, None));
}

#[test]
fn a_traceparent_that_cannot_be_read_begins_a_new_trace() {
    let (good, zero) = (sampled(), format!("00-{}-{PARENT}-01", "0".repeat(32)));
    let of_ff = good.replacen("00", "ff", 1);
    for parents in [&[zero.as_str()][..], &[&of_ff], &["nonsense"], &[&good, &good], &[]] {
        let mut headers: Vec<_> = parents.iter().map(|parent| ("traceparent", *parent)).collect();
        headers.push(("tracestate", "a=1"));
        // Also where a trusted proxy sends it: nothing says that it has sampled the request.
        let none = trace(0, true, &headers);
        let unchanged = (!parents.is_empty()).then(|| parents.join(", "));
        assert_eq!((none.span, none.traceparent), (None, unchanged), "{parents:?}");
        assert_eq!(none.tracestate.as_deref(), Some("a=1"), "{parents:?}");
        let all = trace(1, true, &headers);
        let span = all.span.unwrap();
        assert!(span.parent_span_id.is_empty() && span.trace_state.is_empty(), "{parents:?}");
        assert_ne!(hex(&span.trace_id), TRACE);
        let told = format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.span_id));
        assert_eq!(all.traceparent, Some(told), "{parents:?}");
        assert_eq!(all.tracestate, None, "it belongs to no trace: {parents:?}");
    }
}

/// `connection` names fields that end here. The trace is not among them, whether tidegate writes it or passes it on.
#[test]
fn a_client_cannot_cut_a_trace() {
    let parent = sampled();
    let headers =
        [("connection", "traceparent, x-own"), ("traceparent", parent.as_str()), ("x-own", "1")];
    let traced = trace(1, true, &headers);
    let span = traced.span.unwrap();
    assert_eq!(hex(&span.parent_span_id), PARENT);
    assert_eq!(traced.traceparent, Some(format!("00-{TRACE}-{}-01", hex(&span.span_id))));
    let untraced = trace(0, false, &headers);
    assert_eq!((untraced.span, untraced.traceparent), (None, Some(parent)));
}

#[test]
fn without_a_collector_nothing_is_changed() {
    let api = Upstream::echoing();
    let proxy = Proxy::to(&api).server("trusted_proxies = [\"127.0.0.1\"]").start();
    let parent = sampled();
    get(proxy.address, "/", &[("traceparent", &parent), ("tracestate", "a=1")]);
    assert_eq!(api.last().header("traceparent"), Some(parent));
    assert_eq!(api.last().header("tracestate").as_deref(), Some("a=1"));
    get(proxy.address, "/", &[]);
    assert_eq!(api.last().header("traceparent"), None);
}

#[test]
fn the_access_line_names_the_trace() {
    let (collector, api) = (Collector::start(), Upstream::echoing());
    let log = "[log]\naccess = true";
    let proxy = Proxy::to(&api).section(&collector.section()).section(log).start();
    get(proxy.address, "/a", &[("traceparent", &sampled())]);
    let line = proxy.log.wait("request", |_| true);
    assert_eq!(line["trace_id"], TRACE);
    // Without tracing, a line has no such field.
    let proxy = Proxy::to(&api).section(log).start();
    get(proxy.address, "/a", &[("traceparent", &sampled())]);
    assert_eq!(proxy.log.wait("request", |_| true).get("trace_id"), None);
}

#[test]
fn a_reload_changes_where_spans_go() {
    let (first, second, api) = (Collector::start(), Collector::start(), Upstream::echoing());
    let file = |section: &str| Proxy::to(&api).section(section);
    let proxy = file("").start();
    assert_eq!(get(proxy.address, "/none", &[]).status, 200);
    for (section, path, collector) in [
        (first.section(), "/first", Some(&first)),
        (second.section(), "/second", Some(&second)),
        (second.section().replace("sample = 1", "sample = 0.0"), "/share", None),
        (String::new(), "/off", None),
        (first.section(), "/again", Some(&first)),
    ] {
        proxy.reload(&file(&section).text());
        assert_eq!(get(proxy.address, path, &[]).status, 200);
        if let Some(collector) = collector {
            assert_eq!(collector.span(path).name, "GET /{*rest}");
        }
    }
    let paths = |collector: &Collector| {
        collector.spans().iter().map(|span| said(span, "url.path")).collect::<Vec<_>>()
    };
    assert_eq!(paths(&first), ["/first", "/again"]);
    assert_eq!(paths(&second), ["/second"]);
    let told = proxy.log.with("config reloaded");
    let changed = |reload: usize| told[reload]["changed"].clone();
    let from_none = format!("trace.otlp none -> {}", first.url());
    assert_eq!(changed(0), serde_json::json!([from_none, "trace.sample 0.01 -> 1"]));
    assert_eq!(changed(2), serde_json::json!(["trace.sample 1 -> 0"]));
    assert_eq!(proxy.log.count("restart needed"), 0);
}
