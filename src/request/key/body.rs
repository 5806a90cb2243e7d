//! The fields of a request's body by which limits count: of a JSON object, or of a form.
//!
//! A body that two servers could read in two ways has no value: otherwise a client could count as one user here, and be
//! another one for the API.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde_json::Value;

use super::read::{Sole, query, sole};
use super::token::PartFault;
use crate::request::is_coded;
use crate::request::name::may_be;
use crate::text::trim;

/// The most bytes of a body that is read for its fields.
pub(crate) const MOST: usize = 64 * 1024;

/// The largest whole number that every reader of JSON reads as it is (RFC 8259, 6).
const LARGEST: f64 = 9_007_199_254_740_991.0;

/// The usual parameters of a content type. In another charset the same bytes may say something else.
const CHARSETS: [&[u8]; 3] = [b"charset=utf-8", b"charset=\"utf-8\"", b"charset=utf8"];

/// The fields of a request's body that its limits read. A field that is not here is missing.
#[derive(Clone, Debug, Default)]
pub struct BodyFields<'n>(Vec<(&'n str, Sole<'static>)>);

/// How a body is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// A JSON document.
    Json,
    /// A form, as the query of a URL.
    Form,
    /// Servers could read it in several ways.
    Unclear,
}

impl BodyKind {
    /// The kind of a body with these headers. `None` if it has no fields.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let mut kinds = headers.get_all(CONTENT_TYPE).iter();
        let kind = kinds.next().filter(|_| !is_coded(headers))?.as_bytes().to_ascii_lowercase();
        let mut parts = kind.split(|byte| *byte == b';').map(trim);
        let kind = match parts.next()? {
            _ if kinds.next().is_some() => Self::Unclear,
            b"application/json" => Self::Json,
            b"application/x-www-form-urlencoded" => Self::Form,
            _ => return None,
        };
        let is_usual = |part: &[u8]| !part.starts_with(b"charset") || CHARSETS.contains(&part);
        Some(if parts.all(is_usual) { kind } else { Self::Unclear })
    }
}

impl<'n> BodyFields<'n> {
    /// The fields of these names in a whole body.
    pub fn read(names: &'n [String], kind: BodyKind, body: &[u8]) -> Self {
        if names.is_empty() || body.is_empty() {
            return Self::default();
        }
        let text = std::str::from_utf8(body).ok();
        let json = text.filter(|_| kind == BodyKind::Json).map(json);
        let value = |name: &str| {
            let mut found = Vec::new();
            match (kind, &json) {
                (BodyKind::Form, _) if text.is_some() => found.extend(query(text, name)),
                (BodyKind::Json, Some(Ok(json))) => find(json, name, &mut found),
                (BodyKind::Json, Some(Err(fault))) => return Err(*fault),
                _ => found.push(None),
            }
            let value = sole(found)?.map(Cow::into_owned);
            // JSON cannot say another value.
            match value.as_deref().is_none_or(|value| std::str::from_utf8(value).is_ok()) {
                true => Ok(value.map(Cow::Owned)),
                false => Err(PartFault::Ambiguous),
            }
        };
        Self(names.iter().map(|name| (name.as_str(), value(name))).collect())
    }

    /// The fields of a body that somebody tells. Without a content type, a body that begins as an object does is JSON,
    /// and any other one is a form.
    pub(crate) fn told(names: &'n [String], headers: &HeaderMap, body: &[u8]) -> Self {
        let kind = match trim(body).first() {
            _ if headers.contains_key(CONTENT_TYPE) => BodyKind::of(headers),
            Some(b'{') => Some(BodyKind::Json),
            _ => Some(BodyKind::Form),
        };
        let kind = kind.filter(|_| !names.is_empty() && body.len() <= MOST);
        kind.map(|kind| Self::read(names, kind, body)).unwrap_or_default()
    }

    /// Whether no field was looked for, because of the body's type, coding or length, or because it is empty.
    pub(crate) fn is_unread(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of a field, which is UTF-8. `None` if the body has none.
    ///
    /// # Errors
    /// If the field comes twice, or can be read in two ways, or not at all.
    pub fn value(&self, name: &str) -> Sole<'static> {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.map_or(Ok(None), |(_, value)| value.clone())
    }
}

/// A document that every reader of JSON reads alike, but for the size of its numbers.
fn json(text: &str) -> Result<Value, PartFault> {
    let (mut in_text, mut is_escaped) = (false, false);
    let is_member = |byte: &u8| {
        in_text ^= *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        *byte == b':' && !in_text
    };
    // Of keys that come twice in an object only one is read.
    let document = serde_json::from_str(text).map_err(|_| PartFault::Unreadable)?;
    match text.bytes().filter(is_member).count() == members(&document) {
        true => Ok(document),
        false => Err(PartFault::Ambiguous),
    }
}

/// The number of members of all objects in a document.
fn members(json: &Value) -> usize {
    match json {
        Value::Object(all) => all.len() + all.values().map(members).sum::<usize>(),
        Value::Array(all) => all.iter().map(members).sum(),
        _ => 0,
    }
}

/// Finds the values of this name. It is a key of this object, or dots in it lead into objects. Some servers take another
/// key for this one: that is a `None`.
fn find<'j>(json: &'j Value, name: &str, found: &mut Vec<Option<Cow<'j, [u8]>>>) {
    let Value::Object(members) = json else { return };
    let dots = name.match_indices('.').map(|(dot, _)| (&name[..dot], Some(&name[dot + 1..])));
    for (own, rest) in dots.chain([(name, None)]) {
        for (key, value) in members.iter().filter(|(key, _)| may_be(key.as_bytes(), own)) {
            match (value, rest) {
                _ if key != own => found.push(None),
                (inner, Some(rest)) => find(inner, rest, found),
                (Value::String(text), None) => found.push(Some(Cow::Borrowed(text.as_bytes()))),
                (Value::Bool(flag), None) => found.push(Some(flag.to_string().into_bytes().into())),
                (Value::Number(number), None) => {
                    let number = number.as_f64().filter(|number| number.abs() <= LARGEST);
                    // Without the sign of -0.
                    found.push(number.map(|it| (it + 0.0).to_string().into_bytes().into()));
                }
                (Value::Null | Value::Array(_) | Value::Object(_), None) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
