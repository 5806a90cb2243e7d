//! The page at `/`: the data of the JSON interface, for people. It is one document that contains its style and its
//! script, and loads nothing else. `source.js` reads `/api/stream` and `/api/history`, and `page.js` draws them.
//! `fleet.js` asks `/api/fleet` if other processes share the store. The numbers come from `admin::status`.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_SECURITY_POLICY, HeaderValue};
use sha2::{Digest as _, Sha256};

use super::answer::{AdminResponse, answer};

const STYLE: &str = concat!(include_str!("palette.css"), include_str!("style.css"));
const SCRIPT: &str = concat!(
    include_str!("parts.js"),
    include_str!("plot.js"),
    include_str!("source.js"),
    include_str!("why.js"),
    include_str!("key.js"),
    include_str!("fleet.js"),
    include_str!("page.js"),
);
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

/// The document, and what a browser may do for it (Content Security Policy Level 3).
struct Document {
    html: Bytes,
    policy: HeaderValue,
}

static DOCUMENT: LazyLock<Document> = LazyLock::new(|| {
    let html = include_str!("page.html").replace("{STYLE}", STYLE).replace("{SCRIPT}", SCRIPT);
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE),
    );
    let policy = HeaderValue::try_from(policy);
    let policy = policy.unwrap_or(HeaderValue::from_static("default-src 'none'"));
    Document { html: html.into(), policy }
});

/// The page. With the status 401 it asks for the token. The document itself contains no data of the proxy.
pub(super) fn page(status: StatusCode) -> AdminResponse {
    let mut answer = answer(status, HTML, DOCUMENT.html.clone());
    answer.headers_mut().insert(CONTENT_SECURITY_POLICY, DOCUMENT.policy.clone());
    answer
}
