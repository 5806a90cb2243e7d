//! `[cors]`: which pages may read tidegate's own answers.

use http::header::ORIGIN;
use http::{HeaderMap, HeaderValue};

use crate::request::origin::OriginPattern;

/// The settings of `[cors]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CorsSpec {
    /// The origins whose pages may read the answers. [`OriginPattern::All`] stands alone.
    pub(crate) origins: Vec<OriginPattern>,
    /// Whether pages may send cookies.
    pub(crate) credentials: bool,
}

impl CorsSpec {
    /// The value of `access-control-allow-origin` for a request with these headers. `None` if its page may not read
    /// the answer.
    pub(crate) fn granted(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let mut origins = headers.get_all(ORIGIN).iter();
        let (Some(origin), None) = (origins.next(), origins.next()) else { return None };
        match self.origins.iter().find(|pattern| pattern.matches(origin.as_bytes()))? {
            OriginPattern::All => Some(HeaderValue::from_static("*")),
            _ => Some(origin.clone()),
        }
    }
}
