//! The header fields that let a page of another origin read an answer (Fetch standard, "CORS protocol"). A route's
//! `response_headers` take precedence over these fields.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS,
    HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, VARY,
};

use super::quotas::FIELDS;
use super::rejection::{GRPC_RETRY_PUSHBACK_MS, RETRY_AFTER_MS};
use super::{Answers, grpc};
use crate::reading::listed;
use crate::request::origin::OriginPattern;
use crate::upstream::TIDEGATE_OVERLOAD;

/// Further fields that an answer made by tidegate may have, beside [`FIELDS`]. gRPC-Web has its status in header
/// fields.
static OWN: [HeaderName; 6] = [
    RETRY_AFTER,
    RETRY_AFTER_MS,
    TIDEGATE_OVERLOAD,
    GRPC_RETRY_PUSHBACK_MS,
    grpc::STATUS,
    grpc::MESSAGE,
];

impl Answers {
    /// Lets a page read an answer that tidegate made. `origin` is the result of [`CorsSpec::granted`] for the request.
    ///
    /// [`CorsSpec::granted`]: crate::settings::CorsSpec::granted
    pub(crate) fn open(&self, headers: &mut HeaderMap, origin: Option<&HeaderValue>) {
        let Some(cors) = &self.settings.cors else { return };
        let is_for_one = |name: &[u8]| name == b"*" || name.eq_ignore_ascii_case(b"origin");
        if !cors.origins.contains(&OriginPattern::All) && !listed(headers, &VARY).any(is_for_one) {
            headers.append(VARY, HeaderValue::from_static("origin"));
        }
        if let Some(origin) = origin {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            if cors.credentials {
                headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
            }
        }
        self.expose(headers, OWN.iter().chain(&FIELDS));
    }

    /// Lets pages read these fields too, if they may read the answer.
    pub(crate) fn expose<'n>(
        &'n self,
        headers: &mut HeaderMap,
        names: impl IntoIterator<Item = &'n HeaderName>,
    ) {
        if self.settings.cors.is_none() || !headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
            return;
        }
        let is_new = |name: &&HeaderName| {
            let is_it = |it: &[u8]| it.eq_ignore_ascii_case(name.as_str().as_bytes());
            !listed(headers, &ACCESS_CONTROL_EXPOSE_HEADERS).any(is_it)
        };
        let there = names.into_iter().filter(|name| headers.contains_key(*name));
        // The request ID is written into the answer later, so `there` lacks it.
        let names = there.chain(&self.settings.server.request_id).filter(is_new);
        let names: Vec<_> = names.map(|name| name.as_str().as_bytes()).collect();
        if names.is_empty() {
            return;
        }
        let all = listed(headers, &ACCESS_CONTROL_EXPOSE_HEADERS).chain(names);
        if let Ok(all) = HeaderValue::from_bytes(&all.collect::<Vec<_>>().join(&b", "[..])) {
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, all);
        }
    }
}
