//! The bytes of a connection to a server.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::coop::{has_budget_remaining, poll_proceed};
use tokio::time::{sleep, timeout};
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::body::RequestBody;
use super::kept_head::KeptHead;
use crate::wire::write::poll_write_pieces;

/// How often it is checked whether a socket has sent all that was written.
const SEND_LOOK: Duration = Duration::from_millis(10);

/// The most bytes that are read before a response's head is complete. Interim responses (RFC 9110, 15.2)
/// count too, since a server could send them without end.
const MOST_BEFORE_HEAD: usize = 1024 * 1024;

/// The bytes that one unit of tokio's budget pays for. A task has 128 units at a time, so it moves half a MiB
/// before others are served.
const BYTES_PER_UNIT: usize = 4 * 1024;

/// The stream below HTTP.
pub(super) type ServerTransport = Either<Either<TcpStream, UnixStream>, Box<TlsStream<TcpStream>>>;

/// The socket of a connection, if it is one of TCP.
pub(super) fn tcp_of(transport: &ServerTransport) -> Option<&TcpStream> {
    match transport {
        Either::Left(Either::Left(socket)) => Some(socket),
        Either::Left(Either::Right(_unix)) => None,
        Either::Right(tls) => Some(tls.get_ref().0),
    }
}

/// A socket, read and written by the task that drives its connection.
#[derive(Debug)]
pub(crate) struct ServerStream {
    transport: ServerTransport,
    /// Bytes that were read before. The next reads return them.
    early: Bytes,
    /// The last read has found no input, and the runtime wakes the connection's task when some comes. hyper reads
    /// several times for each request. Until input comes, a read only looks for it. This costs less than a full read.
    awaits_input: bool,
    state: Rc<SocketState>,
}

/// What the request's task knows about a socket that the connection's own task reads and writes.
#[derive(Debug, Default)]
pub(super) struct SocketState {
    /// A write has failed: the server takes no more data.
    write_failed: Cell<bool>,
    /// The connection carries another protocol than HTTP.
    switched: Cell<bool>,
    /// Its protocol is WebSocket.
    is_websocket: Cell<bool>,
    /// The connection must not be used for another request.
    pub(super) ends_soon: Cell<bool>,
    /// Bytes that were read since the last request was sent.
    read: Cell<usize>,
    /// The head of the response has come.
    pub(super) answered: Cell<bool>,
    /// An exchange is under way. If it is given up, the socket is reset.
    busy: Cell<bool>,
    /// Whether the head of the request under way is to be kept.
    keeps_head: Cell<bool>,
    head: RefCell<KeptHead>,
}

impl SocketState {
    /// A request is sent: its answer's head is awaited. The request's head is kept if it `may_repeat`.
    pub(super) fn await_head(&self, may_repeat: bool) {
        self.read.set(0);
        self.answered.set(false);
        self.busy.set(true);
        self.keeps_head.set(may_repeat);
        self.head.borrow_mut().clear();
    }

    /// The request that was sent, with this body. `None` if its head was not kept.
    pub(super) fn request_again(&self, body: RequestBody) -> Option<Request<RequestBody>> {
        self.keeps_head.get().then(|| self.head.borrow().request(body)).flatten()
    }

    /// The exchange has come to its end.
    pub(super) fn finish(&self) {
        self.busy.set(false);
    }

    /// The exchange or the tunnel has broken, so no more bytes have to arrive.
    pub(super) fn abandon(&self) {
        self.busy.set(true);
    }

    /// Whether any byte was read since a head was last awaited.
    pub(super) fn has_heard(&self) -> bool {
        self.read.get() > 0
    }

    /// From now on the connection carries another protocol, and a failed write ends the connection. What was written
    /// must arrive, also after the end.
    pub(super) fn switch(&self, is_websocket: bool) {
        self.is_websocket.set(is_websocket);
        self.finish();
        self.switched.set(true);
    }

    /// Whether the connection must not be used for another request. This is also the case after a failed
    /// write.
    pub(super) fn is_unusable(&self) -> bool {
        self.ends_soon.get() || self.write_failed.get()
    }
}

impl ServerStream {
    pub(super) fn new(transport: ServerTransport) -> Self {
        Self { transport, early: Bytes::new(), awaits_input: false, state: Rc::default() }
    }

    /// The same stream for another task, with bytes that were read before.
    pub(super) fn after(mut self, early: Bytes) -> Self {
        (self.early, self.awaits_input) = (early, false);
        self
    }

    /// Whether a read may return something. False only if nothing has come to the socket.
    fn may_read(&self) -> bool {
        let look = || Ok(());
        match &self.transport {
            Either::Left(Either::Left(socket)) => socket.try_io(Interest::READABLE, look).is_ok(),
            Either::Left(Either::Right(socket)) => socket.try_io(Interest::READABLE, look).is_ok(),
            Either::Right(_) => true,
        }
    }

    pub(super) fn state(&self) -> Rc<SocketState> {
        self.state.clone()
    }

    /// Ends a tunnel whose client is gone by a reset, when the kernel has sent all bytes, or after `limit`. With an end
    /// in its place, a port of this machine would be unusable for a minute: this side would have closed first.
    pub(crate) async fn end(self, limit: Duration) {
        if let Some(socket) = tcp_of(&self.transport) {
            // The socket is then writable only if nothing waits to be sent.
            let _ = SockRef::from(socket).set_tcp_notsent_lowat(1);
            let now = Timespec::default();
            let waits = || poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&now)) == Ok(0);
            let sending = async {
                while waits() {
                    sleep(SEND_LOOK).await;
                }
            };
            let _ = timeout(limit, sending).await;
        }
        self.state.abandon();
    }
}

