//! The reading of a request's head: its path, host, route, client and keys. Pure: no I/O and no clock.

pub mod client;
pub mod counted;
pub(crate) mod credentials;
pub(crate) mod exempt;
pub(crate) mod host;
pub mod key;
pub(crate) mod known_fields;
pub(crate) mod line;
pub(crate) mod method;
pub(crate) mod name;
pub(crate) mod network;
pub(crate) mod origin;
pub(crate) mod overrides;
pub mod path;
pub mod route;
pub(crate) mod site;
pub(crate) mod target;
pub(crate) mod trace;
pub(crate) mod value;

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};

/// The length of a request's body in bytes, if the head has it.
pub(crate) fn body_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Whether a body with these headers is encoded, and cannot be read here.
pub(crate) fn is_coded(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(CONTENT_ENCODING).iter();
    codings.any(|coding| !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity"))
}
