//! What the streams of an HTTP/2 connection may cost it, and their bodies.
//!
//! h2 keeps the frames of a body until the body is read, and a body is read only while its receiver takes more. For a
//! frame of some bytes h2 needs much more memory than these bytes. If too many such frames wait, h2 ends the connection
//! with all its streams. Therefore the frames that wait are counted as they come. If they are many, all bodies of the
//! connection are read ahead: their frames are joined here, up to a bound for each body. If too many still wait behind
//! bodies that are full, the body with the most small frames breaks off alone.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::mem;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Either;
use hyper::body::Incoming;
use tokio::sync::{Notify, Semaphore};

use super::overhead::Overhead;

/// The flow-control window of a connection in bytes: as large as can be (RFC 9113, 6.9.1). The streams' windows are the
/// bound. h2 ends a connection when small frames cost half of this. It also counts those of streams that were reset, for
/// the life of the connection.
pub(crate) const CONNECTION_WINDOW: u32 = u32::MAX >> 1;

/// A frame of fewer bytes costs what it lacks to this length. h2 counts in the same way.
const SMALL: usize = 256;

/// What the small frames that wait may cost until the bodies are read ahead, and until one of them breaks off.
const MANY: usize = 1024 * 1024;
const TOO_MANY: usize = 24 * 1024 * 1024;

/// A body is read ahead until this number of bytes waits here.
const MOST_AHEAD: usize = 256 * 1024;

/// h2 remembers 50 streams that it has reset, for a second. Frames that come later count as errors of the client, and
/// the 1025th of these ends the connection. So no more streams than this are reset within a second.
const RESETS: usize = 32;

/// The most streams that wait for their reset. A client has at most 128 open. It has reset all others by itself.
const MOST_WAITING: usize = 128;

pub(crate) type BodyError = Box<dyn Error + Send + Sync>;

/// Why a body breaks off.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("too many frames of some bytes each were not read (HTTP/2)")]
pub(crate) struct TooManyFrames;

/// Why a body breaks off whose peer has reset its stream without an error.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the stream was reset before its end (HTTP/2)")]
struct Unended;

/// What the streams of one connection cost it.
#[derive(Debug)]
pub(crate) struct StreamCosts {
    /// What the small frames cost that h2 keeps.
    held: Cell<usize>,
    /// The bodies are read ahead when `held` reaches this.
    due: Cell<usize>,
    bodies: RefCell<Vec<Weak<RefCell<Ahead>>>>,
    /// That of a client's connection. The pieces that have come are noted there.
    overhead: Option<Rc<Overhead>>,
    /// How often something was read, and who waits for the next time.
    pub(crate) reads: Cell<usize>,
    pub(crate) heard: Notify,
    /// A permit is held for a second after each reset.
    pub(super) resets: Semaphore,
    /// A permit is held while a stream waits for its reset.
    pub(super) waiting: Semaphore,
}

impl Default for StreamCosts {
    fn default() -> Self {
        Self {
            held: Cell::default(),
            due: Cell::new(MANY),
            bodies: RefCell::default(),
            overhead: None,
            reads: Cell::default(),
            heard: Notify::new(),
            resets: Semaphore::new(RESETS),
            waiting: Semaphore::new(MOST_WAITING),
        }
    }
}

impl StreamCosts {
    /// For a client's connection.
    pub(crate) fn of_client(overhead: Rc<Overhead>) -> Self {
        Self { overhead: Some(overhead), ..Self::default() }
    }

    /// Something was read.
    pub(crate) fn read(&self) {
        self.reads.set(self.reads.get() + 1);
        self.heard.notify_one();
    }

    /// A frame with data has come that does not end its stream.
    pub(crate) fn came(&self, length: usize) {
        self.held.set(self.held.get() + SMALL.saturating_sub(length));
    }

    /// Reads ahead if many small frames wait. Called between two reads of the connection.
    pub(crate) fn look(&self) {
        if self.held.get() < self.due.get() {
            return;
        }
        let mut bodies = self.bodies.borrow_mut();
        bodies.retain(|body| body.strong_count() > 0);
        let live: Vec<_> = bodies.iter().filter_map(Weak::upgrade).collect();
        for body in &live {
            body.borrow_mut().pull();
        }
        let full = || live.iter().filter(|body| body.borrow().is_full());
        while self.held.get() > TOO_MANY
            && let Some(worst) = full().max_by_key(|body| body.borrow().small)
        {
            worst.borrow_mut().break_off();
            // More of its frames are on their way. They cost nothing, and no other body breaks off because of them.
            self.held.set(self.held.get().min(TOO_MANY / 2));
        }
        // What came for streams that were reset meanwhile was counted too.
        if full().next().is_none() {
            self.held.set(0);
        }
        self.due.set(self.held.get() + MANY);
    }

