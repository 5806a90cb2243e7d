//! Reads the parts of a key from a request. A part that servers may read differently is ambiguous, and the
//! request is refused: otherwise a client could have many keys for one value.

use std::borrow::Cow;

use http::header::COOKIE;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::token::{PartFault, TokenReading};
use super::{KeySource, View, ip_text};
use crate::limit::key::KeyBuilder;
use crate::percent::{decode, decode_query};
use crate::request::credentials;
use crate::request::method::counted;
use crate::request::name::{has_ambiguous_alias, may_be};
use crate::request::network::ClientPrefixes;
use crate::request::value::{OF_MCP, normal};
use crate::text::trim;

/// The only value of a header, cookie or parameter. `None` if there is none.
pub(crate) type Sole<'v> = Result<Option<Cow<'v, [u8]>>, PartFault>;

impl KeySource {
    /// Whether the request has this part. A part that cannot be read is there.
    pub(crate) fn is_in(&self, request: &View<'_>) -> bool {
        let pushed = self.push(request, ClientPrefixes::default(), 0, &mut KeyBuilder::default());
        !matches!(pushed, Ok(false))
    }

    /// Appends this part of the request, and returns whether the request has it. It is the alternative at `index`, from
    /// 0.
    pub(super) fn push(
        &self,
        request: &View<'_>,
        prefixes: ClientPrefixes,
        index: usize,
        builder: &mut KeyBuilder,
    ) -> Result<bool, PartFault> {
        builder.alternative(index);
        match self {
            Self::Ip => builder.push_plain(&ip_text(request.client, prefixes)),
            Self::Path => builder.push(request.path.matching().as_bytes()),
            Self::Method => builder.push(counted(request.method, request.methods).as_bytes()),
            Self::Host => builder.push(request.host),
            Self::Route => builder.push(request.route.as_bytes()),
            Self::Header(name) if has_ambiguous_alias(request.headers, name) => {
                return Err(PartFault::Ambiguous);
            }
            Self::Header(name) => {
                let values = request.headers.get_all(name).iter();
                let read = only(values.map(|value| normal(name, value.as_bytes())), builder);
                return read.map_err(|fault| match fault {
                    PartFault::Ambiguous if OF_MCP.contains(name) => PartFault::Undecodable,
                    fault => fault,
                });
            }
            Self::Cookie(name) => return only(cookies(request.headers, name), builder),
            Self::Query(name) => return only(query(request.query, name), builder),
            // The decoded value is the value in the file and at the upstream. Decoding loses nothing: in
            // the matching form each byte has one spelling, and a slash is never encoded.
            Self::Param(name) => {
                return only(request.params.value(name).map(|value| Some(decode(value))), builder);
            }
            Self::Cert => {
                let cert = request.cert.map(|cert| Some(Cow::Borrowed(cert.as_bytes())));
                return only(cert, builder);
            }
            Self::Body(name) => {
                let value = request.body.map_or(Ok(None), |body| body.value(name))?;
                return only(value.map(Some), builder);
            }
            Self::Jwt(claim) => match &**request.token.0 {
                TokenReading::Verified(claims) => {
                    let Some(value) = claims.counted(claim) else { return Ok(false) };
                    builder.push(value.as_bytes());
                }
                TokenReading::Absent | TokenReading::Ignored(_) => return Ok(false),
                TokenReading::Refused(fault) => return Err(*fault),
            },
            Self::FirstOf(sources) => {
                let mut is_unverified = false;
                for (index, source) in sources.iter().enumerate() {
                    // The API may know the client by this token. Then it does not look at another secret, and a client
                    // could invent one for each request.
                    if is_unverified && source.is_secret() {
                        continue;
                    }
                    if source.push(request, prefixes, index, builder)? {
                        return Ok(true);
                    }
                    is_unverified |= matches!(source, Self::Jwt(_)) && request.token.is_ignored();
                }
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Appends the only value, without blanks at its edges. Returns whether there is one.
fn only<'v>(
    values: impl IntoIterator<Item = Option<Cow<'v, [u8]>>>,
    builder: &mut KeyBuilder,
) -> Result<bool, PartFault> {
    let value = sole(values)?;
    if let Some(value) = &value {
        builder.push(trim(value));
    }
    Ok(value.is_some())
}

/// The only value. A `None` in `values` stands for a value that servers read differently, or that only some servers
/// see.
pub(super) fn sole<'v>(values: impl IntoIterator<Item = Option<Cow<'v, [u8]>>>) -> Sole<'v> {
    let mut values = values.into_iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(None), _) | (_, Some(None)) => Err(PartFault::Ambiguous),
        (Some(Some(_)), Some(Some(_))) => Err(PartFault::Repeated),
        (Some(value), None) => Ok(value),
    }
}

