//! Reads a response's cost: a header's value, or numbers in its body. `permit` calls this file.
//!
//! A body is read as it passes by. No part of it is delayed, and a reader keeps at most a few kilobytes of it. `events`
//! reads a body, `json` the JSON in it, and `number` the digits.

mod events;
mod json;
mod number;

use std::sync::Arc;

use http::HeaderMap;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};

pub use self::events::Reader;
use self::json::Scanner;
use crate::request::is_coded;
use crate::settings::weights::WeightedPaths;

/// The number in a header. `None` if the header is missing, comes twice, or is no number from 0 on.
pub fn in_header(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    number::tokens(only(headers, name)?)
}

/// A reader for a body with these headers. `None` if the body is encoded or of another media type.
pub fn reader(headers: &HeaderMap, paths: &Arc<WeightedPaths>) -> Option<Reader> {
    if is_coded(headers) {
        return None;
    }
    let kind = only(headers, &CONTENT_TYPE)?;
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let scanner = || Scanner::new(Arc::clone(paths));
    match &*kind.to_ascii_lowercase() {
        b"text/event-stream" => Some(Reader::of_events(scanner())),
        b"application/json" | b"application/x-ndjson" => Some(Reader::of_documents(scanner())),
        kind => kind.ends_with(b"+json").then(|| Reader::of_documents(scanner())),
    }
}

/// A header's value. `None` if the header is missing or comes more than once.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h [u8]> {
    let mut values = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let value = values.next()?;
    values.next().is_none().then(|| value.trim_ascii())
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
    fn only_plain_json_and_events_are_read() {
        let path = Arc::new("n".parse().unwrap());
        let number = |lines: &[(&'static str, &'static str)], body: &[u8]| {
            let mut reader = reader(&headers(lines), &path)?;
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
