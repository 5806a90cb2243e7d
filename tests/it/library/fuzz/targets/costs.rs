//! What a request costs. The first line of the input has JSON paths, with bars between alternatives and tabs between
//! the parts of a sum. The second line is a content type. The rest is the body of a response. The body is also read as
//! the value of a header, of a request and of a response.

use std::sync::Arc;

use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue};
use tidegate::limit::rate::Cost;
use tidegate::settings::CostSpec;
use tidegate::settings::weights::WeightedPaths;
use tidegate::throttle::usage::{in_header, reader};
use tidegate::throttle::{cost, largest_cost};

use super::Choices;

pub(super) fn check(input: &[u8]) {
    let mut lines = input.splitn(3, |byte| *byte == b'\n');
    let (Some(sum), Some(kind), Some(body)) = (lines.next(), lines.next(), lines.next()) else {
        return;
    };
    said_in_header(body);
    let Ok(sum) = std::str::from_utf8(sum) else { return };
    let mut paths = WeightedPaths::default();
    // Each part of the sum has another weight.
    if sum.split('\t').zip(1..).any(|(text, weight)| paths.add(text, weight).is_err()) {
        return;
    }
    let Ok(kind) = HeaderValue::from_bytes(kind) else { return };
    let paths = Arc::new(paths);
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, kind.clone());
    let scan = |pieces: &[&[u8]]| {
        let mut reader = reader(&headers, &paths)?;
        pieces.iter().for_each(|piece| reader.read(piece));
        Some((reader.found(), reader.is_done()))
    };
    let Some(found) = scan(&[body]) else { return };
    let mut choices = Choices::of(input);
    for most in [1, 2, 3, 9, 70] {
        let pieces = choices.cut(body, most);
        assert_eq!(scan(&pieces), Some(found), "pieces of up to {most} bytes");
    }
    let kind = kind.as_bytes().to_ascii_lowercase();
    let documents = match kind.split(|byte| *byte == b';').next().unwrap_or_default() {
        b"text/event-stream" => events(body),
        b"application/x-ndjson" => {
            Some(body.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect())
        }
        _ => Some(vec![body.to_vec()]),
    };
    let Some(documents) = documents else { return };
    let documents: Vec<_> =
        documents.iter().filter(|document| !document.trim_ascii().is_empty()).collect();
    // What is no JSON, or is long, may be read in any way.
    let is_json = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).is_ok();
    if documents.iter().any(|document| document.len() > 4_000 || !is_json(document)) {
        return;
    }
    let last = |path: &str| {
        let keys: Vec<Box<str>> = path.trim().split('.').map(Into::into).collect();
        documents.iter().rev().find_map(|document| JsonText { rest: document }.document(&keys))
    };
    let parts = sum
        .split('\t')
        .zip(1_u64..)
        .filter_map(|(text, weight)| Some(text.split('|').find_map(last)?.saturating_mul(weight)));
    assert_eq!(found.0, parts.reduce(u64::saturating_add));
}

/// The number in a header, as responses say it and as requests do.
fn said_in_header(text: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(text) else { return };
    let name = HeaderName::from_static("x-cost");
    let mut headers = HeaderMap::from_iter([(name.clone(), value)]);
    assert_eq!(in_header(&headers, &name), tokens(text.trim_ascii()));
    let (default, max) = (Cost::new(3).unwrap(), Cost::new(70_000).unwrap());
    let spec = CostSpec::Header { name: Box::new(name.clone()), default, max: Some(max) };
    let expected = match tokens(text) {
        Some(number @ 1..=70_000) if !text.contains(&b'.') => Some(number),
        _ => None,
    };
    assert_eq!(cost(&spec, || largest_cost(None), &headers).ok().map(Cost::get), expected);
    headers.append(&name, HeaderValue::from_static("5"));
    assert!(
        cost(&spec, || largest_cost(None), &headers).is_err()
            && in_header(&headers, &name).is_none()
    );
}

