//! Reading the parts of a key off a request.

use std::borrow::Cow;

use http::header::COOKIE;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{KeySource, View, ip_text};
use crate::limit::key::KeyBuilder;
use crate::request::percent::{decode, decode_query};

/// How often a request has a part.
pub(super) enum Found {
    Nowhere,
    /// Its value was appended.
    Once,
    /// More than once: nobody can tell which one the upstream reads.
    Repeated,
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

fn header<'r>(
    headers: &'r HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = Cow<'r, [u8]>> + use<'r> {
    headers.get_all(name).into_iter().map(|value| Cow::Borrowed(value.as_bytes()))
}

/// The cookies of this name in all lines (RFC 6265, 4.2). Quotes around a value are left out: some
/// servers do so too, and the same session must not count twice.
fn cookies<'r>(headers: &'r HeaderMap, name: &str) -> impl Iterator<Item = Cow<'r, [u8]>> {
    let lines = headers.get_all(COOKIE).into_iter().map(HeaderValue::as_bytes);
    let pairs = lines.flat_map(|line| line.split(|byte| *byte == b';'));
    pairs.filter_map(move |pair| {
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        let found = pair.get(..equals)?.trim_ascii();
        let value = pair.get(equals + 1..)?.trim_ascii();
        let inner = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
        (found == name.as_bytes()).then(|| Cow::Borrowed(inner.unwrap_or(value)))
    })
}

/// The query parameters of this name; one without `=` has the empty value.
fn query<'r>(query: Option<&'r str>, name: &str) -> impl Iterator<Item = Cow<'r, [u8]>> {
    query.into_iter().flat_map(|query| query.split('&')).filter_map(move |pair| {
        let (found, value) = pair.split_once('=').unwrap_or((pair, ""));
        (*decode_query(found) == *name.as_bytes()).then(|| decode_query(value))
    })
}
