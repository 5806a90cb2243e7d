//! The parts of gRPC over HTTP/2 that tidegate uses: the status in trailers, and the client's time-out
//! (`PROTOCOL-HTTP2.md` of grpc/grpc). `rejection` and `answer` use them for refusals, `body` for the
//! trailers of an answer that breaks off.

use std::fmt::Display;
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::reading::GRPC_TIMEOUT;

pub(crate) const STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(crate) const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The gRPC statuses that tidegate sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

/// The trailers after the messages of a call.
pub(crate) fn trailers(status: Status, message: &str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert(STATUS, HeaderValue::from(status as u16));
    if let Ok(message) = HeaderValue::from_str(&encoded(message).to_string()) {
        trailers.insert(MESSAGE, message);
    }
    trailers
}

/// The trailers after the message of a call that has ended well.
pub(crate) fn ok() -> HeaderMap {
    HeaderMap::from_iter([(STATUS, HeaderValue::from_static("0"))])
}

/// The status of a call whose answer has no message. An answer with messages has its status in the trailers.
pub(crate) fn status(head: &HeaderMap) -> Option<u16> {
    head.get(STATUS)?.to_str().ok()?.parse().ok()
}

/// The message with `%` and everything but printable ASCII percent-encoded.
fn encoded(message: &str) -> impl Display {
    const ENCODED: &AsciiSet = &CONTROLS.add(b'%');
    utf8_percent_encode(message, ENCODED)
}

/// How long the client waits for the end of its call; `None` if `grpc-timeout` is absent or malformed.
pub(crate) fn time_limit(headers: &HeaderMap) -> Option<Duration> {
    let (unit, digits) = headers.get(GRPC_TIMEOUT)?.as_bytes().split_last()?;
    let fits = (1..=8).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    let number: u64 = std::str::from_utf8(digits).ok().filter(|_| fits)?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_says_how_long_it_waits() {
        let second = Some(Duration::from_secs(1));
        for (value, time_limit) in [
            ("1S", second),
            ("1000m", second),
            ("1000000u", second),
            ("99999999n", Some(Duration::from_nanos(99_999_999))),
            ("2M", Some(Duration::from_secs(120))),
            ("1H", Some(Duration::from_secs(3600))),
            ("0S", Some(Duration::ZERO)),
            ("", None),
            ("S", None),
            ("1", None),
            ("1s", None),
            ("-1S", None),
            ("+1S", None),
            ("123456789S", None),
            ("1.5S", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(GRPC_TIMEOUT, HeaderValue::from_static(value));
            assert_eq!(super::time_limit(&headers), time_limit, "{value:?}");
        }
        assert_eq!(super::time_limit(&HeaderMap::new()), None);
    }

    #[test]
    fn a_message_is_plain_ascii() {
        assert_eq!(encoded("50% of \"é\"\n").to_string(), "50%25 of \"%C3%A9\"%0A");
    }
}
