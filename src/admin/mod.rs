//! The admin endpoint with `/healthz`, `/readyz`, `/metrics` and `/api/limits`. `server` starts it.

mod answer;
mod families;
mod limits;
mod process;
mod text;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::header::{AUTHORIZATION, HOST, HeaderValue, WWW_AUTHENTICATE};
use http::uri::Authority;
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio::time::sleep;

use self::answer::{AdminResponse, answer, only, problem, text};
use self::families::Scrape;
use self::limits::LimitPath;
use crate::downstream::AsyncListener;
use crate::limit::time::Timestamp;
use crate::plan::{KeyDisplay, StoreSpec};
use crate::store::Store;
use crate::worker::{Process, Published};

/// The timeout for a request's head. Not a setting, because only operators and their tools use the
/// endpoint.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a command waits for the first connection to Redis. An operator waits at a terminal.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);

/// The state that the endpoint reports.
pub struct Admin {
    process: Arc<Process>,
    plan: watch::Receiver<Arc<Published>>,
    /// The count of log lines that were dropped, because the output was too slow.
    dropped: Arc<AtomicU64>,
    /// Where buckets live. A reload does not change this.
    first_store: StoreSpec,
    /// Access to the buckets, from the first question on.
    store: OnceLock<Arc<Store>>,
}

/// Serves the endpoint on a listener for as long as the process runs.
pub(crate) async fn listen(listener: AsyncListener, admin: Arc<Admin>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let admin = admin.clone();
        let service = service_fn(move |request| {
            let admin = admin.clone();
            async move { Ok::<_, Infallible>(admin.answer(request).await) }
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
    /// The endpoint of a process, with the plan in force and the count of log lines that were dropped.
    pub fn new(
        process: Arc<Process>,
        plan: watch::Receiver<Arc<Published>>,
        dropped: Arc<AtomicU64>,
    ) -> Self {
        let first_store = plan.borrow().plan.store.clone();
        Self { process, plan, dropped, first_store, store: OnceLock::new() }
    }

    async fn answer(&self, request: Request<Incoming>) -> AdminResponse {
        let uri = request.uri().clone();
        if let Some(refused) = self.refuse(&request) {
            return refused;
        }
        if let Some(path) = LimitPath::parse(uri.path()) {
            return self.limits(path, uri.query(), request).await;
        }
        let answer = match uri.path() {
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" if self.process.draining.load(Ordering::Relaxed) => {
                text(StatusCode::SERVICE_UNAVAILABLE, "draining\n")
            }
            "/readyz" => text(StatusCode::OK, "ready\n"),
            "/metrics" => self.metrics(),
            _ => {
                let there = "there is /healthz, /readyz, /metrics and /api/limits";
                return problem(StatusCode::NOT_FOUND, there);
            }
        };
        match *request.method() {
            Method::GET | Method::HEAD => answer,
            _ => only("GET, HEAD"),
        }
    }

    /// Refuses a request that may not ask here.
    fn refuse(&self, request: &Request<Incoming>) -> Option<AdminResponse> {
        let plan = self.plan.borrow().plan.clone();
        let open = matches!(request.uri().path(), "/healthz" | "/readyz");
        match &plan.admin.token {
            None if !is_local(request.headers(), request.uri()) => Some(problem(
                StatusCode::FORBIDDEN,
                "ask by address or as localhost, or set admin.token",
            )),
            Some(token) if !open && !holds(request.headers(), token) => {
                let mut refused = problem(StatusCode::UNAUTHORIZED, "a bearer token is needed");
                let kind = HeaderValue::from_static("Bearer");
                refused.headers_mut().insert(WWW_AUTHENTICATE, kind);
                Some(refused)
            }
            _ => None,
        }
    }

    /// Access to the buckets. The keys that this endpoint asks with are hashed already where they are
    /// hashed in Redis.
    async fn store(&self) -> &Arc<Store> {
        let store = self.store.get_or_init(|| {
            Store::new(self.process.store.clone(), &self.first_store, KeyDisplay::Plain)
        });
        store.connected(CONNECT_PATIENCE).await;
        store
    }

    /// The time of day.
    fn wall(&self) -> Timestamp {
        self.process.clock.wall().at(self.process.clock.now())
    }

    fn metrics(&self) -> AdminResponse {
        let page = families::page(&Scrape {
            total: self.process.metrics.total(),
            store: self.process.store.counters(),
            servers: self.process.store.cluster_servers(),
            log_dropped: self.dropped.load(Ordering::Relaxed),
            process: &self.process,
            published: &self.plan.borrow().clone(),
        });
        answer(StatusCode::OK, HeaderValue::from_static(text::CONTENT_TYPE), page.into())
    }
}

/// Whether the request's host is an address or localhost. This prevents DNS rebinding: a page in a browser
/// could reach the endpoint only by the page's own host name, if that name resolves to loopback.
fn is_local(headers: &HeaderMap, uri: &Uri) -> bool {
    if headers.get_all(HOST).iter().count() > 1 {
        return false;
    }
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
        let mut two = HeaderMap::new();
        two.append(HOST, HeaderValue::from_static("127.0.0.1"));
        two.append(HOST, HeaderValue::from_static("evil.example"));
        assert!(!is_local(&two, &Uri::from_static("/metrics")));
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
