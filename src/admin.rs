//! The admin endpoint with `/healthz`, `/readyz` and `/metrics`. `server` starts it.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, WWW_AUTHENTICATE};
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

use crate::limit::algorithm::Algorithm;
use crate::limit::algorithm::fixed_window::windows::Windows;
use crate::limit::rate::Rate;
use crate::limit::time::Timestamp;
use crate::observe::log::DroppedLines;
use crate::observe::metrics::{self, LimitFigures, ServerGauge, Snapshot};
use crate::plan::LimitSpec;
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
    pub dropped: DroppedLines,
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
        let published = self.plan.borrow().clone();
        let servers: Vec<_> = published
            .plan
            .upstreams
            .iter()
            .zip(&published.servers)
            .flat_map(|(upstream, servers)| {
                servers.iter().map(|server| ServerGauge {
                    upstream: upstream.name.as_str(),
                    server: server.url(),
                    up: server.is_up(),
                })
            })
            .collect();
        let process = &self.process;
        let throttled = |name| process.throttled.throttled_keys(name);
        let limits = published.plan.limits.iter();
        let limits = limits.map(|limit| limit_figures(limit, throttled(&limit.name))).collect();
        let upstreams = published.plan.upstreams.iter().zip(&published.servers);
        let retries = upstreams
            .map(|(upstream, servers)| {
                (upstream.name.as_str(), servers.iter().map(|server| server.retries()).sum())
            })
            .collect();
        let store = process.store.counters();
        let rendered = process.metrics.render(&Snapshot {
            version: env!("CARGO_PKG_VERSION"),
            store_up: store.redis_up.unwrap_or(true),
            waiting: process.waiting.held() as u64,
            connections: process.slots.open() as u64,
            malformed: process.malformed.total(),
            memory_keys: store.keys as u64,
            shared_decisions: store.shared_uses,
            forgotten: store.forgotten,
            decided_without: store.decided_without,
            refused_without: store.refused_without,
            unsettled: store.unsettled,
            log_dropped: self.dropped.count(),
            reload_successful: process.is_config_valid.load(Ordering::Relaxed),
            reload_success_time: process.adopted.load(Ordering::Relaxed) as f64 / 1e6,
            limits,
            retries,
            store_errors: process.store.errors(),
            servers,
        });
        let mut response = text(StatusCode::OK, rendered);
        let kind = HeaderValue::from_static(metrics::CONTENT_TYPE);
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}

/// The figures of a limit for the metrics.
fn limit_figures(limit: &LimitSpec, throttled_keys: u64) -> LimitFigures<'_> {
    let algorithm = limit.figures.at(Timestamp::MIN);
    let per_second = |rate: Rate| rate.count() as f64 * 1e6 / rate.interval() as f64;
    let rate = match &algorithm {
        None => Some(f64::INFINITY),
        Some(Algorithm::TokenBucket(params)) => Some(per_second(params.rate)),
        Some(Algorithm::LeakyBucket(params)) => Some(per_second(params.rate)),
        Some(Algorithm::Redisson(params)) => params.rate().map(per_second),
        Some(Algorithm::SlidingLog(params)) => Some(per_second(params.rate())),
        Some(Algorithm::SlidingWindow(params)) => {
            Some(params.count.get() as f64 * 1e6 / params.interval.as_micros() as f64)
        }
        Some(Algorithm::FixedWindow(params)) => Some(match &params.windows {
            Windows::Rolling(interval) | Windows::Clock(interval) => {
                params.count.get() as f64 * 1e6 / interval.as_micros() as f64
            }
            Windows::Calendar(_) => params.count.get() as f64 / params.windows.seconds() as f64,
        }),
        Some(Algorithm::Closed) => Some(0.0),
        Some(Algorithm::Concurrency(_)) => None,
    };
    let burst = algorithm.map(|algorithm| algorithm.capacity());
    LimitFigures { limit: limit.name.as_str(), rate, burst, throttled_keys }
}

/// Whether the request's host is an address or localhost. This prevents DNS rebinding: a page in a browser
/// could reach the endpoint only by the page's own host name, if that name resolves to loopback.
fn is_local(headers: &HeaderMap, uri: &Uri) -> bool {
    let host = uri.authority().map(|authority| authority.as_str().to_owned()).or_else(|| {
        let host = headers.get(HOST)?.to_str().ok()?;
        Some(host.to_owned())
    });
    let Some(host) = host else { return false };
    let name = match host.parse::<SocketAddr>() {
        Ok(_) => return true,
        Err(_) => host.rsplit_once(':').map_or(&*host, |(name, _)| name),
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || host.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok()
        || bare.parse::<IpAddr>().is_ok()
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
    use crate::config::{Overrides, parse};

    #[test]
    fn a_limits_rate_is_the_files_also_below_a_second() {
        for (lines, rate, burst) in [
            ("rate = \"5/500ms\"\nburst = 7", Some(10.0), Some(7)),
            ("rate = \"5/500ms\"\nalgorithm = \"leaky-bucket\"", Some(10.0), None),
            ("rate = \"5/500ms\"\nalgorithm = \"fixed-window\"", Some(10.0), Some(5)),
            ("rate = \"5/500ms\"\nalgorithm = \"sliding-window\"", Some(10.0), Some(5)),
            ("rate = \"5/500ms\"\nalgorithm = \"sliding-log\"", Some(10.0), Some(5)),
            ("limit = 3\nalgorithm = \"concurrency\"", None, Some(3)),
            ("rate = \"unlimited\"", Some(f64::INFINITY), None),
            ("rate = \"0/s\"", Some(0.0), Some(0)),
        ] {
            let text = format!(
                "[limits.a]\n{lines}\n[[routes]]\npath = \"/\"\n\
                 respond = {{ status = 200 }}\nlimits = [\"a\"]\n"
            );
            let plan = parse("proxy.toml", &text, &|_| None, &Overrides::default()).unwrap().plan;
            let figures = limit_figures(&plan.limits[0], 2);
            assert_eq!((figures.rate, figures.throttled_keys), (rate, 2), "{lines}");
            if burst.is_some() {
                assert_eq!(figures.burst, burst, "{lines}");
            }
        }
    }

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