/// Digits, or digits with a fraction, which is rounded up.
fn tokens(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let parts: Vec<&str> = text.split('.').collect();
    let is_number = |part: &&str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    if parts.len() > 2 || !parts.iter().all(is_number) {
        return None;
    }
    let rest = parts.get(1).is_some_and(|part| part.chars().any(|c| c != '0'));
    let digits = parts[0].trim_start_matches('0');
    let whole = match digits.len() {
        0 => 0,
        1..=30 => digits.parse::<u128>().unwrap(),
        _ => u128::MAX / 2,
    };
    Some(u64::try_from(whole + u128::from(rest)).unwrap_or(u64::MAX))
}

/// The data of each event. `None` where the stream is not UTF-8, or may have a byte order mark, of which the
/// reader skips each byte.
fn events(body: &[u8]) -> Option<Vec<Vec<u8>>> {
    let text = std::str::from_utf8(body).ok()?;
    if body.iter().any(|byte| b"\xEF\xBB\xBF".contains(byte)) {
        return None;
    }
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut events = vec![Vec::new()];
    for line in text.split('\n') {
        let event = events.last_mut().unwrap();
        match line.strip_prefix("data:") {
            Some(data) => event.extend([data.as_bytes(), b"\n"].concat()),
            None if line.is_empty() => events.push(Vec::new()),
            None => {}
        }
    }
    // What has no brace, as the `[DONE]` of many APIs, can say nothing, and the next event begins anew.
    events.retain(|event: &Vec<u8>| event.contains(&b'{'));
    Some(events)
}

/// A JSON document that is known to be sound. The slow and obvious reader of it.
struct JsonText<'t> {
    rest: &'t [u8],
}

impl<'t> JsonText<'t> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_ascii_start();
    }

    fn take(&mut self) -> u8 {
        let (first, rest) = self.rest.split_first().unwrap();
        self.rest = rest;
        *first
    }

    /// The text of a string with its quotes.
    fn string(&mut self) -> &'t [u8] {
        let whole = self.rest;
        self.take();
        loop {
            match self.take() {
                b'\\' => drop(self.take()),
                b'"' => return &whole[..whole.len() - self.rest.len()],
                _ => {}
            }
        }
    }

    /// Reads a whole document. The members of a list are documents too.
    fn document(&mut self, path: &[Box<str>]) -> Option<u64> {
        self.skip_space();
        if self.rest.first() != Some(&b'[') {
            return self.last(path);
        }
        self.take();
        let mut found = None;
        loop {
            self.skip_space();
            match self.rest.first()? {
                b']' => return found,
                b',' => drop(self.take()),
                b'{' => found = self.object(path).or(found),
                _ => drop(self.last(&[Box::from(""), Box::from("")])),
            }
        }
    }

    /// Reads the next value. Returns the last number at this path in it.
    fn last(&mut self, path: &[Box<str>]) -> Option<u64> {
        self.skip_space();
        match self.rest.first()? {
            b'"' => {
                self.string();
                None
            }
            b'{' => self.object(path),
            b'[' => {
                self.take();
                loop {
                    self.skip_space();
                    match self.rest.first()? {
                        b']' | b',' if self.take() == b']' => return None,
                        b',' => {}
                        _ => drop(self.last(&[Box::from(""), Box::from("")])),
                    }
                }
            }
            _ => {
                let is_end = |byte: &u8| b",]} \t\r\n".contains(byte);
                let end = self.rest.iter().position(is_end).unwrap_or(self.rest.len());
                let (word, behind) = self.rest.split_at(end);
                self.rest = behind;
                path.is_empty().then(|| tokens(word))?
            }
        }
    }

    fn object(&mut self, path: &[Box<str>]) -> Option<u64> {
        let mut found = None;
        self.take();
        loop {
            self.skip_space();
            match self.rest.first()? {
                b'}' | b',' if self.take() == b'}' => return found,
                b'"' => {
                    let key: String = serde_json::from_slice(self.string()).unwrap();
                    self.skip_space();
                    self.take();
                    match path.split_first() {
                        Some((first, rest)) if **first == *key => {
                            found = self.last(rest).or(found);
                        }
                        // No key is empty: nothing is found there.
                        _ => drop(self.last(&[Box::from(""), Box::from("")])),
                    }
                }
                _ => {}
            }
        }
    }
}