    fn poll(
        &self,
        incoming: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(Pin::new(&mut *incoming).poll_frame(cx));
        // hyper takes a reset without an error (RFC 9113, 8.1) for the end of the body.
        if frame.is_none() && !incoming.is_end_stream() {
            return Poll::Ready(Some(Err(Unended.into())));
        }
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            if let Some(overhead) = &self.overhead {
                overhead.piece(data.len());
            }
            let held = self.held.get();
            if held > 0 && data.len() < SMALL && !incoming.is_end_stream() {
                self.held.set(held.saturating_sub(SMALL - data.len()));
            }
        }
        Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)))
    }
}

/// A body, and what was read ahead of it.
#[derive(Debug)]
struct Ahead {
    /// `None` once the body has broken off.
    incoming: Option<Incoming>,
    costs: Rc<StreamCosts>,
    joined: BytesMut,
    /// The number of small frames in `joined`.
    small: usize,
    /// What follows `joined`: trailers, an error, or the end.
    next: Option<Option<Result<Frame<Bytes>, BodyError>>>,
    /// Who waits for more.
    waker: Waker,
}

impl Ahead {
    /// Whether no more is read ahead, though more may wait.
    fn is_full(&self) -> bool {
        self.joined.len() >= MOST_AHEAD && self.incoming.is_some()
    }

    fn pull(&mut self) {
        let mut cx = Context::from_waker(&self.waker);
        while let Some(incoming) = &mut self.incoming
            && self.next.is_none()
            && self.joined.len() < MOST_AHEAD
            && let Poll::Ready(frame) = self.costs.poll(incoming, &mut cx)
        {
            let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
            match data {
                Some(data) => {
                    self.small += usize::from(data.len() < SMALL);
                    self.joined.extend_from_slice(data);
                }
                None => self.next = Some(frame),
            }
        }
    }

    fn break_off(&mut self) {
        self.forget();
        (self.small, self.next) = (0, Some(Some(Err(TooManyFrames.into()))));
    }

    /// Takes what h2 keeps of the body off the costs.
    fn forget(&mut self) {
        let Some(mut incoming) = self.incoming.take().filter(|it| !it.is_end_stream()) else {
            return;
        };
        let mut cx = Context::from_waker(Waker::noop());
        while self.costs.held.get() > 0
            && let Poll::Ready(Some(Ok(_))) = self.costs.poll(&mut incoming, &mut cx)
        {}
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.forget();
    }
}

/// The body of a message that comes from a client or a server, over HTTP/1.1 or HTTP/2.
pub(crate) type PeerBody = Either<Incoming, StreamBody>;

/// A body that comes over HTTP/2.
#[derive(Clone, Debug)]
pub(crate) struct StreamBody(Rc<RefCell<Ahead>>);

/// The body of a message. `costs` are those of its connection, if it comes over HTTP/2.
pub(crate) fn peer_body(incoming: Incoming, costs: Option<&Rc<StreamCosts>>) -> PeerBody {
    let Some(costs) = costs else { return Either::Left(incoming) };
    let body = Rc::new(RefCell::new(Ahead {
        incoming: Some(incoming),
        costs: costs.clone(),
        joined: BytesMut::new(),
        small: 0,
        next: None,
        waker: Waker::noop().clone(),
    }));
    let mut bodies = costs.bodies.borrow_mut();
    if bodies.len() == bodies.capacity() {
        bodies.retain(|body| body.strong_count() > 0);
    }
    bodies.push(Rc::downgrade(&body));
    Either::Right(StreamBody(body))
}

impl StreamBody {
    /// The costs of its connection.
    pub(super) fn costs(&self) -> Rc<StreamCosts> {
        self.0.borrow().costs.clone()
    }
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let ahead = &mut *self.0.borrow_mut();
        if !ahead.joined.is_empty() {
            ahead.small = 0;
            return Poll::Ready(Some(Ok(Frame::data(mem::take(&mut ahead.joined).freeze()))));
        }
        if let Some(next) = ahead.next.take() {
            return Poll::Ready(next);
        }
        let Some(incoming) = &mut ahead.incoming else { return Poll::Ready(None) };
        let frame = ahead.costs.poll(incoming, cx);
        if frame.is_pending() {
            ahead.waker.clone_from(cx.waker());
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        let ahead = self.0.borrow();
        ahead.joined.is_empty()
            && match &ahead.next {
                Some(next) => next.is_none(),
                None => ahead.incoming.as_ref().is_none_or(Incoming::is_end_stream),
            }
    }

    fn size_hint(&self) -> SizeHint {
        let ahead = self.0.borrow();
        let left = ahead.incoming.as_ref().and_then(|incoming| incoming.size_hint().exact());
        let exact = left.map(|left| SizeHint::with_exact(left + ahead.joined.len() as u64));
        exact.unwrap_or_default()
    }
}
