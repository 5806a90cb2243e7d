//! A request's body as its reader sees it.
//!
//! The connection's loop reads it from the socket, one frame at a time and only when one is asked
//! for: what nobody takes stays in the socket. Reader and loop are mostly one task, so that what is
//! between them is a slot and no channel; they may be two.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::decode::BodyFault;

/// A request's body. Dropped, it tells the connection that nobody wants the rest.
#[derive(Debug, Default)]
pub struct Incoming {
    /// `None` where there is nothing (more) to read.
    slot: Option<Slot>,
    /// Bytes that were not handed out yet, where their number is known.
    left: Option<u64>,
}

/// Where the connection puts what it has read.
#[derive(Clone, Debug)]
pub(super) struct Slot(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Read and not taken yet.
    frame: Option<Result<Frame<Bytes>, BodyFault>>,
    /// Nothing comes behind it.
    is_last: bool,
    wanted: bool,
    dropped: bool,
    /// Who waits for a frame.
    reader: Option<Waker>,
    /// Who waits for the reader.
    connection: Option<Waker>,
}

/// What the reader waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// Nothing at the moment; the task that asked is woken when that changes.
    Nothing,
    /// A frame.
    Frame,
    /// Nothing any more.
    Dropped,
}

/// Who reads a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    /// The connection's own task, which must ask it again.
    Same,
    /// Another task, which was woken.
    Other,
}

impl Incoming {
    /// No body.
    pub fn empty() -> Self {
        Self { slot: None, left: Some(0) }
    }

    /// A body of so many bytes, or of unknown length, and where it is to be put.
    pub(super) fn new(length: Option<u64>) -> (Self, Slot) {
        let slot = Slot(Arc::default());
        (Self { slot: Some(slot.clone()), left: length }, slot)
    }
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = BodyFault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        let Some(slot) = &self.slot else { return Poll::Ready(None) };
        let mut state = slot.locked();
        let (frame, is_last) = (state.frame.take(), state.is_last);
        if frame.is_none() && !is_last {
            state.wanted = true;
            if !state.reader.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                state.reader = Some(cx.waker().clone());
            }
            // It may be this very task: it then finds the wish when the reader returns to it.
            let connection = state.connection.take();
            drop(state);
            match connection {
                Some(waker) if !waker.will_wake(cx.waker()) => waker.wake(),
                _ => {}
            }
            return Poll::Pending;
        }
        drop(state);
        if let (Some(Ok(frame)), Some(left)) = (&frame, &mut self.left) {
            let length = frame.data_ref().map_or(0, |data| data.len() as u64);
            *left = left.saturating_sub(length);
        }
        if is_last || matches!(frame, Some(Err(_))) {
            self.slot = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.slot.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        let Some(slot) = &self.slot else { return };
        let mut state = slot.locked();
        state.dropped = true;
        state.frame = None;
        let connection = state.connection.take();
        drop(state);
        if let Some(waker) = connection {
            waker.wake();
        }
    }
}

impl Slot {
    /// What the reader waits for.
    pub(super) fn demand(&self, waker: &Waker) -> Demand {
        let mut state = self.locked();
        if state.dropped {
            return Demand::Dropped;
        }
        if state.wanted && state.frame.is_none() {
            return Demand::Frame;
        }
        if !state.connection.as_ref().is_some_and(|known| known.will_wake(waker)) {
            state.connection = Some(waker.clone());
        }
        Demand::Nothing
    }

    /// Whether the body's reader has gone.
    pub(super) fn is_dropped(&self) -> bool {
        self.locked().dropped
    }

    /// Hands a frame over, or the end where there is none. `is_last` where nothing comes behind it.
    pub(super) fn put(
        &self,
        frame: Option<Result<Frame<Bytes>, BodyFault>>,
        is_last: bool,
        connection: &Waker,
    ) -> Reader {
        let mut state = self.locked();
        state.frame = frame;
        state.is_last = is_last;
        state.wanted = false;
        let reader = state.reader.take();
        drop(state);
        match reader {
            Some(waker) if waker.will_wake(connection) => Reader::Same,
            Some(waker) => {
                waker.wake();
                Reader::Other
            }
            None => Reader::Other,
        }
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