/// The cookies of this name in all lines (RFC 6265, 4.2). Some servers end a cookie's value at a space or a comma, and
/// read another cookie after it. A cookie of this name at such a place is `None`.
fn cookies<'r>(
    headers: &'r HeaderMap,
    name: &'r str,
) -> impl Iterator<Item = Option<Cow<'r, [u8]>>> {
    let lines = headers.get_all(COOKIE).into_iter().map(HeaderValue::as_bytes);
    let pairs = lines.flat_map(|line| line.split(|byte| *byte == b';'));
    pairs.filter_map(move |pair| {
        let pair = trim(pair);
        let own = named(pair, name).map(|value| cookie_value(value?));
        let mut words = pair.split(|byte| matches!(byte, b',' | b' ' | b'\t')).skip(1);
        words.any(|word| named(word, name).is_some()).then_some(None).or(own)
    })
}

/// The value of a cookie of this name. The inner `None` is for a name that only some servers take for this one.
fn named<'r>(pair: &'r [u8], name: &str) -> Option<Option<&'r [u8]>> {
    let equals = pair.iter().position(|byte| *byte == b'=')?;
    let found = trim(pair.get(..equals)?);
    if found == name.as_bytes() {
        return Some(Some(trim(pair.get(equals + 1..).unwrap_or_default())));
    }
    let is_alias = |found: &str| may_be(&decode(found), name);
    std::str::from_utf8(found).is_ok_and(is_alias).then_some(None)
}

/// The normal form of a cookie's value; `None` if servers read it differently. Many servers decode
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
/// stands for the character after it.
fn unescape(inner: &[u8]) -> Cow<'_, [u8]> {
    if !inner.contains(&b'\\') {
        return Cow::Borrowed(inner);
    }
    let (mut text, mut rest) = (Vec::with_capacity(inner.len()), inner);
    while let [byte, after @ ..] = rest {
        rest = after;
        match (byte, rest) {
            (b'\\', [high @ b'0'..=b'3', middle @ b'0'..=b'7', low @ b'0'..=b'7', after @ ..]) => {
                text.push((high - b'0') << 6 | (middle - b'0') << 3 | (low - b'0'));
                rest = after;
            }
            (b'\\', [escaped, after @ ..]) => {
                text.push(*escaped);
                rest = after;
            }
            _ => text.push(*byte),
        }
    }
    Cow::Owned(text)
}

/// The query parameters of this name. A parameter without `=` has the empty value. A parameter is `None` if only some
/// servers take its name for this one. It is also `None` beside a semicolon, which some servers read as an ampersand.
pub(super) fn query<'r>(
    query: Option<&'r str>,
    name: &'r str,
) -> impl Iterator<Item = Option<Cow<'r, [u8]>>> {
    query.into_iter().flat_map(|query| query.split('&')).filter_map(move |pair| {
        if pair.contains(';') {
            let mut parts = pair.split(';').map(|part| part.split('=').next().unwrap_or(part));
            return parts.any(|part| may_be(&decode_query(part), name)).then_some(None);
        }
        let (found, value) = pair.split_once('=').unwrap_or((pair, ""));
        let found = decode_query(found);
        match *found == *name.as_bytes() {
            true => Some(Some(decode_query(value))),
            false => may_be(&found, name).then_some(None),
        }
    })
}

/// The token that a request has in this header or cookie.
pub(crate) fn token<'r>(place: &'r KeySource, headers: &'r HeaderMap) -> Sole<'r> {
    match place {
        KeySource::Cookie(name) => sole(cookies(headers, name)),
        KeySource::Header(name) => in_header(name, headers),
        _ => Ok(None),
    }
}

/// The last word of the header, as it is written: many APIs take it for the token, whatever the scheme is. A header
/// with other credentials, such as those of `Basic`, has no token.
fn in_header<'r>(name: &HeaderName, headers: &'r HeaderMap) -> Sole<'r> {
    if has_ambiguous_alias(headers, name) {
        return Err(PartFault::Ambiguous);
    }
    let values = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let is_clear = |value: &&[u8]| credentials::normal_form(value).is_some();
    let value = sole(values.map(|value| Some(value).filter(is_clear).map(Cow::Borrowed)))?;
    let Some(Cow::Borrowed(value)) = value else { return Ok(None) };
    let mut words = trim(value).split(|byte| *byte <= b' ');
    let first = words.next().unwrap_or_default();
    let Some(last) = words.next_back() else { return Ok(Some(Cow::Borrowed(first))) };
    let is_token = first.eq_ignore_ascii_case(b"bearer") || has_three_parts(first, last);
    Ok(is_token.then_some(Cow::Borrowed(last)))
}

/// Whether these words of a header may be a token: its three parts have dots between them. APIs read tokens in many
/// spellings: with padding or other letters in the signature, or with `Bearer ` anywhere. The dots are in all of them.
/// What stands behind an equals sign is the value of a parameter, or padding.
fn has_three_parts(first: &[u8], last: &[u8]) -> bool {
    let last = last.split(|byte| *byte == b'=').next().unwrap_or_default();
    first.iter().chain(last).filter(|byte| **byte == b'.').count() >= 2
}
