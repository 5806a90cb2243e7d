//! An OpenTelemetry collector that keeps what it is sent.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::Event;
use prost::Message as _;

use super::api::{Api, Call};
use super::wait_until;

/// What a collector does with an export.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Does {
    /// Takes it.
    Takes,
    /// Takes all but so many spans.
    Leaves(i64),
    /// Refuses it, by a status in trailers or in the head alone.
    Refuses { alone: bool },
    /// Answers with bytes that are no message.
    Babbles,
    /// Answers without a gRPC status.
    SaysNothing,
    /// Answers like a web server that knows no such page.
    FindsNothing,
    /// Never answers.
    Sleeps,
}

/// Listens on loopback for OTLP by gRPC.
pub(crate) struct Collector {
    api: Api,
    exports: Exports,
}

type Exports = Arc<Mutex<Vec<ExportTraceServiceRequest>>>;

impl Collector {
    pub(crate) fn start() -> Self {
        Self::that(Does::Takes)
    }

    pub(crate) fn that(does: Does) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), does)
    }

    /// One at an address that was held before.
    pub(crate) fn at(address: SocketAddr) -> Self {
        Self::on(TcpListener::bind(address).unwrap(), Does::Takes)
    }

    fn on(listener: TcpListener, does: Does) -> Self {
        let exports = Exports::default();
        let shared = exports.clone();
        let api = Api::h2c_on(listener, move |request, respond| {
            take(does, shared.clone(), request, respond)
        });
        Self { api, exports }
    }

    /// What a file says: all requests are traced, and this collector gets the spans.
    pub(crate) fn section(&self) -> String {
        format!("[trace]\notlp = \"{}\"\nsample = 1", self.url())
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.api.address.unwrap())
    }

    /// The heads of the exports so far.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.api.calls()
    }

    pub(crate) fn connections(&self) -> usize {
        self.api.connections()
    }

    /// The exports so far.
    pub(crate) fn exports(&self) -> Vec<ExportTraceServiceRequest> {
        self.exports.lock().unwrap().clone()
    }

    /// All spans so far.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let resources = self.exports().into_iter().flat_map(|export| export.resource_spans);
        resources.flat_map(|it| it.scope_spans).flat_map(|scope| scope.spans).collect()
    }

    /// Waits until so many spans have come.
    pub(crate) fn wait(&self, count: usize) -> Vec<Span> {
        wait_until("the spans", || self.spans().len() >= count);
        let spans = self.spans();
        assert_eq!(spans.len(), count, "{spans:#?}");
        spans
    }

    /// Waits for the span of a request with this path.
    pub(crate) fn span(&self, path: &str) -> Span {
        let find = || self.spans().into_iter().find(|it| said(it, "url.path") == path);
        wait_until(&format!("the span of {path}"), || find().is_some());
        find().unwrap()
    }
}

/// An attribute of a span as text; empty where it is not there.
pub(crate) fn said(span: &Span, name: &str) -> String {
    attribute(&span.attributes, name)
}

/// The events of a span with this name, each with these attributes as text.
pub(crate) fn told(span: &Span, event: &str, names: &[&str]) -> Vec<Vec<String>> {
    let told = |event: &Event| names.iter().map(|it| attribute(&event.attributes, it)).collect();
    span.events.iter().filter(|it| it.name == event).map(told).collect()
}

pub(crate) fn attribute(all: &[KeyValue], name: &str) -> String {
    let mut found = all.iter().filter(|it| it.key == name);
    let value = found.next().and_then(|it| it.value.clone()?.value);
    assert!(found.next().is_none(), "{name} is there twice");
    match value {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        None => String::new(),
        other => panic!("{name} is {other:?}"),
    }
}

async fn take(
    does: Does,
    exports: Exports,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let path = request.uri().path().to_owned();
    let mut body = request.into_body();
    let mut bytes = Vec::new();
    while let Some(Ok(piece)) = body.data().await {
        let _ = body.flow_control().release_capacity(piece.len());
        bytes.extend_from_slice(&piece);
    }
    let is_export = path == "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
    let fits = is_export && bytes.len() >= 5 && bytes[0] == 0;
    assert!(fits, "a call to {path} with {} bytes", bytes.len());
    assert_eq!(u32::from_be_bytes(bytes[1..5].try_into().unwrap()) as usize, bytes.len() - 5);
    let export = ExportTraceServiceRequest::decode(&bytes[5..]).unwrap();
    exports.lock().unwrap().push(export);
    let status = |status: &str, message: &str| {
        HeaderMap::from_iter([
            ("grpc-status".parse().unwrap(), status.parse().unwrap()),
            ("grpc-message".parse().unwrap(), message.parse().unwrap()),
        ])
    };
    let mut head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
    let refused = status("8", "too%20much");
    match does {
        Does::Sleeps => std::future::pending().await,
        Does::FindsNothing => {
            *head.status_mut() = http::StatusCode::NOT_FOUND;
            let _ = respond.send_response(head, true);
            return;
        }
        Does::Refuses { alone: true } => {
            head.headers_mut().extend(refused);
            let _ = respond.send_response(head, true);
            return;
        }
        _ => {}
    }
    let Ok(mut answer) = respond.send_response(head, false) else { return };
    let left = match does {
        Does::Leaves(left) => left,
        _ => 0,
    };
    let partial =
        ExportTracePartialSuccess { rejected_spans: left, error_message: "too old".into() };
    let message = ExportTraceServiceResponse { partial_success: (left > 0).then_some(partial) };
    let mut bytes = message.encode_to_vec();
    if does == Does::Babbles {
        bytes = b"\xff\xff\xff nonsense".to_vec();
    }
    let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
    let bytes = [&[0][..], &length, &bytes].concat();
    let _ = match does {
        Does::SaysNothing => answer.send_data(bytes.into(), true),
        Does::Refuses { .. } => answer.send_trailers(refused),
        _ => answer
            .send_data(bytes.into(), false)
            .and_then(|()| answer.send_trailers(status("0", ""))),
    };
}
