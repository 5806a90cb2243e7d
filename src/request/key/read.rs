//! Reads the parts of a key from a request. A part that servers may read differently is ambiguous, and the
//! request is refused: otherwise a client could have many keys for one value.

use std::borrow::Cow;

use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::{KeySource, View, credentials, ip_text};
use crate::limit::key::KeyBuilder;
use crate::percent::{decode, decode_query};
use crate::request::name::has_ambiguous_alias;

/// How often a request has a part.
pub(super) enum Found {
    Nowhere,
    /// The part comes once, and its value was appended.
    Once,
    /// The part comes more than once. The upstream may read any of the values.
    Repeated,
    /// The upstream may or may not see the part, or may read another value in it.
    Ambiguous,
}

impl KeySource {
    /// Appends this part of the request.
    pub(super) fn push(
        &self,
        request: &View<'_>,
        ipv6_prefix: u8,
        builder: &mut KeyBuilder,
    ) -> Found {
        match self {
            Self::Ip => builder.push_plain(&ip_text(request.client, ipv6_prefix)),
            Self::Path => builder.push(request.path.matching().as_bytes()),
            Self::Method => builder.push(request.method.as_str().as_bytes()),
            Self::Host => builder.push(request.host.as_bytes()),
            Self::Route => builder.push(request.route.as_bytes()),
            Self::Header(name) if *name == AUTHORIZATION => {
                return only_credentials(request.headers, builder);
            }
            Self::Header(name) if has_ambiguous_alias(request.headers, name) => {
                return Found::Ambiguous;
            }
            Self::Header(name) => return only(header(request.headers, name), builder),
            Self::Cookie(name) => {
                return unless_ambiguous(cookies(request.headers, name), builder);
            }
            Self::Query(name) => return unless_ambiguous(query(request.query, name), builder),
            // The decoded value is the value in the file and at the upstream. Decoding loses nothing: in
            // the matching form each byte has one spelling, and a slash is never encoded.
            Self::Param(name) => return only(request.params.value(name).map(decode), builder),
            Self::Cert => {
                return only(request.cert.map(|cert| Cow::Borrowed(cert.as_bytes())), builder);
            }
            Self::FirstOf(sources) => {
                for (place, source) in sources.iter().enumerate() {
                    builder.alternative(place);
                    match source.push(request, ipv6_prefix, builder) {
                        Found::Nowhere => {}
                        found => return found,
                    }
                }
                builder.alternative(0);
                return Found::Nowhere;
            }
        }
        Found::Once
    }
}

fn only<'v>(values: impl IntoIterator<Item = Cow<'v, [u8]>>, builder: &mut KeyBuilder) -> Found {
    let mut values = values.into_iter();
    match (values.next(), values.next()) {
        (None, _) => Found::Nowhere,
        (Some(value), None) => {
            builder.push(&value);
            Found::Once
        }
        (Some(_), Some(_)) => Found::Repeated,
    }
}

/// The same as `only`, for values that may be `None`. `None` is a value that only some servers see.
fn unless_ambiguous<'v>(
    values: impl Iterator<Item = Option<Cow<'v, [u8]>>>,
    builder: &mut KeyBuilder,
) -> Found {
    match values.collect::<Option<SmallVec<[_; 2]>>>() {
        Some(values) => only(values, builder),
        None => Found::Ambiguous,
    }
}

fn only_credentials(headers: &HeaderMap, builder: &mut KeyBuilder) -> Found {
    let mut lines = headers.get_all(AUTHORIZATION).iter();
    match (lines.next().map(|line| credentials::normal_form(line.as_bytes())), lines.next()) {
        (None, _) => Found::Nowhere,
        (Some(_), Some(_)) => Found::Repeated,
        (Some(None), None) => Found::Ambiguous,
        (Some(Some(value)), None) => {
            builder.push(&value);
            Found::Once
        }
    }
}

