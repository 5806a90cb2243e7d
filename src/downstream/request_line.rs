//! Percent-encodes bytes of an HTTP/1.1 target that other servers take and the `http` crate does not: browsers and
//! old clients send JSON in a query as it is.
//!
//! Framing cannot change. Only bytes between the first space and the first line feed of a message are encoded, and
//! no encoded byte is, or becomes, a space, a carriage return or a line feed. Where a message begins is known from
//! hyper: its buffer is empty when a connection begins, or is taken over between two requests.

use memchr::memchr;

use crate::percent::push_encoded;

/// Where the next byte stands that hyper gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestLine {
    /// In front of the line. Empty lines may come first.
    Begin,
    Method,
    /// After the space that ends the method.
    Target,
    /// In a target that does not begin with a slash.
    Absolute,
    Path,
    Query,
    /// After a line. Another message may have begun since.
    Elsewhere,
    /// Hyper gets nothing until it is made anew. Then the line begins.
    HeldBack,
}

impl RequestLine {
    /// Whether a line that begins here cannot be handed to hyper as it is, or may go on with the next bytes.
    pub(super) fn is_odd(came: &[u8]) -> bool {
        let came = came.trim_ascii_start();
        let Some(end) = memchr(b'\n', came) else { return true };
        let odd = |byte: u8| matches!(byte, b'"' | b'<' | b'>' | b'`' | 0x80..);
        // Each byte is looked at, since the compiler then looks at many at once.
        came.iter().take(end).fold(false, |found, byte| found | odd(*byte))
    }

    /// The bytes that hyper gets in place of those that came. `None` where they are the same.
    pub(super) fn encoded(&mut self, came: &[u8]) -> Option<Vec<u8>> {
        let (mut encoded, mut read) = (None, 0);
        for line in came.split_inclusive(|byte| *byte == b'\n') {
            if matches!(self, Self::Elsewhere | Self::HeldBack) {
                break;
            }
            // hyper takes UTF-8.
            let is_text = std::str::from_utf8(line).is_ok();
            for byte in line {
                *self = self.after(*byte);
                let takes = match (*self, *byte) {
                    (Self::Path, b'<' | b'>' | b'`') | (Self::Query, b'"' | b'<' | b'>') => false,
                    (Self::Path | Self::Query, 0x80..) => is_text,
                    _ => true,
                };
                if !takes {
                    let encoded = encoded.get_or_insert_with(|| came[..read].to_vec());
                    let mut text = String::new();
                    push_encoded(&mut text, *byte);
                    encoded.extend_from_slice(text.as_bytes());
                } else if let Some(encoded) = &mut encoded {
                    encoded.push(*byte);
                }
                read += 1;
            }
        }
        if let Some(encoded) = &mut encoded {
            encoded.extend_from_slice(&came[read..]);
        }
        encoded
    }

    fn after(self, byte: u8) -> Self {
        match (self, byte) {
            (Self::Begin, b'\r' | b'\n') => Self::Begin,
            (_, b'\n') => Self::Elsewhere,
            (Self::Begin | Self::Method, b' ') => Self::Target,
            (Self::Begin, _) => Self::Method,
            (Self::Target, b'/') => Self::Path,
            (Self::Target | Self::Absolute | Self::Path, b'?') => Self::Query,
            (Self::Target, _) => Self::Absolute,
            (same, _) => same,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What hyper gets of these pieces.
    fn handed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
        let mut line = RequestLine::Begin;
        pieces
            .into_iter()
            .flat_map(|piece| line.encoded(piece).unwrap_or_else(|| piece.to_vec()))
            .collect()
    }

    #[test]
    fn what_hyper_does_not_take_is_encoded() {
        const JSON: &str = "{\"a\":1}";
        const HEAD: &str = "\r\nx-a: \"<`>?\r\n\r\n/?\"";
        for (came, expected) in [
            (
                "GET /?q={\"a\":[1,\"<b>\"]} HTTP/1.1",
                "GET /?q={%22a%22:[1,%22%3Cb%3E%22]} HTTP/1.1",
            ),
            ("\r\n\nGET /a\"<`>?\"`é HTTP/1.1", "\r\n\nGET /a\"%3C%60%3E?%22`é HTTP/1.1"),
            ("GET http://a/?\" HTTP/1.1", "GET http://a/?%22 HTTP/1.1"),
            // Neither a method nor a host is made valid.
            ("G\"T /a HTTP/1.1", "G\"T /a HTTP/1.1"),
            ("GET http://a\"<b>/ HTTP/1.1", "GET http://a\"<b>/ HTTP/1.1"),
            ("CONNECT a\"b:1 HTTP/1.1", "CONNECT a\"b:1 HTTP/1.1"),
            (JSON, JSON),
        ] {
            let (came, expected) = (came.to_owned() + HEAD, expected.to_owned() + HEAD);
            assert_eq!(handed([came.as_bytes()]), expected.as_bytes(), "{came}");
        }
        let text = b"GET /\xFF?\xC3\xA9\xFF \xFFHTTP/1.1\n\xFF";
        assert_eq!(handed([&text[..]]), b"GET /%FF?%C3%A9%FF %FFHTTP/1.1\n\xFF");
    }

    #[test]
    fn a_line_that_hyper_takes_is_not_odd() {
        for (came, odd) in [
            ("GET /a?b=c HTTP/1.1\r\nx-a: \"\r\n", false),
            ("\r\nGET / HTTP/1.1\n", false),
            ("GET /?\" HTTP/1.1\r\n", true),
            ("\r\n\r\nGET /?\" HTTP/1.1\r\n", true),
            ("GET /?", true),
            ("\r\n", true),
            ("", true),
        ] {
            assert_eq!(RequestLine::is_odd(came.as_bytes()), odd, "{came:?}");
        }
    }

    proptest! {
        /// A reader that splits messages at line feeds and a line at its spaces reads the same of both.
        #[test]
        fn lines_and_words_stay_however_a_head_is_cut(
            text in "[\r\n]{0,2}([A-Z\" <`>?/:éa\r]{0,20}\n?){0,4}",
            size in 1_usize..9,
        ) {
            let whole = handed([text.as_bytes()]);
            let again = String::from_utf8(whole).unwrap();
            let decoded = |text: &str| {
                text.replace("%22", "\"").replace("%3C", "<").replace("%3E", ">").replace("%60", "`")
            };
            prop_assert_eq!(decoded(&again), text.as_str());
            let cut = handed(text.as_bytes().chunks(size));
            let cut = String::from_utf8(cut).unwrap().replace("%C3%A9", "é");
            prop_assert_eq!(cut, again.as_str());
            let first = text.trim_start_matches(['\r', '\n']);
            let end = first.find('\n').map_or(text.len(), |at| text.len() - first.len() + at);
            prop_assert!(again.ends_with(&text[end..]), "nothing after the line changes");
        }
    }
}
