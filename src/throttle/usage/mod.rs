//! Reads a response's cost: a header's value, or numbers in its body. `permit` calls this file.
//!
//! A body is read as it passes by. No part of it is delayed, and a reader keeps at most a few kilobytes of it. `json`
//! and `events` read the two kinds of bodies, and `number` reads the digits.

mod events;
mod json;
mod number;

use std::sync::Arc;

use http::HeaderMap;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};

use self::events::Events;
use self::json::Scanner;
use crate::request::is_coded;
use crate::settings::weights::WeightedPaths;

/// The number in a header. `None` if the header is missing, comes twice, or is no number from 0 on.
pub fn in_header(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    number::tokens(only(headers, name)?)
}

/// Reads numbers out of a body that passes by.
#[derive(Debug)]
pub struct Reader(Body);

#[derive(Debug)]
enum Body {
    Documents(Scanner),
    Events(Box<Events>),
}

impl Reader {
    /// A reader for a body with these headers. `None` if the body is encoded or of another media type.
    pub fn of(headers: &HeaderMap, paths: &Arc<WeightedPaths>) -> Option<Self> {
        if is_coded(headers) {
            return None;
        }
        let kind = only(headers, &CONTENT_TYPE)?;
        let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let scanner = || Scanner::new(Arc::clone(paths));
        if kind.eq_ignore_ascii_case(b"text/event-stream") {
            Some(Self(Body::Events(Box::new(Events::new(scanner())))))
        } else if is_json(kind) {
            Some(Self(Body::Documents(scanner())))
        } else {
            None
        }
    }

    /// Reads the next piece of the body.
    pub fn read(&mut self, piece: &[u8]) {
        match &mut self.0 {
            Body::Documents(scanner) => scanner.read(piece),
            Body::Events(events) => events.read(piece),
        }
    }

    /// The sum of the last numbers so far. `None` if there are none.
    pub fn found(&self) -> Option<u64> {
        match &self.0 {
            Body::Documents(scanner) => scanner.found(),
            Body::Events(events) => events.found(),
        }
    }

    /// Whether the body has said that nothing more follows.
    pub fn is_done(&self) -> bool {
        match &self.0 {
            Body::Documents(_) => false,
            Body::Events(events) => events.is_done(),
        }
    }
}

/// A header's value. `None` if the header is missing or comes more than once.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h [u8]> {
    let mut values = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let value = values.next()?;
    values.next().is_none().then(|| value.trim_ascii())
}

/// Whether a content type is a JSON document, or one document on each line.
fn is_json(kind: &[u8]) -> bool {
    const SUFFIX: &[u8] = b"+json";
    let ends = kind.len().checked_sub(SUFFIX.len()).and_then(|at| kind.get(at..));
    kind.eq_ignore_ascii_case(b"application/json")
        || kind.eq_ignore_ascii_case(b"application/x-ndjson")
        || ends.is_some_and(|end| end.eq_ignore_ascii_case(SUFFIX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn a_header_says_one_number() {
        let name = HeaderName::from_static("x-used");
        for (lines, used) in [
            (&[("x-used", "57")][..], Some(57)),
            (&[("x-used", " 57 ")], Some(57)),
            (&[("x-used", "0")], Some(0)),
            (&[], None),
            (&[("x-other", "57")], None),
            (&[("x-used", "57"), ("x-used", "57")], None),
            (&[("x-used", "57 tokens")], None),
            (&[("x-used", "")], None),
        ] {
            assert_eq!(in_header(&headers(lines), &name), used, "{lines:?}");
        }
    }

    #[test]
    fn only_plain_json_and_events_are_read() {
        let path = Arc::new("n".parse().unwrap());
        let number = |lines: &[(&'static str, &'static str)], body: &[u8]| {
            let mut reader = Reader::of(&headers(lines), &path)?;
            reader.read(body);
            reader.found()
        };
        for kind in [
            "application/json",
            "application/json; charset=utf-8",
            "Application/JSON",
            "application/problem+json",
            "application/x-ndjson",
        ] {
            assert_eq!(number(&[("content-type", kind)], b"{\"n\":7}"), Some(7), "{kind}");
        }
        for kind in ["text/event-stream", "text/event-stream;charset=utf-8"] {
            assert_eq!(
                number(&[("content-type", kind)], b"data: {\"n\":7}\n\n"),
                Some(7),
                "{kind}"
            );
        }
        for kind in ["text/html", "application/jsonp", "json", "", "text/plain; x=application/json"]
        {
            assert_eq!(number(&[("content-type", kind)], b"{\"n\":7}"), None, "{kind}");
        }
        let json = ("content-type", "application/json");
        assert_eq!(number(&[json, json], b"{\"n\":7}"), None);
        assert_eq!(number(&[json, ("content-encoding", "gzip")], b"{\"n\":7}"), None);
        assert_eq!(number(&[json, ("content-encoding", "Identity")], b"{\"n\":7}"), Some(7));
    }
}
