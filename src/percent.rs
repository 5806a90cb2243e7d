//! Percent-encoding. The crate `percent-encoding` reads and writes it. This file has the functions that the crate
//! lacks.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// The byte that two hex digits write, and the text after them. `None` if there are no two hex digits.
pub(crate) fn byte_after_sign(text: &str) -> Option<(u8, &str)> {
    let (digits, rest) = text.split_at_checked(2)?;
    let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let byte = u8::from_str_radix(digits, 16).ok()?;
    is_hex.then_some((byte, rest))
}

/// The decoded bytes of a text. A broken percent sign stays a percent sign.
pub(crate) fn decode(text: &str) -> Cow<'_, [u8]> {
    percent_decode_str(text).into()
}

/// The decoded bytes of a name or value in a query, where `+` is a space.
pub(crate) fn decode_query(text: &str) -> Cow<'_, [u8]> {
    if !text.contains('+') {
        return decode(text);
    }
    Cow::Owned(decode(&text.replace('+', " ")).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_valid_escapes_are_decoded() {
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
                text.push_str(percent_encoding::percent_encode_byte(byte));
            }
            prop_assert_eq!(decode(&text).into_owned(), bytes);
        }
    }
}
