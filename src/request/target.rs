//! The target of a request in the bytes that a client has sent.

use percent_encoding::percent_encode_byte;

/// DEL, which is in no target.
const REFUSED: u8 = 0x7F;

/// A target in which those bytes are percent-encoded that other servers take and the `http` crate does not: browsers
/// and old clients send JSON in a query as it is. What follows the target in a line may stand behind it.
///
/// The crate cuts a target at a `#`. Servers that keep the rest serve another resource than the one that is counted. So
/// a `#` becomes a byte that the crate takes nowhere.
pub(crate) fn encoded(target: &[u8]) -> Vec<u8> {
    // The crate takes bytes above 0x7F if they are UTF-8.
    let is_text = std::str::from_utf8(target).is_ok();
    let mut encoded = Vec::with_capacity(target.len());
    let mut is_in_query = false;
    for byte in target {
        is_in_query |= *byte == b'?';
        let is_taken = match byte {
            b'<' | b'>' => false,
            b'`' => is_in_query,
            b'"' => !is_in_query,
            0x80.. => is_text,
            _ => true,
        };
        match is_taken {
            _ if *byte == b'#' => encoded.push(REFUSED),
            true => encoded.push(*byte),
            false => encoded.extend_from_slice(percent_encode_byte(*byte).as_bytes()),
        }
    }
    encoded
}
