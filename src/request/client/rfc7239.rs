//! The `forwarded` header (RFC 7239), read from its right end. `mod.rs` says why.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::FORWARDED;

use super::address;

/// The addresses of the header's elements, `None` for each element without a readable address.
pub(super) fn nearest_first(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    headers.get_all(FORWARDED).iter().rev().flat_map(|line| {
        let mut rest = Some(line.as_bytes());
        std::iter::from_fn(move || {
            let (before, element) = split_last(rest?);
            rest = before;
            Some(node(element))
        })
    })
}

/// Splits at the last comma outside of a quoted string.
///
/// The search goes from the right, where the proxy's own quotes are balanced. From the left, an unclosed
/// quote of a stranger would swallow the proxy's text after it.
fn split_last(line: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let mut quoted = false;
    let mut rest = line;
    while let Some((&byte, before)) = rest.split_last() {
        match byte {
            b'"' if !quoted || !is_escaped(before) => quoted = !quoted,
            b',' if !quoted => return (Some(before), line.get(rest.len()..).unwrap_or_default()),
            _ => {}
        }
        rest = before;
    }
    (None, line)
}

/// Whether `before` ends with backslashes that escape the next byte.
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// The address in an element's `for`; `None` if `for` comes twice, or if a pair cannot be read.
fn node(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    let mut rest = element.trim_ascii_start();
    while let [first, after @ ..] = rest {
        // A pair may be missing although its semicolon is there.
        if *first == b';' {
            rest = after.trim_ascii_start();
            continue;
        }
        let (name, value) = rest.split_at(rest.iter().position(|byte| *byte == b'=')?);
        let name = name.trim_ascii();
        let (value, after) = match value.get(1..)? {
            [b'"', string @ ..] => quoted(string)?,
            value => {
                let end = value.iter().position(|byte| *byte == b';').unwrap_or(value.len());
                let (value, after) = value.split_at(end);
                (value.trim_ascii_end().to_vec(), after)
            }
        };
        rest = after.trim_ascii_start();
        if !is_token(name) || !matches!(rest, [] | [b';', ..]) {
            return None;
        }
        if name.eq_ignore_ascii_case(b"for") && found.replace(value).is_some() {
            return None;
        }
    }
    let value = found?;
    address(&value).or_else(|| address(without_hidden_port(&value)?))
}

/// Whether this may be a name (RFC 9110, 5.6.2). `x;for` is no name: a second `for` would be hidden in it.
fn is_token(name: &[u8]) -> bool {
    let is_tchar = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    name.iter().all(is_tchar)
}

/// The value of a quoted string without its first quote, and the text after its last quote.
fn quoted(string: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut value = Vec::new();
    let mut rest = string.iter();
    loop {
        match *rest.next()? {
            b'"' => return Some((value, rest.as_slice())),
            b'\\' => value.push(*rest.next()?),
            byte => value.push(byte),
        }
    }
}

/// `203.0.113.7` of `203.0.113.7:_port`.
fn without_hidden_port(value: &[u8]) -> Option<&[u8]> {
    let colon = value.iter().rposition(|byte| *byte == b':')?;
    value.get(colon + 1).filter(|byte| **byte == b'_')?;
    value.get(..colon)
}
