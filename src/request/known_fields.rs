//! The fields of a request that the proxy reads, writes or removes, or that say where a message ends.
//!
//! Many APIs take a field of another name for one of these: CGI and its heirs read an underscore as a dash (RFC 3875,
//! 4.1.18). Such a field must not reach the API. A `content_length` beside `content-length` would let a body begin
//! another request, which no limit has seen.

use std::collections::HashMap;

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName};
use smallvec::SmallVec;

use super::name::{form, is_odd, remove_all};

/// The fields that `connection` never removes: they frame a message, or say where it goes, or belong to the whole way of
/// a request.
const PROTECTED: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "te",
    "tidegate-over",
    "traceparent",
    "tracestate",
    "transfer-encoding",
    "upgrade",
];

/// The other fields that every proxy knows, whatever its file says: those of one connection, and those that belong into
/// a head alone (RFC 9110, 6.5.1 and 7.6.1).
const OTHERS: [&str; 15] = [
    "accept",
    "accept-encoding",
    "authorization",
    "cache-control",
    "content-encoding",
    "content-range",
    "content-type",
    "cookie",
    "grpc-timeout",
    "keep-alive",
    "max-forwards",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "trailer",
];

/// The fields that the proxy knows: each form that names may have, and the exact names of this form.
#[derive(Debug)]
pub(crate) struct KnownFields {
    names: HashMap<String, SmallVec<[HeaderName; 1]>>,
    /// Whether an exact name [`is_odd`]. Then a name without such a character may stand for it.
    has_odd: bool,
}

impl KnownFields {
    /// The fields that every proxy knows, and `names`.
    pub(crate) fn of<'n>(names: impl Iterator<Item = &'n HeaderName>) -> Self {
        let mut known = Self { names: HashMap::new(), has_odd: false };
        let always = PROTECTED.into_iter().chain(OTHERS).map(HeaderName::from_static);
        known.add(always.collect::<Vec<_>>().iter());
        known.add(names);
        known
    }

    pub(crate) fn add<'n>(&mut self, names: impl Iterator<Item = &'n HeaderName>) {
        for name in names {
            self.has_odd |= is_odd(name);
            let exact = self.names.entry(form(name)).or_default();
            if !exact.contains(name) {
                exact.push(name.clone());
            }
        }
    }

    /// Whether this is a known field, or some API takes it for one.
    pub(crate) fn has(&self, name: &HeaderName) -> bool {
        let form = form(name);
        is_claim(name) || form.starts_with("proxy-") || self.names.contains_key(&form)
    }

    /// Removes the fields that some API takes for known ones. `has_odd` says whether a name of the request [`is_odd`].
    pub(crate) fn remove_look_alikes(&self, headers: &mut HeaderMap, has_odd: bool) {
        if has_odd || self.has_odd {
            remove_all(headers, |name| self.is_look_alike(name));
        }
    }

    fn is_look_alike(&self, name: &HeaderName) -> bool {
        let form = form(name);
        match self.names.get(&form) {
            Some(exact) => !exact.contains(name),
            None => is_odd(name) && form.starts_with("proxy-"),
        }
    }
}

/// Whether `connection` cannot remove this field, whoever sends it.
pub(crate) fn is_protected(name: &HeaderName) -> bool {
    is_claim(name) || PROTECTED.contains(&name.as_str())
}

/// Whether a field says who the client is: `forwarded` or `x-forwarded-*`, or what some server takes for such a field.
pub(crate) fn is_claim(name: &HeaderName) -> bool {
    let text = name.as_str();
    let dash = |byte: &u8| !byte.is_ascii_alphanumeric();
    let x_forwarded = || text.starts_with('x') && text.get(2..11) == Some("forwarded");
    *name == FORWARDED
        || x_forwarded() && [1, 11].into_iter().all(|at| text.as_bytes().get(at).is_some_and(dash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_api_may_take_for_a_known_field_is_removed_and_nothing_else() {
        let named = ["x-role", "x_tenant"].map(HeaderName::from_static);
        let known = KnownFields::of(named.iter());
        for (name, stays) in [
            ("content-length", true),
            ("content_length", false),
            ("content.length", false),
            ("transfer_encoding", false),
            ("accept_encoding", false),
            ("keep_alive", false),
            ("proxy_anything", false),
            ("proxy-anything", true),
            ("x-role", true),
            ("x_role", false),
            ("x~role", false),
            ("x_tenant", true),
            ("x-tenant", false),
            ("x_own", true),
            ("x-roles", true),
        ] {
            let name = HeaderName::from_static(name);
            let mut headers = HeaderMap::from_iter([(name.clone(), "a".parse().unwrap())]);
            known.remove_look_alikes(&mut headers, is_odd(&name));
            assert_eq!(headers.contains_key(&name), stays, "{name}");
        }
    }
}