impl Drop for ServerStream {
    /// Resets the socket if its exchange was given up. Otherwise each client that leaves early would make a port of
    /// this machine unusable for a minute (TIME_WAIT).
    fn drop(&mut self) {
        if let Some(socket) = tcp_of(&self.transport).filter(|_| self.state.busy.get()) {
            let _ = socket.set_zero_linger();
        }
    }
}

impl AsyncRead for ServerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.early.is_empty() {
            let length = self.early.len().min(buffer.remaining());
            buffer.put_slice(&self.early.split_to(length));
            return Poll::Ready(Ok(()));
        }
        if self.awaits_input && !self.may_read() {
            return Poll::Pending;
        }
        let (before, has_budget) = (buffer.filled().len(), has_budget_remaining());
        let read = Pin::new(&mut self.transport).poll_read(cx, buffer);
        // A task that has used its budget up does not wait for the socket. It is polled again at once.
        self.awaits_input = read.is_pending() && has_budget && !self.state.switched.get();
        ready!(read)?;
        let came = buffer.filled().len() - before;
        spend_on(came, cx);
        let state = &self.state;
        if !state.answered.get() {
            state.read.set(state.read.get() + came);
            if state.read.get() > MOST_BEFORE_HEAD {
                let error = "too much was sent before an answer's head";
                return Poll::Ready(Err(io::Error::other(error)));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.state.finish();
        if self.state.is_websocket.get() {
            // The client is gone: see `Self::end`.
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.transport).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    /// Hides a failed write. A server may answer and close while the request's body is still being sent.
    /// hyper would drop that answer because of the failed write. Therefore the rest of the request is thrown
    /// away, and the connection ends when all of the server's bytes were read.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all = || Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()));
        let mut written = match self.state.write_failed.get() {
            true => all(),
            false => poll_write_pieces(&mut self.transport, cx, slices),
        };
        if matches!(written, Poll::Ready(Err(_))) && !self.state.switched.get() {
            self.state.write_failed.set(true);
            written = all();
        }
        // What was thrown away belongs to the head too.
        if let Poll::Ready(Ok(length)) = written
            && self.state.keeps_head.get()
            && !self.state.answered.get()
        {
            self.state.head.borrow_mut().push(slices, length);
        }
        written
    }
}

/// Takes the cost of `read` bytes off the task's budget. tokio counts reads and not bytes. But chunk
/// framing is parsed byte by byte. A peer that sends nothing but chunk framing could hold up all other
/// tasks.
fn spend_on(read: usize, cx: &mut Context<'_>) {
    for _ in 0..read / BYTES_PER_UNIT {
        match poll_proceed(cx) {
            Poll::Ready(unit) => unit.made_progress(),
            Poll::Pending => break,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::task::{spawn_local, yield_now};

    use super::*;

    /// Asks for input once, and returns whether there is none.
    async fn is_silent(stream: &mut ServerStream, with_budget: bool) -> bool {
        poll_fn(|cx| {
            while !with_budget && has_budget_remaining() {
                if let Poll::Ready(unit) = poll_proceed(cx) {
                    unit.made_progress();
                }
            }
            let (mut space, stream) = ([0; 8], Pin::new(&mut *stream));
            Poll::Ready(stream.poll_read(cx, &mut ReadBuf::new(&mut space)).is_pending())
        })
        .await
    }

    /// A regression: if the server had closed, the head of a request was lost, and the request had no second try.
    #[tokio::test(flavor = "local")]
    async fn a_head_is_kept_though_its_write_fails() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let mut stream = ServerStream::new(Either::Left(Either::Right(ours)));
        let state = stream.state();
        state.await_head(true);
        stream.write_all(b"GET /a HTTP/1.1\r\n").await.unwrap();
        assert!(state.is_unusable(), "the write has failed");
        stream.write_all(b"host: b\r\n\r\n").await.unwrap();
        let again = state.request_again(RequestBody::empty()).unwrap();
        assert_eq!((again.uri().path(), &again.headers()["host"]), ("/a", &"b".parse().unwrap()));
    }

    /// A read that finds nothing makes the runtime wake the task. A read without a budget does not.
    #[tokio::test(flavor = "local")]
    async fn input_is_read_however_often_it_was_asked_for() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut stream = ServerStream::new(Either::Left(Either::Right(ours)));
        let asking = spawn_local(async move {
            for budgets in [&[true, true, true][..], &[false], &[false, true], &[true, false]] {
                for with_budget in budgets {
                    assert!(is_silent(&mut stream, *with_budget).await);
                    yield_now().await;
                }
                let mut came = [0; 8];
                let (read, written) = tokio::join!(stream.read(&mut came), async {
                    yield_now().await;
                    theirs.write_all(b"input").await
                });
                written.unwrap();
                assert_eq!(read.unwrap(), 5, "{budgets:?}");
            }
            drop(theirs);
            assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0, "the end is noticed too");
        });
        // A timer in the same task would wake it too.
        timeout(Duration::from_secs(10), asking).await.expect("the task is woken").unwrap();
    }
}
