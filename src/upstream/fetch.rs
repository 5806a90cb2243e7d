//! Fetches the keys of a `[jwt.NAME]`, for the process itself and not for a client.

use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, HOST, HeaderValue, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use tokio::time::timeout;

use super::body::RequestBody;
use super::connect::Connector;
use super::{Purpose, ServerFailure, UpstreamError};
use crate::jwt::keys::{KeySet, KeySetError};
use crate::settings::{JwksUrl, UpstreamSpec};
use crate::wire::dialer::Dialer;

/// How the server's log names the client.
const FETCHER: HeaderValue = HeaderValue::from_static("tidegate-jwks");

const JSON: HeaderValue = HeaderValue::from_static("application/jwk-set+json, application/json");

/// The most time for all of it.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The most bytes of the document.
const MOST: usize = 1 << 20;

/// Why keys were not fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("{0}")]
    Exchange(UpstreamError),
    /// Redirects are not followed: they could lead anywhere.
    #[error("{0} answered {1}")]
    Status(String, StatusCode),
    #[error("the answer of {0} broke off, or is larger than 1 MiB")]
    Body(String),
    #[error("{0}: {1}")]
    Keys(String, KeySetError),
}

/// Fetches a JWKS on a new connection.
///
/// # Errors
/// If the server does not answer in time with 200 and a document that is not too large and has keys.
pub(crate) async fn fetch_keys(url: &JwksUrl, dialer: &Arc<Dialer>) -> Result<KeySet, FetchError> {
    let server = || format!("{}{}", url.server.url, url.path.path());
    let failed = |failure| FetchError::Exchange(UpstreamError::of(&url.server.url, failure));
    let spec = UpstreamSpec {
        connect_timeout: TIME_LIMIT,
        tls: url.tls.clone(),
        ..UpstreamSpec::default()
    };
    let fetching = async {
        let connector = Connector::new(&spec, dialer.clone());
        let opened = connector.open(&url.server, Purpose::Http1).await;
        let mut connection = opened.map_err(|error| failed(ServerFailure::Connect(error)))?;
        let answer = connection.send(request(url), false, &url.server, TIME_LIMIT).await;
        let answer = answer.map_err(|none| failed(none.failure))?;
        if answer.status() != StatusCode::OK {
            return Err(FetchError::Status(server(), answer.status()));
        }
        let body = Limited::new(answer.into_body(), MOST).collect().await;
        let body = body.map_err(|_| FetchError::Body(server()))?.to_bytes();
        connection.finish();
        KeySet::parse(&body).map_err(|error| FetchError::Keys(server(), error))
    };
    let fetched = timeout(TIME_LIMIT, fetching).await;
    fetched.unwrap_or_else(|_| Err(failed(ServerFailure::ResponseTimeout(TIME_LIMIT))))
}

fn request(url: &JwksUrl) -> Request<RequestBody> {
    let mut request = Request::new(RequestBody::empty());
    *request.uri_mut() = url.path.clone().into();
    let headers = request.headers_mut();
    headers.insert(HOST, url.server.host());
    headers.insert(USER_AGENT, FETCHER);
    headers.insert(ACCEPT, JSON);
    request
}
