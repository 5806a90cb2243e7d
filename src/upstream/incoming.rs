//! A response's body as the server sends it, and the connection that it comes on.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::balance::InFlight;
use super::connection::{Connection, Upgraded};
use super::fault::Fault;
use super::pool::Pool;
use super::upload::Upload;
use crate::http1::decode::{Decoder, Framing, Piece};

/// A response's body. Dropped before its end, it closes the connection, which tells the server that
/// nobody listens any more.
#[derive(Debug)]
pub struct Incoming {
    decoder: Decoder,
    /// Until the end.
    lease: Option<Lease>,
    /// To be told when what came before it has been passed on.
    fault: Option<Fault>,
}

/// A connection while a response's body comes on it.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) connection: Box<Connection>,
    /// What of the request is still to be sent.
    pub(super) upload: Option<Box<Upload>>,
    /// Whether the connection may be used again.
    pub(super) keeps: bool,
    pub(super) pool: Arc<Pool>,
    pub(super) _in_flight: InFlight,
}

impl Incoming {
    pub(super) fn new(framing: Framing, lease: Lease) -> Self {
        let mut body = Self { decoder: Decoder::new(framing), lease: Some(lease), fault: None };
        if body.decoder.is_done() {
            body.finish();
        }
        body
    }

    /// Behind a head that changes to another protocol.
    pub(super) fn switched(lease: Lease) -> Self {
        Self { decoder: Decoder::new(Framing::None), lease: Some(lease), fault: None }
    }

    /// The connection, where the server has changed to another protocol and got all of the request.
    pub fn into_upgraded(self) -> Option<Upgraded> {
        let Lease { connection, upload: None, _in_flight, .. } = self.lease? else { return None };
        let Connection { stream, read: early, .. } = *connection;
        Some(Upgraded { stream, early, _in_flight })
    }

    /// Sends more of the request's body, where it is still on its way: for as long as nobody wants
    /// more of the response's. What goes wrong is told with the response's body.
    pub fn poll_upload(&mut self, cx: &mut Context<'_>) {
        if let (None, Some(lease)) = (&self.fault, &mut self.lease) {
            self.fault = lease.send(cx).err();
        }
    }

    fn finish(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.release();
        }
    }

    /// Puts a fault off to the next poll: whoever hears of one may throw away what it has not
    /// written yet, and the client is to see as much of the answer as there was.
    fn fail<T>(&mut self, cx: &Context<'_>, fault: Fault) -> Poll<T> {
        self.fault = Some(fault);
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Lease {
    fn send(&mut self, cx: &mut Context<'_>) -> Result<(), Fault> {
        let Some(upload) = &mut self.upload else { return Ok(()) };
        match upload.poll(cx, &mut self.connection.stream) {
            Poll::Pending => return Ok(()),
            Poll::Ready(Ok(())) => {}
            // Its answer is there: a server that has seen enough of the request may say so by
            // closing its side.
            Poll::Ready(Err(Fault::Broken(_))) => self.keeps = false,
            Poll::Ready(Err(fault)) => return Err(fault),
        }
        self.upload = None;
        Ok(())
    }

    /// The response's body has ended: the connection is free for the next request, unless something
    /// of this one is still on its way or the server said more than it was asked for.
    fn release(self) {
        if self.keeps && self.upload.is_none() && self.connection.read.is_empty() {
            self.pool.put(self.connection);
        }
    }
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        self.poll_upload(cx);
        if let Some(fault) = self.fault.take() {
            self.lease = None;
            return Poll::Ready(Some(Err(fault)));
        }
        loop {
            let this = &mut *self;
            let Some(lease) = &mut this.lease else { return Poll::Ready(None) };
            let frame = match this.decoder.next(&mut lease.connection.read) {
                Ok(Piece::Data(data)) => Some(Frame::data(data)),
                Ok(Piece::Trailers(trailers)) => Some(Frame::trailers(trailers)),
                Ok(Piece::End) => None,
                Ok(Piece::More) => match ready!(lease.connection.poll_read(cx)) {
                    Ok(1..) => continue,
                    Ok(_) => match this.decoder.end_of_stream() {
                        Ok(()) => continue,
                        Err(fault) => return self.fail(cx, Fault::Body(fault)),
                    },
                    Err(error) => return self.fail(cx, Fault::Broken(error)),
                },
                Err(fault) => return self.fail(cx, Fault::Body(fault)),
            };
            // At once: whoever has the last piece need not come back for the end.
            if this.decoder.is_done() {
                this.finish();
            }
            return Poll::Ready(frame.map(Ok));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.decoder.is_done()
    }

    fn size_hint(&self) -> SizeHint {
        match self.decoder.remaining() {
            Some(length) => SizeHint::with_exact(length),
            None => SizeHint::default(),
        }
    }
}
