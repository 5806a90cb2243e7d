//! Reading the parts of a key off a request.

use std::borrow::Cow;

use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{KeySource, View, credentials, ip_text};
use crate::limit::key::KeyBuilder;
use crate::request::name::are_alike;
use crate::request::percent::{decode, decode_query};

/// How often a request has a part.
pub(super) enum Found {
    Nowhere,
    /// Its value was appended.
    Once,
    /// More than once: nobody can tell which one the upstream reads.
    Repeated,
    /// Once, and nobody can tell what the upstream reads in it.
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
            Self::Header(name) => return only(header(request.headers, name), builder),
            Self::Cookie(name) => return only(cookies(request.headers, name), builder),
            Self::Query(name) => return only(query(request.query, name), builder),
            // Decoded, so that it reads as in the file and as the upstream knows it. Nothing is
            // lost: in the matching form each byte has one spelling, and a slash has none encoded.
            Self::Param(name) => return only(request.params.value(name).map(decode), builder),
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

/// The values under each name that the upstream may take for this one.
fn header<'r>(headers: &'r HeaderMap, name: &'r HeaderName) -> impl Iterator<Item = Cow<'r, [u8]>> {
    let alike = headers.iter().filter(move |(other, _)| are_alike(name, other));
    alike.map(|(_, value)| Cow::Borrowed(value.as_bytes()))
}

/// The cookies of this name in all lines (RFC 6265, 4.2). Some servers find one behind a comma or a space
/// too, where no value of another can go on; one that stands there counts as one more.
fn cookies<'r>(headers: &'r HeaderMap, name: &'r str) -> impl Iterator<Item = Cow<'r, [u8]>> {
    let lines = headers.get_all(COOKIE).into_iter().map(HeaderValue::as_bytes);
    let pairs = lines.flat_map(|line| line.split(|byte| *byte == b';'));
    pairs.flat_map(move |pair| {
        let pair = pair.trim_ascii();
        let own = named(pair, name);
        let words = pair.split(|byte| matches!(byte, b',' | b' ' | b'\t')).skip(1);
        own.into_iter().chain(words.filter_map(move |word| named(word, name)))
    })
}

/// The value of a cookie, if it has this name.
fn named<'r>(pair: &'r [u8], name: &str) -> Option<Cow<'r, [u8]>> {
    let equals = pair.iter().position(|byte| *byte == b'=')?;
    let found = pair.get(..equals)?.trim_ascii_end();
    (found == name.as_bytes()).then(|| cookie_value(pair.get(equals + 1..).unwrap_or_default()))
}

/// What servers make of a cookie's value: many decode percent signs, and some leave out quotes and the
/// backslashes within. The same session must not count twice.
fn cookie_value(value: &[u8]) -> Cow<'_, [u8]> {
    let value = value.trim_ascii();
    let inner = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
    let inner = inner.map_or(Cow::Borrowed(value), unescape);
    match std::str::from_utf8(&inner).map(decode) {
        Ok(Cow::Owned(decoded)) => Cow::Owned(decoded),
        Ok(Cow::Borrowed(_)) | Err(_) => inner,
    }
}

/// The inside of quotes without its backslashes: before three octal digits one stands for a byte, else
/// for what is behind it.
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

/// The query parameters of this name; one without `=` has the empty value. Some servers take a semicolon
/// for an ampersand, so what follows one is no part of a value.
fn query<'r>(query: Option<&'r str>, name: &str) -> impl Iterator<Item = Cow<'r, [u8]>> {
    query.into_iter().flat_map(|query| query.split(['&', ';'])).filter_map(move |pair| {
        let (found, value) = pair.split_once('=').unwrap_or((pair, ""));
        (*decode_query(found) == *name.as_bytes()).then(|| decode_query(value))
    })
}
