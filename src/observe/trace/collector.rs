//! The connection to a collector: `TraceService/Export` of OTLP, a gRPC call with one message each way
//! (`PROTOCOL-HTTP2.md` of grpc/grpc).
//!
//! h2 carries it, since hyper's own client leaves a part of a connection on a task that nobody can end. OpenTelemetry's
//! SDK would bring a second HTTP stack and threads of its own. A batch that failed is not sent again: if the collector
//! had taken it, each span would come twice.

use std::io;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use h2::RecvStream;
use h2::client::{self, SendRequest};
use http::header::{CONTENT_TYPE, TE, USER_AGENT};
use http::{HeaderMap, Request, StatusCode};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use prost::Message as _;
use tokio_util::task::AbortOnDropHandle;

use crate::observe::events::{self, DropReason};
use crate::observe::start;
use crate::percent;
use crate::plan::CollectorAddress;
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
    sender: SendRequest<Bytes>,
    driver: AbortOnDropHandle<()>,
}

/// Why spans were not sent, or not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExportError {
    #[error("cannot connect: {0}")]
    Connect(#[from] io::Error),
    #[error("the exchange broke off: {0}")]
    Broken(#[from] h2::Error),
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
            Self::Connect(_) => DropReason::Connect,
            Self::Timeout => DropReason::Timeout,
            Self::Broken(_) | Self::Http(_) | Self::NoStatus | Self::Message => DropReason::Answer,
            Self::Refused { .. } => DropReason::Refused,
        }
    }
}

impl CollectorConnection {
    pub(super) async fn open(
        address: CollectorAddress,
        dialer: &Dialer,
    ) -> Result<Self, ExportError> {
        let (tell, host) = (events::server_address(&address), address.host.as_str());
        let stream = dialer.connect(host, address.port, CONNECT_TIMEOUT, tell).await?;
        let (sender, connection) = client::handshake(stream).await?;
        let driver = tokio::spawn(async move {
            // The call under way gets the same error, and reports it.
            let _ = connection.await;
        });
        Ok(Self { address, sender, driver: AbortOnDropHandle::new(driver) })
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
        let mut sender = self.sender.clone().ready().await?;
        let (answer, mut body) = sender.send_request(request(&self.address)?, false)?;
        body.send_data(framed(spans), true)?;
        let (head, mut body) = answer.await?.into_parts();
        if head.status != StatusCode::OK {
            return Err(ExportError::Http(head.status));
        }
        let message = read(&mut body).await?;
        // An answer without a message has its status in the head.
        succeeded(&body.trailers().await?.unwrap_or(head.headers))?;
        // No message at all is against the protocol, but the status says clearly that the spans were taken.
        let message = match message.split_at_checked(PREFIX) {
            None if message.is_empty() => ExportTraceServiceResponse::default(),
            Some(([0, ..], message)) => {
                ExportTraceServiceResponse::decode(message).map_err(|_| ExportError::Message)?
            }
            Some(_) | None => return Err(ExportError::Message),
        };
        Ok(message.partial_success.and_then(|partial| {
            let spans = u64::try_from(partial.rejected_spans).ok().filter(|spans| *spans > 0)?;
            Some((spans, start(&partial.error_message, LONGEST).to_owned()))
        }))
    }
}

/// Reads the messages of an answer.
async fn read(body: &mut RecvStream) -> Result<BytesMut, ExportError> {
    let mut message = BytesMut::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        message.extend_from_slice(&piece);
        if message.len() > MOST {
            return Err(ExportError::Message);
        }
        // This fails only if the stream has ended.
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
    let cut = |text: &str| start(text, LONGEST).to_owned();
    let message = cut(&String::from_utf8_lossy(&percent::decode(&message)));
    Err(ExportError::Refused { status: cut(&status), message })
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

fn request(address: &CollectorAddress) -> io::Result<Request<()>> {
    let request = Request::post(address.to_string() + PATH)
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .header(USER_AGENT, concat!(env!("CARGO_PKG_NAME"), "/", env!("CARGO_PKG_VERSION")));
    request.body(()).map_err(io::Error::other)
}
