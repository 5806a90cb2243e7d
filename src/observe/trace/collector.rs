//! The connection to a collector: `TraceService/Export` of OTLP, a gRPC call with one message each way
//! (`PROTOCOL-HTTP2.md` of grpc/grpc).
//!
//! h2 carries it, since hyper's own client leaves a part of a connection on a task that nobody can end. OpenTelemetry's
//! SDK would bring a second HTTP stack and threads of its own. A batch that failed is not sent again: if the collector
//! had taken it, each span would come twice.

use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use h2::client::{self, SendRequest};
use http::header::{CONTENT_TYPE, TE, USER_AGENT};
use http::{HeaderMap, Request, StatusCode};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use prost::Message as _;
use tokio_util::task::AbortOnDropHandle;

use crate::observe::start;
use crate::percent;
use crate::settings::CollectorAddress;
use crate::wire::dialer::Dialer;

const PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// The most time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The most bytes of an answer that are read. The answer to a successful export has few bytes.
const MOST: usize = 64 * 1024;

/// The most bytes of a collector's error message that are logged.
const LONGEST: usize = 200;

/// The bytes in front of a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// A connection to a collector. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct CollectorConnection {
    pub(super) address: CollectorAddress,
    /// What each call begins with.
    request: Request<()>,
    sender: SendRequest<Bytes>,
    driver: AbortOnDropHandle<()>,
}

/// What to do if no connection to the collector can be made.
const AWAY: Option<&str> = Some("see that the collector runs and can be reached from here");
/// What to do if its answer is not that of a collector.
const OTHER: Option<&str> =
    Some("it must take OTLP by gRPC (mostly port 4317), not by HTTP (4318)");

/// Why spans were not sent, or not taken: what to do about it, and the error.
pub(super) type ExportError = (Option<&'static str>, String);

fn unanswered(why: &str) -> ExportError {
    (OTHER, why.to_owned())
}

fn broken(error: h2::Error) -> ExportError {
    unanswered(&format!("the exchange broke off: {error}"))
}

impl CollectorConnection {
    pub(super) async fn open(
        address: CollectorAddress,
        dialer: &Dialer,
    ) -> Result<Self, ExportError> {
        let stream = dialer.connect(&address.host, address.port, CONNECT_TIMEOUT).await;
        let stream = stream.map_err(|error| (AWAY, format!("cannot connect: {error}")))?;
        let (sender, connection) = client::handshake(stream).await.map_err(broken)?;
        let driver = tokio::spawn(async move {
            // The call under way gets the same error, and reports it.
            let _ = connection.await;
        });
        let request = Request::post(address.to_string() + PATH)
            .header(CONTENT_TYPE, "application/grpc")
            .header(TE, "trailers")
            .header(USER_AGENT, concat!(env!("CARGO_PKG_NAME"), "/", env!("CARGO_PKG_VERSION")))
            .body(())
            .map_err(|error| (AWAY, error.to_string()))?;
        Ok(Self { address, request, sender, driver: AbortOnDropHandle::new(driver) })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.driver.is_finished()
    }

    /// Sends spans, and waits until the collector has taken them. Returns how many it did not take, and the reason
    /// that it gave.
    ///
    /// # Errors
    /// If the collector took no span, or nobody knows whether it did.
    pub(super) async fn export(
        &mut self,
        spans: &ExportTraceServiceRequest,
    ) -> Result<Option<(u64, String)>, ExportError> {
        let (status, message, fields) = self.call(framed(spans)).await.map_err(broken)?;
        if status != StatusCode::OK {
            let why = format!("it answered with the HTTP status {status}, which is no gRPC");
            return Err(unanswered(&why));
        }
        let text = |name| fields.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
        let cut = |text: &str| start(text, LONGEST).to_owned();
        match text("grpc-status") {
            None => return Err(unanswered("its answer is no gRPC: it has no grpc-status")),
            Some(status) if status != "0" => {
                let message = text("grpc-message").unwrap_or_default();
                let message = cut(&String::from_utf8_lossy(&percent::decode(&message)));
                let status = cut(&status);
                let why = format!("it answered with the gRPC status {status}: {message}");
                return Err((None, why));
            }
            Some(_) => {}
        }
        // No message at all is against the protocol, but the status says clearly that the spans were taken.
        let message = match message.split_at_checked(PREFIX) {
            None if message.is_empty() => Some(ExportTraceServiceResponse::default()),
            Some(([0, ..], message)) => ExportTraceServiceResponse::decode(message).ok(),
            Some(_) | None => None,
        };
        let message = message.ok_or_else(|| unanswered("its answer is no answer of OTLP"))?;
        Ok(message.partial_success.and_then(|partial| {
            let spans = u64::try_from(partial.rejected_spans).ok().filter(|spans| *spans > 0)?;
            Some((spans, cut(&partial.error_message)))
        }))
    }

    /// Sends a message. Returns the status, the message and the last fields of the answer.
    async fn call(&self, message: Bytes) -> Result<(StatusCode, BytesMut, HeaderMap), h2::Error> {
        let mut sender = self.sender.clone().ready().await?;
        let (answer, mut body) = sender.send_request(self.request.clone(), false)?;
        body.send_data(message, true)?;
        let (head, mut body) = answer.await?.into_parts();
        let mut message = BytesMut::new();
        while let Some(piece) = body.data().await {
            let piece = piece?;
            message.extend_from_slice(&piece);
            if message.len() > MOST {
                return Ok((head.status, message, head.headers));
            }
            // This fails only if the stream has ended.
            let _ = body.flow_control().release_capacity(piece.len());
        }
        // An answer without a message has its status in the head.
        let fields = body.trailers().await?.unwrap_or(head.headers);
        Ok((head.status, message, fields))
    }
}

/// The message as gRPC sends it.
fn framed(spans: &ExportTraceServiceRequest) -> Bytes {
    let spans = spans.encode_to_vec();
    let mut message = BytesMut::with_capacity(PREFIX + spans.len());
    message.put_u8(0);
    message.put_u32(u32::try_from(spans.len()).unwrap_or(u32::MAX));
    message.put_slice(&spans);
    message.freeze()
}
