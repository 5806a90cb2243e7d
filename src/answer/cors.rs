//! The header fields that let a page of another origin read an answer (Fetch standard, "CORS protocol"). A route's
//! `response_headers` take precedence over these fields.

use http::Method;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderName,
    HeaderValue, RETRY_AFTER, VARY,
};

use super::quotas::FIELDS;
use super::rejection::{GRPC_RETRY_PUSHBACK_MS, RETRY_AFTER_MS};
use super::{Answers, grpc, listing};
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

/// How many seconds a browser may keep the answer to a preflight. A reload may take an origin away.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// Lets a page send the request for which a preflight asks: with these `methods` (if the list is empty, with the method
/// that it asks for), and with the fields that it asks for.
pub(crate) fn allow_request(answer: &mut HeaderMap, preflight: &HeaderMap, methods: &[Method]) {
    let methods = match methods {
        // `*` would be a name if the page sends cookies.
        [] => preflight.get(ACCESS_CONTROL_REQUEST_METHOD).cloned(),
        some => listing(some),
    };
    let fields = [
        (ACCESS_CONTROL_ALLOW_METHODS, methods),
        (ACCESS_CONTROL_ALLOW_HEADERS, preflight.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned()),
        (ACCESS_CONTROL_MAX_AGE, Some(MAX_AGE)),
    ];
    answer.extend(fields.into_iter().filter_map(|(name, value)| Some((name, value?))));
}

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
