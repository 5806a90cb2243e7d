//! Undoes the escapes of text logs.
//!
//! Nginx writes `"`, `\` and bytes outside of printable ASCII as `\xHH`. Apache writes `\"`, `\\`, C's letters
//! such as `\n`, and `\xhh`.

use std::borrow::Cow;

/// The text without escapes. Bytes that are no UTF-8 become U+FFFD.
pub(super) fn undo(text: &str) -> Cow<'_, str> {
    if memchr::memchr(b'\\', text.as_bytes()).is_none() {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some(at) = memchr::memchr(b'\\', rest) {
        let (clean, escape) = rest.split_at(at);
        bytes.extend_from_slice(clean);
        let (byte, length) = meaning(escape);
        bytes.push(byte);
        rest = escape.get(length..).unwrap_or_default();
    }
    bytes.extend_from_slice(rest);
    Cow::Owned(match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    })
}

/// The byte that an escape means, and the escape's length. A backslash that begins no escape means itself.
fn meaning(escape: &[u8]) -> (u8, usize) {
    let byte = match escape.get(1) {
        Some(b'x') => {
            let digit = |at: usize| char::from(*escape.get(at)?).to_digit(16);
            let byte =
                digit(2).zip(digit(3)).and_then(|(high, low)| u8::try_from(high << 4 | low).ok());
            return byte.map_or((b'\\', 1), |byte| (byte, 4));
        }
        Some(b'n') => b'\n',
        Some(b't') => b'\t',
        Some(b'r') => b'\r',
        Some(b'b') => 0x08,
        Some(b'v') => 0x0b,
        Some(b'f') => 0x0c,
        Some(byte @ (b'"' | b'\\')) => *byte,
        _ => return (b'\\', 1),
    };
    (byte, 2)
}

/// Whether the text ends in the middle of an escape. Then a quote after it does not end a field.
pub(super) fn is_open(before: &[u8]) -> bool {
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undoes_both_servers_escapes() {
        for (text, plain) in [
            ("plain", "plain"),
            (r"a \x22b\x22 \x5C", "a \"b\" \\"),
            (r#"a \"b\" \\"#, "a \"b\" \\"),
            (r"\xC3\xa9\t\n", "é\t\n"),
            (r"\xFF", "\u{fffd}"),
            (r"\q \x2 \xzz \", r"\q \x2 \xzz \"),
            (r"\x\x41", r"\xA"),
        ] {
            assert_eq!(undo(text), plain, "{text}");
        }
    }
}
