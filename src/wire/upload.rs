//! A request's body as its client sends it.

use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Either};
use hyper::body::Incoming;
use tokio::runtime::Handle;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use super::overhead::Overhead;
use super::streams::{BodyError, PeerBody, StreamBody, StreamCosts, peer_body};

/// The most bytes of an unused upload that are read and thrown away, to keep the connection.
pub(crate) const MOST_DISCARDED: u64 = 64 * 1024;

/// The longest time for which the rest of an unused upload is read over HTTP/2.
const LONGEST: Duration = Duration::from_secs(5);

/// For this time h2 remembers a stream that it has reset.
const RESET_MEMORY: Duration = Duration::from_secs(1);

/// A request's body. If it is dropped before its end over HTTP/2, its rest is read and thrown away. Otherwise h2 would
/// reset the stream, and what the client has sent meanwhile would count as its errors.
#[derive(Debug)]
pub(crate) struct ClientBody {
    source: PeerBody,
    /// What was read ahead, and what follows it: trailers, or data that would be too much. `None` before that.
    ahead: Option<Box<(BytesMut, Option<Frame<Bytes>>)>>,
    overhead: Rc<Overhead>,
    /// The time within which each piece of the rest must come. `None` after the end, or if the client sends no more.
    patience: Option<Duration>,
}

impl ClientBody {
    /// `costs` and `overhead` are those of the client's connection.
    pub(crate) fn new(
        incoming: Incoming,
        costs: Option<&Rc<StreamCosts>>,
        overhead: Rc<Overhead>,
        body_timeout: Duration,
    ) -> Self {
        let source = peer_body(incoming, costs);
        Self { source, ahead: None, overhead, patience: Some(body_timeout) }
    }

    /// Reads the body to its end, or until more than `most` bytes have come. Returns the body if this is all of it.
    /// Whoever reads the body afterwards gets all of it, even if this is dropped before its end.
    ///
    /// # Errors
    /// If the body breaks off.
    pub(crate) async fn read_ahead(&mut self, most: usize) -> Result<Option<&[u8]>, BodyError> {
        self.ahead = Some(Box::default());
        while let Some(frame) = poll_fn(|cx| self.poll_source(cx)).await {
            let (joined, next) = &mut **self.ahead.get_or_insert_default();
            match frame?.into_data() {
                Ok(data) if joined.len() + data.len() <= most => joined.extend_from_slice(&data),
                Ok(data) => *next = Some(Frame::data(data)),
                Err(trailers) => *next = Some(trailers),
            }
            if next.is_some() {
                break;
            }
        }
        let (joined, next) = &**self.ahead.get_or_insert_default();
        Ok(next.as_ref().is_none_or(Frame::is_trailers).then_some(joined))
    }

    /// The next piece of what was not read ahead.
    fn poll_source(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(Pin::new(&mut self.source).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let (Either::Left(_), Some(data)) = (&self.source, frame.data_ref()) {
                    self.overhead.piece(data.len());
                }
            }
            Some(Err(_)) | None => self.give_up(),
        }
        Poll::Ready(frame)
    }

    /// Whether the client was told to send the body, if it waits for that.
    pub(crate) fn is_begun(&self) -> bool {
        self.ahead.is_some()
    }

    /// That of the client's connection.
    pub(crate) fn overhead(&self) -> &Rc<Overhead> {
        &self.overhead
    }

    /// The client sends no more.
    pub(crate) fn give_up(&mut self) {
        self.patience = None;
    }
}

impl Drop for ClientBody {
    fn drop(&mut self) {
        if let Either::Right(body) = &self.source
            && let Some(patience) = self.patience.take()
            && !body.is_end_stream()
            && Handle::try_current().is_ok()
        {
            spawn_local(read_out(body.clone(), self.overhead.clone(), patience));
        }
    }
}

/// Reads the rest of an upload that nobody uses. If there is more than is read, the stream is reset at the end.
async fn read_out(body: StreamBody, overhead: Rc<Overhead>, patience: Duration) {
    let costs = body.costs();
    let source = Either::Right(body);
    let mut rest = ClientBody { source, ahead: None, overhead, patience: Some(patience) };
    let _ = timeout(LONGEST, drain(&mut rest, patience)).await;
    if rest.patience.take().is_none() {
        return;
    }
    let Ok(waits) = costs.waiting.try_acquire() else { return };
    // Until then h2 keeps what comes. After a second all has come that the client's window allows.
    let reset = timeout(RESET_MEMORY, costs.resets.acquire()).await;
    drop((rest, waits));
    if reset.is_ok() {
        sleep(RESET_MEMORY).await;
    }
}

/// Reads a body and throws it away, up to [`MOST_DISCARDED`] bytes. Each piece must come within `time_limit`. Returns
/// whether the body reached its end.
pub(crate) async fn drain(body: &mut ClientBody, time_limit: Duration) -> bool {
    let mut left = MOST_DISCARDED;
    loop {
        let frame = match timeout(time_limit, body.frame()).await {
            Ok(None) => return true,
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(_))) | Err(_) => return false,
        };
        let length = frame.data_ref().map_or(0, |data| data.len() as u64);
        let Some(rest) = left.checked_sub(length) else { return false };
        left = rest;
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some((joined, next)) = self.ahead.as_deref_mut() {
            let joined = Some(mem::take(joined)).filter(|joined| !joined.is_empty());
            let joined = joined.map(|joined| Frame::data(joined.freeze()));
            if let Some(frame) = joined.or_else(|| next.take()) {
                return Poll::Ready(Some(Ok(frame)));
            }
        }
        self.poll_source(cx)
    }

    fn is_end_stream(&self) -> bool {
        let ahead = self.ahead.as_deref();
        ahead.is_none_or(|(joined, next)| joined.is_empty() && next.is_none())
            && self.source.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let hint = self.source.size_hint();
        let Some((left, (joined, next))) = hint.exact().zip(self.ahead.as_deref()) else {
            return hint;
        };
        let next = next.as_ref().and_then(Frame::data_ref).map_or(0, Bytes::len);
        SizeHint::with_exact(left + (joined.len() + next) as u64)
    }
}
