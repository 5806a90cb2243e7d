//! Fetches a small document for the process itself, not for a client.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HOST, HeaderValue, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use tokio::time::timeout;

use super::body::RequestBody;
use super::connect::Connector;
use super::{Purpose, ServerFailure, UpstreamError};
use crate::plan::{JwksUrl, UpstreamSpec};

/// How the server's log names the client.
const FETCHER: HeaderValue = HeaderValue::from_static("tidegate-jwks");

const JSON: HeaderValue = HeaderValue::from_static("application/jwk-set+json, application/json");

/// The most time for all of it.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The most bytes of the document.
const MOST: usize = 1 << 20;

/// Why a document was not fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("{0}")]
    Exchange(UpstreamError),
    /// Redirects are not followed: they could lead anywhere.
    #[error("{server} answered {status}")]
    Status { server: String, status: StatusCode },
    #[error("the answer of {0} broke off, or is larger than 1 MiB")]
    Body(String),
}

/// Fetches a document on a new connection.
///
/// # Errors
/// Where the server does not answer in time with 200 and a document that is not too large.
pub(crate) async fn fetch(url: &JwksUrl) -> Result<Bytes, FetchError> {
    let failed = |failure| {
        let server = url.server.url.as_str().into();
        FetchError::Exchange(UpstreamError::Server { server, failure })
    };
    let spec = UpstreamSpec {
        connect_timeout: TIME_LIMIT,
        tls: url.tls.clone(),
        ..UpstreamSpec::default()
    };
    let fetching = async {
        let opening = Connector::new(&spec);
        let opening = opening.open(&url.server, Purpose::Http1).await;
        let mut connection = opening.map_err(|error| failed(ServerFailure::Connect(error)))?;
        let answer = connection.send(request(url), false, &url.server, TIME_LIMIT).await;
        let answer = answer.map_err(|none| failed(none.failure))?;
        if answer.status() != StatusCode::OK {
            let (server, status) = (url.server.url.clone(), answer.status());
            return Err(FetchError::Status { server, status });
        }
        let body = Limited::new(answer.into_body(), MOST).collect().await;
        let body = body.map_err(|_| FetchError::Body(url.server.url.clone()))?.to_bytes();
        connection.finish();
        Ok(body)
    };
    let fetched = timeout(TIME_LIMIT, fetching).await;
    fetched.unwrap_or_else(|_| Err(failed(ServerFailure::ResponseTimeout)))
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
