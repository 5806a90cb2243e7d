//! How much a client may send that is neither a request nor data.

use std::cell::Cell;

/// What a connection may send before its first request, in bytes.
const AT_FIRST: i64 = 1024 * 1024;

/// What each request adds in bytes: the window of an HTTP/2 stream. A client may send this number of bytes of an upload
/// even if nobody reads it.
const PER_REQUEST: i64 = 128 * 1024;

/// How many requests at once an HTTP/2 connection carries.
const STREAMS: i64 = 128;

/// What each piece of a body adds in bytes. Around a piece of a request's body stands its framing. A client
/// answers a piece of a response with `WINDOW_UPDATE` frames.
const PER_PIECE: i64 = 256;

/// A response of this length may be answered with one byte more.
const ANSWERED: i64 = 16;

/// What each second of a request that is under way adds in bytes: frames of `PING`, for example.
const PER_SECOND: i64 = 4 * 1024;

/// What a connection may still send that is neither a request nor data: the framing of chunks, and the frames with
/// which HTTP/2 controls a connection. They cost the client little, and this process and other clients much. Every byte
/// is taken off when it comes. Requests, pieces of bodies and time add bytes again.
///
/// The requests and the stream of a connection share this value.
#[derive(Debug)]
pub(crate) struct Overhead {
    /// Bytes; below 0 once it is used up.
    spare: Cell<i64>,
    most: Cell<i64>,
    /// All bytes that have come.
    read: Cell<u64>,
    per_request: i64,
}

impl Overhead {
    /// For a new connection, whose requests' heads have at most `max_header_size` bytes.
    pub(crate) fn new(max_header_size: usize) -> Self {
        let per_request = PER_REQUEST + i64::try_from(max_header_size).unwrap_or(i64::MAX / 1024);
        let most = AT_FIRST + per_request;
        let (spare, most) = (Cell::new(most), Cell::new(most));
        Self { spare, most, read: Cell::default(), per_request }
    }

    /// The connection carries many requests at once.
    pub(crate) fn multiplex(&self) {
        self.most.set(AT_FIRST + self.per_request.saturating_mul(STREAMS));
    }

    /// `bytes` have come.
    pub(crate) fn came(&self, bytes: usize) {
        self.read.set(self.read.get() + bytes as u64);
        self.add(-i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// All bytes that have come from the client.
    pub(crate) fn read(&self) -> u64 {
        self.read.get()
    }

    /// The head of a request was complete.
    pub(crate) fn request(&self) {
        self.add(self.per_request);
    }

    /// A piece of a request's body was passed on.
    pub(crate) fn piece(&self, bytes: usize) {
        // A piece without data is not worth anything.
        if bytes > 0 {
            self.add(i64::try_from(bytes).unwrap_or(i64::MAX / 2) + PER_PIECE);
        }
    }

    /// A piece of a response was passed on.
    pub(crate) fn answered(&self, bytes: usize) {
        self.add(i64::try_from(bytes).unwrap_or(i64::MAX / 2) / ANSWERED + PER_PIECE);
    }

    /// About a second has gone by with a request under way.
    pub(crate) fn second(&self) {
        self.add(PER_SECOND);
    }

    /// Whether the client has sent too much.
    pub(crate) fn is_used_up(&self) -> bool {
        self.spare.get() < 0
    }

    fn add(&self, bytes: i64) {
        // A value below 0 stays below 0.
        let spare = self.spare.get();
        if spare >= 0 {
            self.spare.set(spare.saturating_add(bytes).min(self.most.get()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: usize = 64 * 1024;

    #[test]
    fn an_upload_in_pieces_of_one_byte_is_not_overhead() {
        let overhead = Overhead::new(HEAD);
        overhead.request();
        for _ in 0..1_000_000 {
            overhead.came(b"1\r\nx\r\n".len());
            overhead.piece(1);
        }
        assert!(!overhead.is_used_up());
    }

    #[test]
    fn framing_alone_is_used_up_and_stays_so() {
        let overhead = Overhead::new(HEAD);
        overhead.request();
        let came = (0..).take_while(|_| {
            overhead.came(1024);
            overhead.piece(0);
            !overhead.is_used_up()
        });
        assert_eq!(came.count(), 1024 + 128 + 64);
        overhead.request();
        assert!(overhead.is_used_up());
    }

    #[test]
    fn uploads_that_nobody_reads_are_not_overhead() {
        let overhead = Overhead::new(HEAD);
        overhead.multiplex();
        for _ in 0..10_000 {
            overhead.came(HEAD);
            overhead.request();
            overhead.came(128 * 1024);
        }
        assert!(!overhead.is_used_up());
    }

    #[test]
    fn window_updates_of_a_download_and_rare_pings_are_not_overhead() {
        let overhead = Overhead::new(HEAD);
        overhead.multiplex();
        overhead.request();
        for _ in 0..100_000 {
            overhead.answered(50);
            overhead.came(2 * 13);
            overhead.answered(400 * 1024);
            overhead.came(100 * 2 * 13);
            overhead.second();
            overhead.came(10 * 17);
        }
        assert!(!overhead.is_used_up());
    }

    #[test]
    fn a_connection_of_many_requests_may_not_send_frames_without_end() {
        let overhead = Overhead::new(HEAD);
        overhead.multiplex();
        (0..1_000_000).for_each(|_| overhead.request());
        overhead.came(32 * 1024 * 1024);
        assert!(overhead.is_used_up());
    }
}
