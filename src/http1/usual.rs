//! Reads heads as nearly all of them are written, in one look at each byte.
//!
//! What is unusual in any way, be it allowed, broken or not whole yet, is left to the parser that
//! knows it all: nothing is taken here that it would not take, or would read otherwise.

use std::ops::Range;

use http::{Method, StatusCode, Version};

use super::fields::Place;
use super::head::{Line, MOST_FIELDS, Parsed, Places};

/// The space for fields: most heads have fewer.
const FIELDS: usize = 16;

/// The bytes of a name (RFC 9110, 5.6.2) in lower case; 0 for what no name has.
const NAME: [u8; 256] = {
    let mut table = [0; 256];
    let tokens = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz";
    let mut place = 0;
    while place < tokens.len() {
        let byte = tokens[place];
        table[byte as usize] = byte;
        table[byte.to_ascii_uppercase() as usize] = byte;
        place += 1;
    }
    table
};

/// Reads a response's head that is whole and written as usual: the usual words behind the status, lines
/// that end with CR LF, values with at most one space before them. Writes names in lower case, also
/// where it finds something else in the end.
pub(super) fn read(head: &mut [u8]) -> Option<Parsed> {
    let (version, status, mut at) = status_line(head)?;
    let mut places = Vec::with_capacity(FIELDS);
    while *head.get(at)? != b'\r' {
        if places.len() == MOST_FIELDS {
            return None;
        }
        let name = name(head, at)?;
        let value = value(head, name.end + 1)?;
        at = value.end + 2;
        places.push(Place::of(head, name, value));
    }
    let length = at + 2;
    (*head.get(at + 1)? == b'\n').then_some(Parsed {
        version,
        status,
        reason: None,
        places,
        length,
    })
}

/// The bytes of a usual target (RFC 3986, 3.3 and 3.4).
const TARGET: [bool; 256] = {
    let mut table = [false; 256];
    let usual =
        b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-._~!$&'()*+,;=:@/?%";
    let mut place = 0;
    while place < usual.len() {
        table[usual[place] as usize] = true;
        place += 1;
    }
    table
};

/// The same of a request's head: a method that many use, a target of the bytes that a URI has. The
/// places of its fields are put into `places`.
pub(super) fn read_request(head: &mut [u8], places: &mut Places) -> Option<Line> {
    let (method, begin) = method(head)?;
    let length = head.get(begin..)?.iter().position(|byte| !TARGET[usize::from(*byte)])?;
    let target = begin..begin + length;
    let (version, mut at) = match head.get(target.end..)?.split_first_chunk::<11>()?.0 {
        b" HTTP/1.1\r\n" => (Version::HTTP_11, target.end + 11),
        b" HTTP/1.0\r\n" => (Version::HTTP_10, target.end + 11),
        _ => return None,
    };
    if target.is_empty() {
        return None;
    }
    while *head.get(at)? != b'\r' {
        if places.len() == MOST_FIELDS {
            return None;
        }
        let name = name(head, at)?;
        let value = value(head, name.end + 1)?;
        at = value.end + 2;
        places.push((name, value));
    }
    let length = at + 2;
    (*head.get(at + 1)? == b'\n').then_some(Line { method, target, version, length })
}

/// The method, and where the target begins.
fn method(head: &[u8]) -> Option<(Method, usize)> {
    Some(match head {
        [b'G', b'E', b'T', b' ', ..] => (Method::GET, 4),
        [b'P', b'O', b'S', b'T', b' ', ..] => (Method::POST, 5),
        [b'P', b'U', b'T', b' ', ..] => (Method::PUT, 4),
        [b'H', b'E', b'A', b'D', b' ', ..] => (Method::HEAD, 5),
        [b'P', b'A', b'T', b'C', b'H', b' ', ..] => (Method::PATCH, 6),
        [b'D', b'E', b'L', b'E', b'T', b'E', b' ', ..] => (Method::DELETE, 7),
        [b'O', b'P', b'T', b'I', b'O', b'N', b'S', b' ', ..] => (Method::OPTIONS, 8),
        _ => return None,
    })
}

