//! The admin endpoint with `/healthz`, `/readyz` and `/metrics`. `server` starts it.

mod families;
mod process;
mod text;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, WWW_AUTHENTICATE};
use http::uri::Authority;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::sleep;

use self::families::Scrape;
use crate::worker::{Process, Published};

/// The timeout for a request's head. Not a setting, because only operators and their tools use the
/// endpoint.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// The state that the endpoint reports.
#[derive(Clone)]
pub struct Admin {
    /// The process.
    pub process: Arc<Process>,
    /// The plan in force.
    pub plan: watch::Receiver<Arc<Published>>,
    /// The count of log lines that were dropped, because the output was too slow.
    pub dropped: Arc<AtomicU64>,
}

/// Serves the endpoint on a listener for as long as the process runs.
pub async fn listen(listener: TcpListener, admin: Arc<Admin>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let admin = admin.clone();
        let service = service_fn(move |request| {
            let response = admin.answer(&request);
            async { Ok::<_, Infallible>(response) }
        });
        tokio::spawn(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service),
        );
    }
}

impl Admin {
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        let plan = self.plan.borrow().plan.clone();
        let open = matches!(path, "/healthz" | "/readyz");
        match &plan.admin.token {
            None if !is_local(request.headers(), request.uri()) => {
                return text(
                    StatusCode::FORBIDDEN,
                    "ask by address or as localhost, or set admin.token\n",
                );
            }
            Some(token) if !open && !holds(request.headers(), token) => {
                let mut response = text(StatusCode::UNAUTHORIZED, "a bearer token is needed\n");
                let kind = HeaderValue::from_static("Bearer");
                response.headers_mut().insert(WWW_AUTHENTICATE, kind);
                return response;
            }
            _ => {}
        }
        let answer = match path {
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" if self.process.draining.load(Ordering::Relaxed) => {
                text(StatusCode::SERVICE_UNAVAILABLE, "draining\n")
            }
            "/readyz" => text(StatusCode::OK, "ready\n"),
            "/metrics" => self.metrics(),
            _ => return text(StatusCode::NOT_FOUND, "there is /healthz, /readyz and /metrics\n"),
        };
        if matches!(*request.method(), Method::GET | Method::HEAD) {
            return answer;
        }
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        response
    }

    fn metrics(&self) -> Response<Full<Bytes>> {
        let page = families::page(&Scrape {
            total: self.process.metrics.total(),
            store: self.process.store.counters(),
            log_dropped: self.dropped.load(Ordering::Relaxed),
            process: &self.process,
            published: &self.plan.borrow().clone(),
        });
        let mut response = text(StatusCode::OK, page);
        let kind = HeaderValue::from_static(text::CONTENT_TYPE);
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}

/// Whether the request's host is an address or localhost. This prevents DNS rebinding: a page in a browser
/// could reach the endpoint only by the page's own host name, if that name resolves to loopback.
fn is_local(headers: &HeaderMap, uri: &Uri) -> bool {
    let host = || Authority::try_from(headers.get(HOST)?.as_bytes()).ok();
    let Some(authority) = uri.authority().cloned().or_else(host) else { return false };
    let name = authority.host();
    name.eq_ignore_ascii_case("localhost")
        || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

/// Whether the request has the token. Digests are compared: the time of the comparison reveals nothing
/// about the token.
fn holds(headers: &HeaderMap, token: &str) -> bool {
    let given =
        headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
        });
    given.is_some_and(|given| Sha256::digest(given) == Sha256::digest(token))
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(host: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        is_local(&headers, &Uri::from_static("/metrics"))
    }

    #[test]
    fn only_addresses_and_localhost_are_local() {
        for host in ["127.0.0.1", "127.0.0.1:9", "localhost", "LOCALHOST:80", "[::1]:9", "[::1]"] {
            assert!(local(host), "{host}");
        }
        for host in ["evil.example", "evil.example:9", "127.0.0.1.evil.example", "localhost.x", ""]
        {
            assert!(!local(host), "{host}");
        }
        assert!(!is_local(&HeaderMap::new(), &Uri::from_static("/metrics")));
    }

    #[test]
    fn a_token_is_held_whole_or_not() {
        let mut headers = HeaderMap::new();
        assert!(!holds(&headers, "secret"));
        headers.insert(AUTHORIZATION, HeaderValue::from_static("bearer secret"));
        assert!(holds(&headers, "secret"));
        assert!(!holds(&headers, "secre"));
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Basic secret"));
        assert!(!holds(&headers, "secret"));
    }
}
