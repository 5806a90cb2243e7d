//! A connection to a server: what is read from it, and one exchange at a time.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::balance::InFlight;
use super::body::Turn;
use super::deadline::Deadline;
use super::fault::Fault;
use super::upload::Upload;
use crate::http1::response::{HeadReader, ResponseHead};
use crate::http1::room::make_room;

/// The space for a connection's first read: most answers are shorter.
const FIRST_READ: usize = 8 * 1024;
/// The space for a read in the midst of a long body.
const LONGEST_READ: usize = 256 * 1024;

/// A connection that one request uses at a time. Dropped, it is closed, whatever is under way.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    /// What was read and belongs to nothing yet.
    pub(super) read: BytesMut,
    /// How much is read at once: more as long as there is more.
    space: usize,
    /// Whether it has been in the pool: the server may then have closed it meanwhile.
    pub(super) pooled: bool,
    deadline: Deadline,
}

/// No head, and whether there is time left to wait for one.
pub(super) enum NoHead {
    Fault(Fault),
    TooLate,
}

impl Connection {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            read: BytesMut::new(),
            space: FIRST_READ,
            pooled: false,
            deadline: Deadline::default(),
        }
    }

    /// Whether the server has closed it, or said something that nobody asked for. Nothing is asked
    /// of the kernel as long as it has not told of news.
    pub(super) fn is_spoilt(&self) -> bool {
        let news = self.stream.try_read(&mut [0]);
        !matches!(news, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Gives the space back that it read into.
    pub(super) fn rest(&mut self) {
        self.read = BytesMut::new();
        self.space = FIRST_READ;
        self.pooled = true;
    }

    /// Reads more. Ready with 0 at the connection's end.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.read.capacity() - self.read.len() < self.space / 2 {
            make_room(&mut self.read, self.space);
        }
        let room = self.read.capacity() - self.read.len();
        let read = ready!(pin!(self.stream.read_buf(&mut self.read)).poll(cx))?;
        if read == room {
            self.space = (self.space * 2).min(LONGEST_READ);
        }
        Poll::Ready(Ok(read))
    }

    /// Sends a request and reads the head of its answer, within `limit` of the request's end. The
    /// answer may come before all of the request is sent.
    pub(super) async fn head(
        &mut self,
        upload: &mut Upload,
        limit: Duration,
    ) -> Result<ResponseHead, NoHead> {
        let sent = Instant::now();
        let mut reader = HeadReader::default();
        let mut lost = None;
        poll_fn(|cx| {
            if lost.is_none() {
                match upload.poll(cx, &mut self.stream) {
                    // Whoever closes while the request is still coming may have said why.
                    Poll::Ready(Err(Fault::Broken(error))) if !upload.is_untouched() => {
                        lost = Some(error);
                    }
                    Poll::Ready(Err(fault)) => return Poll::Ready(Err(NoHead::Fault(fault))),
                    Poll::Ready(Ok(())) | Poll::Pending => {}
                }
            }
            while let Poll::Ready(read) = self.poll_read(cx) {
                let fault = match read {
                    Ok(1..) => match reader.next(&mut self.read, upload.method()) {
                        Ok(Some(head)) => return Poll::Ready(Ok(head)),
                        Ok(None) => continue,
                        Err(fault) => Fault::Head(fault),
                    },
                    read => match (lost.take(), read) {
                        (Some(error), _) | (None, Err(error)) => Fault::Broken(error),
                        (None, Ok(_)) if self.read.is_empty() => Fault::NoAnswer,
                        (None, Ok(_)) => Fault::HalfHead,
                    },
                };
                return Poll::Ready(Err(NoHead::Fault(fault)));
            }
            let turn = || match lost {
                None => upload.body().turn(),
                Some(_) => Turn::Server(None),
            };
            self.deadline.poll(cx, sent, limit, turn).map(|()| Err(NoHead::TooLate))
        })
        .await
    }
}

/// A connection that has changed to another protocol.
#[derive(Debug)]
pub struct Upgraded {
    pub(super) stream: TcpStream,
    /// What the server has said already in the new protocol.
    pub(super) early: BytesMut,
    pub(super) _in_flight: InFlight,
}

impl AsyncRead for Upgraded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.early.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let length = self.early.len().min(buffer.remaining());
        buffer.put_slice(&self.early.split_to(length));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Upgraded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
