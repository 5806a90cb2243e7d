//! Percent-encodes bytes of an HTTP/1.1 target that other servers accept and the `http` crate refuses. Browsers and old
//! clients send JSON in a query without encoding. A target with `#`, at which the crate would cut, is made one that the
//! crate refuses.
//!
//! Framing cannot change. Only bytes between the first space and the first line feed of a message are encoded, and no
//! encoded byte is, or becomes, a space, a carriage return or a line feed. A message begins where a connection begins,
//! and where hyper is between two requests, since hyper has then used up all its bytes.

use memchr::memchr;

use crate::request::target;

/// The first bytes of every HTTP/2 connection (RFC 9113, 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Whether these bytes begin with a whole line that hyper takes as it is.
pub(super) fn is_plain(came: &[u8]) -> bool {
    if is_part_of_preface(came) {
        return false;
    }
    let came = came.trim_ascii_start();
    let Some(end) = memchr(b'\n', came) else { return false };
    // All bytes are checked: this is faster than to stop at the first odd byte.
    let has_odd = came[..end].iter().fold(false, |found, byte| found | ODD[usize::from(*byte)]);
    begins_with_letter(came) && !has_odd
}

/// Whether hyper may refuse a target with this byte, or cut it there.
const ODD: [bool; 256] = {
    let mut odd = [false; 256];
    let mut byte = 0;
    while byte < odd.len() {
        // `"`, `<`, `>`, `` ` `` and `#`.
        odd[byte] = matches!(byte, 0x22 | 0x3C | 0x3E | 0x60 | 0x23 | 0x80..);
        byte += 1;
    }
    odd
};

/// Whether these bytes may be a line whose rest has not come, or are a part of the preface. hyper would take a part of
/// the preface for a malformed HTTP/1.1 request.
pub(super) fn is_unfinished(came: &[u8]) -> bool {
    let line = came.trim_ascii_start();
    line.is_empty()
        || begins_with_letter(line) && memchr(b'\n', line).is_none()
        || is_part_of_preface(came)
}

fn is_part_of_preface(came: &[u8]) -> bool {
    came.len() < PREFACE.len() && PREFACE.starts_with(came)
}

/// What hyper gets in place of these bytes, which begin with a line.
pub(super) fn encoded(came: &[u8]) -> Vec<u8> {
    let begin = came.len() - came.trim_ascii_start().len();
    let end = memchr(b'\n', &came[begin..]).map_or(came.len(), |length| begin + length);
    let line = &came[begin..end];
    let start = memchr(b' ', line).map_or(end, |length| begin + length);
    [&came[..start], &target::encoded(&came[start..end]), &came[end..]].concat()
}

/// A method begins with a letter, and a TLS handshake does not.
fn begins_with_letter(came: &[u8]) -> bool {
    came.first().is_some_and(u8::is_ascii_alphabetic)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn characters_that_hyper_refuses_are_encoded() {
        const JSON: &str = "{\"a\":1}";
        const HEAD: &str = "\r\nx-a: \"<`>?\r\n\r\n/?\"";
        for (came, expected) in [
            (
                "GET /?q={\"a\":[1,\"<b>\"]} HTTP/1.1",
                "GET /?q={%22a%22:[1,%22%3Cb%3E%22]} HTTP/1.1",
            ),
            ("\r\n\nGET /a\"<`>?\"`é HTTP/1.1", "\r\n\nGET /a\"%3C%60%3E?%22`é HTTP/1.1"),
            ("GET http://a/?\" HTTP/1.1", "GET http://a/?%22 HTTP/1.1"),
            // Neither a method nor a host is made valid: hyper takes no percent sign in a host.
            ("G\"T /a HTTP/1.1", "G\"T /a HTTP/1.1"),
            ("GET http://a\"<b>/ HTTP/1.1", "GET http://a\"%3Cb%3E/ HTTP/1.1"),
            ("CONNECT a\"b:1 HTTP/1.1", "CONNECT a\"b:1 HTTP/1.1"),
            (JSON, JSON),
        ] {
            let (came, expected) = (came.to_owned() + HEAD, expected.to_owned() + HEAD);
            assert_eq!(encoded(came.as_bytes()), expected.as_bytes(), "{came}");
        }
        let text = b"GET /\xFF?\xC3\xA9\xFF \xFFHTTP/1.1\n\xFF";
        assert_eq!(encoded(text), b"GET /%FF?%C3%A9%FF %FFHTTP/1.1\n\xFF");
    }

    #[test]
    fn a_line_that_hyper_takes_is_plain_and_one_without_its_end_is_unfinished() {
        for (came, plain, unfinished) in [
            ("GET /a?b=c HTTP/1.1\r\nx-a: \"\r\n", true, false),
            ("\r\nGET / HTTP/1.1\n", true, false),
            ("GET /?\" HTTP/1.1\r\n", false, false),
            ("\r\n\r\nGET /?\" HTTP/1.1\r\n", false, false),
            ("GET /?", false, true),
            ("\r\n", false, true),
            ("", false, true),
            ("\u{16}\u{3}\u{1}", false, false),
            ("\u{16}\n", false, false),
            ("PRI * HTTP/2.0\r\n\r\nSM", false, true),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", true, false),
        ] {
            let came = came.as_bytes();
            assert_eq!((is_plain(came), is_unfinished(came)), (plain, unfinished), "{came:?}");
        }
    }

    proptest! {
        /// A simple reader splits messages at line feeds, and a line at its spaces. It must read both texts in the same
        /// way.
        #[test]
        fn lines_and_words_stay(text in "[\r\n]{0,2}([A-Z\" <`>?/:éa\r]{0,20}\n?){0,4}") {
            let again = String::from_utf8(encoded(text.as_bytes())).unwrap();
            let decoded =
                again.replace("%22", "\"").replace("%3C", "<").replace("%3E", ">").replace("%60", "`");
            prop_assert_eq!(decoded, text.as_str());
            let first = text.trim_start_matches(['\r', '\n', ' ']);
            let end = first.find('\n').map_or(text.len(), |at| text.len() - first.len() + at);
            prop_assert!(again.ends_with(&text[end..]), "nothing after the line changes");
        }
    }
}
