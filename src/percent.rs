//! Percent-encoding, read and written one piece at a time.

use std::borrow::Cow;

/// A piece of a percent-encoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece<'t> {
    /// Characters without percent-encoding.
    Text(&'t str),
    /// An encoded byte.
    Byte(u8),
    /// A percent sign without two hex digits behind it.
    Broken,
}

/// The pieces of a text. `Text` pieces may be empty.
pub(crate) fn pieces(text: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut parts = text.split('%');
    let first = Piece::Text(parts.next().unwrap_or_default());
    std::iter::once(first).chain(parts.flat_map(|part| match escape(part) {
        Some((byte, rest)) => [Piece::Byte(byte), Piece::Text(rest)],
        None => [Piece::Broken, Piece::Text(part)],
    }))
}

/// An encoded byte, with hex digits in upper case.
pub(crate) fn encoded(byte: u8) -> [u8; 3] {
    [b'%', hex(byte >> 4), hex(byte & 15)]
}

/// Appends an encoded byte.
pub(crate) fn push_encoded(text: &mut String, byte: u8) {
    text.extend(encoded(byte).map(char::from));
}

/// A text as one segment of a URL's path: everything but unreserved characters is encoded.
pub(crate) fn segment(text: &str) -> String {
    let mut segment = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'-' | b'.' | b'_' | b'~' => segment.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => segment.push(char::from(byte)),
            _ => push_encoded(&mut segment, byte),
        }
    }
    segment
}

/// The decoded bytes of a text. A broken percent sign stays a percent sign.
pub(crate) fn decode(text: &str) -> Cow<'_, [u8]> {
    if !text.contains('%') {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut bytes = Vec::with_capacity(text.len());
    for piece in pieces(text) {
        match piece {
            Piece::Text(text) => bytes.extend_from_slice(text.as_bytes()),
            Piece::Byte(byte) => bytes.push(byte),
            Piece::Broken => bytes.push(b'%'),
        }
    }
    Cow::Owned(bytes)
}

/// The decoded bytes of a name or value in a query, where `+` is a space.
pub(crate) fn decode_query(text: &str) -> Cow<'_, [u8]> {
    if !text.contains('+') {
        return decode(text);
    }
    Cow::Owned(decode(&text.replace('+', " ")).into_owned())
}

fn escape(text: &str) -> Option<(u8, &str)> {
    let [high, low] = *text.as_bytes().first_chunk::<2>()?;
    Some((unhex(high)? << 4 | unhex(low)?, text.get(2..)?))
}

fn hex(nibble: u8) -> u8 {
    if nibble < 10 { b'0' + nibble } else { b'A' + (nibble - 10) }
}

fn unhex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decodes_what_is_encoded_and_nothing_else() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("plain", b"plain"),
            ("%41%62", b"Ab"),
            ("%c3%A9", b"\xc3\xa9"),
            ("%%41%", b"%A%"),
            ("%4", b"%4"),
            ("%zz%é", "%zz%é".as_bytes()),
            ("%2541", b"%41"),
            ("a+b", b"a+b"),
        ] {
            assert_eq!(decode(text), bytes, "{text}");
        }
    }

    #[test]
    fn a_plus_in_a_query_is_a_space() {
        for (text, bytes) in [("a+b", &b"a b"[..]), ("a%2Bb", b"a+b"), ("%2b+%20", b"+  ")] {
            assert_eq!(decode_query(text), bytes, "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_byte_survives(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            let mut text = String::new();
            for &byte in &bytes {
                push_encoded(&mut text, byte);
            }
            prop_assert_eq!(decode(&text).into_owned(), bytes);
        }

        #[test]
        fn any_text_can_be_decoded(text in any::<String>()) {
            decode(&text);
            decode_query(&text);
        }
    }
}
