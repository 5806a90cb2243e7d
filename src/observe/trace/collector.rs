//! The connection to a collector: `TraceService/Export` of OTLP, a gRPC call with one message each way
//! (`PROTOCOL-HTTP2.md` of grpc/grpc).

use std::io;

use bytes::{BufMut as _, Bytes, BytesMut};
use h2::RecvStream;
use h2::client::{self, SendRequest};
use http::header::{CONTENT_TYPE, TE, USER_AGENT};
use http::{HeaderMap, Request, StatusCode};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use prost::Message as _;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use crate::observe::events::DropReason;
use crate::percent;
use crate::plan::CollectorAddress;

const PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// The most bytes of an answer that are read. The answer to a good export has a few.
const MOST: usize = 64 * 1024;

/// The most characters of a collector's own words that are logged.
const LONGEST: usize = 200;

/// The bytes in front of a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// A connection to a collector. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct CollectorConnection {
    pub(super) address: CollectorAddress,
    sender: SendRequest<Bytes>,
    driver: AbortOnDropHandle<()>,
}

/// Why spans were not sent, or not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExportError {
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("the exchange broke off: {0}")]
    Broken(h2::Error),
    #[error("the address cannot be asked: {0}")]
    Address(http::Error),
    #[error("the spans are too large")]
    TooLarge,
    #[error("no answer in time")]
    Timeout,
    #[error("it answered with the HTTP status {0}, which is no gRPC")]
    Http(StatusCode),
    #[error("its answer is no gRPC: it has no grpc-status")]
    NoStatus,
    #[error("it answered with the gRPC status {status}: {message}")]
    Refused { status: String, message: String },
    #[error("its answer is no answer of OTLP")]
    Message,
}

impl ExportError {
    /// Why the spans of the export are dropped.
    pub(super) fn reason(&self) -> DropReason {
        match self {
            Self::Connect(_) | Self::Address(_) => DropReason::Connect,
            Self::Timeout => DropReason::Timeout,
            Self::Broken(_) | Self::Http(_) | Self::NoStatus | Self::Message => DropReason::Answer,
            Self::Refused { .. } | Self::TooLarge => DropReason::Refused,
        }
    }
}

/// The number of spans that the collector did not take, and the reason that it gave.
#[derive(Debug)]
pub(super) struct PartialRefusal {
    pub(super) spans: u64,
    pub(super) message: String,
}

impl CollectorConnection {
    pub(super) async fn open(address: CollectorAddress) -> Result<Self, ExportError> {
        let stream = TcpStream::connect((address.host.as_str(), address.port)).await;
        let stream = stream.map_err(ExportError::Connect)?;
        stream.set_nodelay(true).map_err(ExportError::Connect)?;
        let (sender, connection) = client::handshake(stream).await.map_err(ExportError::Broken)?;
        let driver = tokio::spawn(async move {
            // The call under way gets the same error, and reports it.
            let _ = connection.await;
        });
        Ok(Self { address, sender, driver: AbortOnDropHandle::new(driver) })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.driver.is_finished()
    }

    /// Sends spans, and waits until the collector has taken them. Returns what it did not take.
    ///
    /// # Errors
    /// If the collector took no span, or nobody knows whether it did.
    pub(super) async fn export(
        &mut self,
        spans: &ExportTraceServiceRequest,
    ) -> Result<Option<PartialRefusal>, ExportError> {
        let (request, message) = (request(&self.address)?, framed(spans)?);
        let mut sender = self.sender.clone().ready().await.map_err(ExportError::Broken)?;
        let sent = sender.send_request(request, false);
        let (answer, mut body) = sent.map_err(ExportError::Broken)?;
        body.send_data(message, true).map_err(ExportError::Broken)?;
        let (head, mut body) = answer.await.map_err(ExportError::Broken)?.into_parts();
        if head.status != StatusCode::OK {
            return Err(ExportError::Http(head.status));
        }
        let message = read(&mut body).await?;
        let trailers = body.trailers().await.map_err(ExportError::Broken)?;
        // An answer without a message has its status in the head.
        succeeded(&trailers.unwrap_or(head.headers))?;
        // No message at all is against the protocol, but the status says clearly that the spans were taken.
        let message = match message.split_at_checked(PREFIX) {
            None if message.is_empty() => ExportTraceServiceResponse::default(),
            Some(([0, ..], message)) => {
                ExportTraceServiceResponse::decode(message).map_err(|_| ExportError::Message)?
            }
            Some(_) | None => return Err(ExportError::Message),
        };
        let refused = message.partial_success.and_then(|partial| {
            let spans = u64::try_from(partial.rejected_spans).ok().filter(|spans| *spans > 0)?;
            Some(PartialRefusal { spans, message: cut(&partial.error_message) })
        });
        Ok(refused)
    }
}

/// Reads the messages of an answer.
async fn read(body: &mut RecvStream) -> Result<BytesMut, ExportError> {
    let mut message = BytesMut::new();
    while let Some(piece) = body.data().await {
        let piece = piece.map_err(ExportError::Broken)?;
        message.extend_from_slice(&piece);
        if message.len() > MOST {
            return Err(ExportError::Message);
        }
        // This fails only where the stream has ended.
        let _ = body.flow_control().release_capacity(piece.len());
    }
    Ok(message)
}

const STATUS: &str = "grpc-status";
const REASON: &str = "grpc-message";

/// Checks the status of a call.
fn succeeded(fields: &HeaderMap) -> Result<(), ExportError> {
    let text = |name| fields.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let status = text(STATUS).ok_or(ExportError::NoStatus)?;
    if status == "0" {
        return Ok(());
    }
    let message = text(REASON).unwrap_or_default();
    let message = cut(&String::from_utf8_lossy(&percent::decode(&message)));
    Err(ExportError::Refused { status: cut(&status), message })
}

/// The message as gRPC sends it.
fn framed(spans: &ExportTraceServiceRequest) -> Result<Bytes, ExportError> {
    let length = spans.encoded_len();
    let mut message = BytesMut::with_capacity(PREFIX + length);
    message.put_u8(0);
    message.put_u32(u32::try_from(length).map_err(|_| ExportError::TooLarge)?);
    spans.encode(&mut message).map_err(|_| ExportError::TooLarge)?;
    Ok(message.freeze())
}

fn request(address: &CollectorAddress) -> Result<Request<()>, ExportError> {
    let url = address.to_string() + PATH;
    Request::post(url)
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .header(USER_AGENT, concat!(env!("CARGO_PKG_NAME"), "/", env!("CARGO_PKG_VERSION")))
        .body(())
        .map_err(ExportError::Address)
}

/// The beginning of a collector's words.
fn cut(words: &str) -> String {
    words.chars().take(LONGEST).collect()
}