fn header<'r>(headers: &'r HeaderMap, name: &HeaderName) -> impl Iterator<Item = Cow<'r, [u8]>> {
    headers.get_all(name).into_iter().map(|value| Cow::Borrowed(value.as_bytes()))
}

/// The cookies of this name in all lines (RFC 6265, 4.2). For some servers a cookie's value ends at a space
/// or a comma, and another cookie may follow there. Such a cookie of this name is `None`.
fn cookies<'r>(
    headers: &'r HeaderMap,
    name: &'r str,
) -> impl Iterator<Item = Option<Cow<'r, [u8]>>> {
    let lines = headers.get_all(COOKIE).into_iter().map(HeaderValue::as_bytes);
    let pairs = lines.flat_map(|line| line.split(|byte| *byte == b';'));
    pairs.filter_map(move |pair| {
        let pair = pair.trim_ascii();
        let own = named(pair, name).map(cookie_value);
        let mut words = pair.split(|byte| matches!(byte, b',' | b' ' | b'\t')).skip(1);
        words.any(|word| named(word, name).is_some()).then_some(None).or(own)
    })
}

/// The value of a cookie, if the cookie has this name.
fn named<'r>(pair: &'r [u8], name: &str) -> Option<&'r [u8]> {
    let equals = pair.iter().position(|byte| *byte == b'=')?;
    let found = pair.get(..equals)?.trim_ascii_end();
    (found == name.as_bytes()).then(|| pair.get(equals + 1..).unwrap_or_default().trim_ascii())
}

/// The normal form of a cookie's value; `None` where servers read it differently. Many servers decode
/// percent signs. Some remove quotes, and backslashes inside them. Without a normal form one session would
/// have several keys.
fn cookie_value(value: &[u8]) -> Option<Cow<'_, [u8]>> {
    let inner = match value.strip_prefix(b"\"") {
        Some(begun) => unescape(begun.strip_suffix(b"\"")?),
        None if value.iter().any(|byte| matches!(byte, b',' | b' ' | b'\t')) => return None,
        None => Cow::Borrowed(value),
    };
    Some(match std::str::from_utf8(&inner).map(decode) {
        Ok(Cow::Owned(decoded)) => Cow::Owned(decoded),
        Ok(Cow::Borrowed(_)) | Err(_) => inner,
    })
}

/// Quoted text without its backslashes. A backslash with three octal digits is a byte. Any other backslash
/// stands for the character behind it.
fn unescape(inner: &[u8]) -> Cow<'_, [u8]> {
    if !inner.contains(&b'\\') {
        return Cow::Borrowed(inner);
    }
    let (mut text, mut rest) = (Vec::with_capacity(inner.len()), inner);
    while let [byte, behind @ ..] = rest {
        rest = behind;
        match (byte, rest) {
            (b'\\', [high @ b'0'..=b'3', middle @ b'0'..=b'7', low @ b'0'..=b'7', behind @ ..]) => {
                text.push((high - b'0') << 6 | (middle - b'0') << 3 | (low - b'0'));
                rest = behind;
            }
            (b'\\', [escaped, behind @ ..]) => {
                text.push(*escaped);
                rest = behind;
            }
            _ => text.push(*byte),
        }
    }
    Cow::Owned(text)
}

/// The query parameters of this name. A parameter without `=` has the empty value. Some servers read a
/// semicolon as an ampersand: a parameter of this name beside a semicolon is `None`.
fn query<'r>(query: Option<&'r str>, name: &'r str) -> impl Iterator<Item = Option<Cow<'r, [u8]>>> {
    let is_named = |found: &str| *decode_query(found) == *name.as_bytes();
    query.into_iter().flat_map(|query| query.split('&')).filter_map(move |pair| {
        if pair.contains(';') {
            let mut parts = pair.split(';').map(|part| part.split('=').next().unwrap_or(part));
            return parts.any(is_named).then_some(None);
        }
        let (found, value) = pair.split_once('=').unwrap_or((pair, ""));
        is_named(found).then(|| Some(decode_query(value)))
    })
}