fn status_line(head: &[u8]) -> Option<(Version, StatusCode, usize)> {
    let (version, rest) = match head.split_first_chunk()? {
        (b"HTTP/1.1 ", rest) => (Version::HTTP_11, rest),
        (b"HTTP/1.0 ", rest) => (Version::HTTP_10, rest),
        _ => return None,
    };
    let (status, rest) = rest.split_first_chunk::<3>()?;
    let status = StatusCode::from_bytes(status).ok()?;
    let words = status.canonical_reason()?.as_bytes();
    let rest = rest.strip_prefix(b" ")?.strip_prefix(words)?.strip_prefix(b"\r\n")?;
    Some((version, status, head.len() - rest.len()))
}

/// The name that begins there, before a colon.
fn name(head: &mut [u8], begin: usize) -> Option<Range<usize>> {
    for (length, byte) in head.get_mut(begin..)?.iter_mut().enumerate() {
        match NAME[usize::from(*byte)] {
            0 => return (*byte == b':' && length > 0).then_some(begin..begin + length),
            lower => *byte = lower,
        }
    }
    None
}

/// The value behind a colon, before CR LF.
fn value(head: &[u8], colon_end: usize) -> Option<Range<usize>> {
    let begin = colon_end + usize::from(*head.get(colon_end)? == b' ');
    let rest = head.get(begin..)?;
    let (value, behind) = rest.split_at_checked(control(rest)?)?;
    let padded = matches!(value, [b' ', ..] | [.., b' ']);
    (behind.starts_with(b"\r\n") && !padded).then_some(begin..begin + value.len())
}

/// Where the first control character stands, eight bytes at a time. In a word a byte below a limit
/// borrows from the one above it, so that the lowest one found is always right.
fn control(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = ONES << 7;
    let (words, rest) = bytes.as_chunks::<8>();
    for (place, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let deletes = word ^ (ONES * 0x7f);
        let below = word.wrapping_sub(ONES * 0x20) & !word;
        let found = (below | (deletes.wrapping_sub(ONES) & !deletes)) & HIGH;
        if found != 0 {
            return Some(8 * place + found.trailing_zeros() as usize / 8);
        }
    }
    let found = rest.iter().position(u8::is_ascii_control);
    found.map(|place| 8 * words.len() + place)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_usual(text: &str) -> bool {
        read(&mut text.to_owned().into_bytes()).is_some()
    }

    #[test]
    fn the_usual_is_read_and_the_rest_is_left() {
        for (usual, text) in [
            (true, "HTTP/1.1 200 OK\r\n\r\n"),
            (true, "HTTP/1.0 404 Not Found\r\nA: b\r\nc:d\r\ne:\r\nf: é g\r\n\r\nrest"),
            (false, "HTTP/1.1 200 Fine\r\n\r\n"),
            (false, "HTTP/1.1 200\r\n\r\n"),
            (false, "HTTP/1.1 999 \r\n\r\n"),
            (false, "HTTP/2.0 200 OK\r\n\r\n"),
            (false, "\r\nHTTP/1.1 200 OK\r\n\r\n"),
            (false, "HTTP/1.1 200 OK\r\na: b\r\n"),
            (false, "HTTP/1.1 200 OK\r\na: b\r\n\r"),
            (false, "HTTP/1.1 200 OK\r\na: b\n\r\n"),
            (false, "HTTP/1.1 200 OK\r\na: b\rc\r\n\r\n"),
            (false, "HTTP/1.1 200 OK\r\na:  b\r\n\r\n"),
            (false, "HTTP/1.1 200 OK\r\na: b \r\n\r\n"),
            (false, "HTTP/1.1 200 OK\r\na: b\tc\r\n\r\n"),
            (false, "HTTP/1.1 200 OK\r\na: b\x7f\r\n\r\n"),
            (false, "HTTP/1.1 200 OK\r\na : b\r\n\r\n"),
            (false, "HTTP/1.1 200 OK\r\na\r\n\r\n"),
            (false, "HTTP/1.1 200 OK\r\n: b\r\n\r\n"),
            (false, "HTTP/1.1 200 OK\r\na: b\r\n c\r\n\r\n"),
        ] {
            assert_eq!(is_usual(text), usual, "{text:?}");
        }
        let many = |fields| format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(fields));
        assert!(is_usual(&many(MOST_FIELDS)) && !is_usual(&many(MOST_FIELDS + 1)));
    }

    proptest! {
        #[test]
        fn the_first_control_character_is_found(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(control(&bytes), bytes.iter().position(u8::is_ascii_control));
        }
    }
}
