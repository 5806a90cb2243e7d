//! A client's connection as it is read and written, with what its time-outs need to know.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

/// How long a connection that is closed with unread input goes on reading, so that the client
/// gets to read the answer before a reset destroys it.
const LINGER: Duration = Duration::from_secs(2);

/// How long a client may take over each part of an exchange.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) header: Duration,
    pub(super) idle: Duration,
    pub(super) write: Duration,
}

/// What a connection is doing and since when; shared by its socket, its requests and its timer.
#[derive(Debug)]
pub(super) struct Phase {
    epoch: Instant,
    times: Times,
    doing: AtomicU8,
    /// Microseconds after `epoch`.
    since: AtomicU64,
    /// Microseconds after `epoch` at which a write began to wait; 0 where none waits.
    write_waits_since: AtomicU64,
    lingers: AtomicBool,
}

const IDLE: u8 = 0;
const READING_HEAD: u8 = 1;
const BUSY: u8 = 2;

impl Phase {
    /// A connection that was just accepted: its first head is awaited.
    pub(super) fn new(times: Times) -> Self {
        Self {
            epoch: Instant::now(),
            times,
            doing: AtomicU8::new(READING_HEAD),
            since: AtomicU64::new(0),
            write_waits_since: AtomicU64::new(0),
            lingers: AtomicBool::new(false),
        }
    }

    /// When the connection is to be closed unless something happens; `None` while a request is
    /// being served and the client reads.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let doing = match self.doing.load(Ordering::Relaxed) {
            IDLE => Some((self.since.load(Ordering::Relaxed), self.times.idle)),
            READING_HEAD => Some((self.since.load(Ordering::Relaxed), self.times.header)),
            _ => None,
        };
        let writing = match self.write_waits_since.load(Ordering::Relaxed) {
            0 => None,
            since => Some((since, self.times.write)),
        };
        let at = |(since, limit): (u64, Duration)| {
            self.epoch.checked_add(Duration::from_micros(since))?.checked_add(limit)
        };
        doing.and_then(at).into_iter().chain(writing.and_then(at)).min()
    }

    /// A request's head is complete.
    pub(super) fn begin(&self) {
        self.doing.store(BUSY, Ordering::Relaxed);
    }

    /// A response's body has been handed over.
    pub(super) fn end(&self) {
        self.since.store(self.now(), Ordering::Relaxed);
        self.doing.store(IDLE, Ordering::Relaxed);
    }

    /// The connection will be closed with input unread.
    pub(super) fn linger(&self) {
        self.lingers.store(true, Ordering::Relaxed);
    }

    fn bytes_came(&self) {
        if self.doing.load(Ordering::Relaxed) == IDLE {
            self.since.store(self.now(), Ordering::Relaxed);
            self.doing.store(READING_HEAD, Ordering::Relaxed);
        }
    }

    fn write_waits(&self) {
        if self.write_waits_since.load(Ordering::Relaxed) == 0 {
            self.write_waits_since.store(self.now().max(1), Ordering::Relaxed);
        }
    }

    fn write_moved(&self) {
        if self.write_waits_since.load(Ordering::Relaxed) != 0 {
            self.write_waits_since.store(0, Ordering::Relaxed);
            // A client that reads slowly what is left of a response is not idle.
            if self.doing.load(Ordering::Relaxed) == IDLE {
                self.since.store(self.now(), Ordering::Relaxed);
            }
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// A client's socket.
#[derive(Debug)]
pub(super) struct ClientStream {
    stream: TcpStream,
    phase: Arc<Phase>,
    lingering: Option<Pin<Box<Sleep>>>,
}

impl ClientStream {
    pub(super) fn new(stream: TcpStream, phase: Arc<Phase>) -> Self {
        Self { stream, phase, lingering: None }
    }

    fn watch<T>(&self, written: Poll<T>) -> Poll<T> {
        match written {
            Poll::Ready(_) => self.phase.write_moved(),
            Poll::Pending => self.phase.write_waits(),
        }
        written
    }

    /// Reads and throws away until the client closes or has had its time.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.lingering.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        if timer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let mut space = [0; 16 * 1024];
        loop {
            let mut buffer = ReadBuf::new(&mut space);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                _ => return Poll::Ready(()),
            }
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            self.phase.bytes_came();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        }
        if self.phase.lingers.load(Ordering::Relaxed) {
            ready!(self.poll_linger(cx));
        }
        Poll::Ready(Ok(()))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.watch(written)
    }
}
