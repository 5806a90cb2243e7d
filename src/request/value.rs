//! The normal form of a header's value. All spellings that some servers take for the same value have one normal form.

use std::borrow::Cow;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::credentials;
use crate::text::trim;

/// The normal form of a header's value. `None` if servers read the value differently.
pub(super) fn normal<'v>(name: &HeaderName, value: &'v [u8]) -> Option<Cow<'v, [u8]>> {
    match *name == AUTHORIZATION {
        true => credentials::normal_form(value),
        false => Some(Cow::Borrowed(trim(value))),
    }
}

/// The common form of all spellings of one value.
pub(super) fn form<'v>(name: &HeaderName, value: &'v HeaderValue) -> Cow<'v, [u8]> {
    normal(name, value.as_bytes()).unwrap_or(Cow::Borrowed(value.as_bytes()))
}

/// Whether one of the header's fields has this value, in any spelling of it.
pub(super) fn is_there(headers: &HeaderMap, (name, value): &(HeaderName, HeaderValue)) -> bool {
    headers.get_all(name).iter().any(|found| are_same(name, value, found))
}

/// Whether two values of a header are the same in some spelling.
pub(super) fn are_same(name: &HeaderName, one: &HeaderValue, other: &HeaderValue) -> bool {
    let form = normal(name, one.as_bytes());
    one == other || form.is_some() && form == normal(name, other.as_bytes())
}
