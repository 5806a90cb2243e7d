//! Space to read into.

use bytes::BytesMut;

/// Makes room for `more` bytes behind what is there. Where all that was taken out of the buffer has been
/// passed on, that is its old memory, if it is large enough.
///
/// An empty buffer is not made larger but made anew: `reserve` would keep the space of what was taken out,
/// and a read that asks for more each time would end with twice what it asks for, in each connection whose
/// peer is slow.
pub fn make_room(buffer: &mut BytesMut, more: usize) {
    if !buffer.is_empty() {
        buffer.reserve(more);
    } else if !buffer.try_reclaim(more) {
        *buffer = BytesMut::with_capacity(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads that are filled, each for twice as much as the one before.
    #[test]
    fn a_buffer_is_as_large_as_what_was_asked_for_last() {
        let mut buffer = BytesMut::new();
        for more in [1, 2, 4, 8, 16, 32, 64, 64, 64].map(|kib| 1024 * kib) {
            make_room(&mut buffer, more);
            assert!((more..more + 1024).contains(&buffer.capacity()), "{}", buffer.capacity());
            buffer.resize(buffer.capacity(), 0);
            drop(buffer.split());
        }
    }

    #[test]
    fn what_is_there_stays() {
        let mut buffer = BytesMut::from(&b"abc"[..]);
        make_room(&mut buffer, 1024);
        assert!(buffer.capacity() >= 1027);
        assert_eq!(buffer, b"abc"[..]);
    }

    #[test]
    fn memory_that_nobody_holds_is_used_anew() {
        let mut buffer = BytesMut::with_capacity(1024);
        let place = buffer.as_ptr();
        buffer.resize(1000, 0);
        drop(buffer.split());
        make_room(&mut buffer, 1024);
        assert_eq!(buffer.as_ptr(), place);
    }
}
