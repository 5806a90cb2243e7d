//! A request's body on its way in.

use std::task::Waker;

use bytes::BytesMut;
use http_body::Frame;

use crate::http1::decode::{Decoder, Piece};
use crate::http1::incoming::{Reader, Slot};

/// A request's body on its way in.
#[derive(Debug)]
pub(super) struct Upload {
    pub(super) slot: Slot,
    pub(super) decoder: Decoder,
    /// Its client has to be asked for it.
    pub(super) awaits_continue: bool,
}

/// What was found for the reader of a request's body.
pub(super) enum Fed {
    /// More has to be read from the socket first.
    Nothing,
    Some(Reader),
    Last(Reader),
    /// Its framing is broken.
    Faulty(Reader),
}

impl Upload {
    /// Hands over what was read.
    pub(super) fn feed(&mut self, input: &mut BytesMut, waker: &Waker) -> Fed {
        let frame = match self.decoder.next(input) {
            Ok(Piece::More) => return Fed::Nothing,
            Ok(Piece::Data(data)) => Some(Ok(Frame::data(data))),
            Ok(Piece::Trailers(trailers)) => Some(Ok(Frame::trailers(trailers))),
            Ok(Piece::End) => None,
            Err(fault) => return Fed::Faulty(self.slot.put(Some(Err(fault)), true, waker)),
        };
        let is_last = self.decoder.is_done();
        let reader = self.slot.put(frame, is_last, waker);
        if is_last { Fed::Last(reader) } else { Fed::Some(reader) }
    }
}
