//! The admin endpoint: `/healthz`, `/readyz`, `/metrics`, the JSON interface below `/api/`, and the page at
//! `/`. `server` starts it.

mod access;
mod answer;
mod connections;
mod fleet;
mod history;
mod limits;
mod marks;
mod metrics;
mod page;
mod process;
mod prometheus;
mod pulse;
mod status;
mod stream;
#[cfg(test)]
mod testing;
mod why;

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::header::{HeaderValue, WWW_AUTHENTICATE};
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;

use self::answer::{AdminResponse, answer, json as answer_json, only, problem, read_only, text};
pub(crate) use self::connections::listen;
use self::limits::ApiProblem;
use self::marks::Marks;
use self::metrics::Scrape;
use self::pulse::Pulse;
use self::status::ProcessReading;
use crate::config;
use crate::downstream::places::ConnectionPlaces;
use crate::limit::time::{Now, Timestamp};
use crate::observe::sink::DroppedLines;
use crate::observe::{host, panics};
use crate::settings::{KeyDisplay, StoreSpec};
use crate::store::Store;
use crate::worker::{Process, Published};

/// How long a command waits for a connection to Redis. An operator waits at a terminal.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);

/// The answer to a request for an unknown path.
const PATHS: &str = "there is /, /healthz, /readyz, /metrics, /api/status, /api/stream, /api/history, \
                     /api/config, /api/fleet, /api/limits and /api/why";

/// The state that the endpoint reports.
pub(crate) struct Admin {
    process: Arc<Process>,
    published: watch::Receiver<Arc<Published>>,
    /// The log lines that were dropped.
    dropped: Arc<DroppedLines>,
    /// Where buckets live. A reload does not change this.
    first_store: StoreSpec,
    /// Access to the buckets, from the first question on.
    store: OnceLock<Arc<Store>>,
    /// When the process started, by the steady clock.
    started: Timestamp,
    pulse: Pulse,
    marks: Mutex<Marks>,
    /// The connections of the endpoint.
    connections: Arc<ConnectionPlaces>,
    /// The machine's name.
    host: String,
}

impl Admin {
    /// The endpoint of a process, with the settings in force and the log lines that were dropped.
    pub(crate) fn new(
        process: Arc<Process>,
        published: watch::Receiver<Arc<Published>>,
        dropped: Arc<DroppedLines>,
    ) -> Self {
        let first_store = published.borrow().settings.store.clone();
        Self {
            first_store,
            store: OnceLock::new(),
            started: process.clock.now(),
            pulse: Pulse::new(&process),
            marks: Mutex::default(),
            connections: ConnectionPlaces::new(connections::MOST),
            host: host(),
            process,
            published,
            dropped,
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> AdminResponse {
        let mut answer = self.route(request).await;
        access::protect(&mut answer);
        answer
    }

    async fn route(&self, request: Request<Incoming>) -> AdminResponse {
        let token = self.published.borrow().settings.admin.token.clone();
        let uri = request.uri().clone();
        if let Some(refused) = access::refuse(&request, token.as_deref()) {
            if uri.path() != "/" || refused.status() != StatusCode::UNAUTHORIZED {
                return refused;
            }
            // A browser cannot send the token by itself. The page asks the operator for it.
            let mut page = page::page(StatusCode::UNAUTHORIZED);
            page.headers_mut().insert(WWW_AUTHENTICATE, access::BEARER);
            return page;
        }
        let path: Vec<_> = uri.path().split('/').collect();
        if let ["", "api", "limits", path @ ..] = path.as_slice() {
            let answered = self.limits(path, uri.query(), request).await;
            return answered.unwrap_or_else(|ApiProblem(status, why)| problem(status, &why));
        }
        let method = request.method();
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        match path.as_slice() {
            ["", "api", "why", ..] | ["", "api", "fleet"] if !is_read => return only("GET, HEAD"),
            ["", "api", "why", path @ ..] => {
                let answered = self.why(path, uri.query()).await;
                return answered.unwrap_or_else(|ApiProblem(status, why)| problem(status, &why));
            }
            ["", "api", "fleet"] => return answer_json(&self.fleet().await),
            _ => {}
        }
        match uri.path() {
            "/" => read_only(method, || page::page(StatusCode::OK)),
            "/healthz" => read_only(method, || text(StatusCode::OK, "ok\n")),
            "/readyz" => read_only(method, || self.ready()),
            "/metrics" => read_only(method, || self.metrics()),
            "/api/status" => read_only(method, || {
                answer_json(&status::build(self, &ProcessReading::now(&self.process)))
            }),
            "/api/stream" => read_only(method, || self.stream(method)),
            "/api/history" => read_only(method, || answer_json(&self.history())),
            "/api/config" => read_only(method, || self.config()),
            _ => problem(StatusCode::NOT_FOUND, PATHS),
        }
    }

    fn ready(&self) -> AdminResponse {
        match self.process.draining.load(Ordering::Relaxed) {
            true => text(StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
            false => text(StatusCode::OK, "ready\n"),
        }
    }

    /// `/api/config`: the settings in force.
    fn config(&self) -> AdminResponse {
        let news = self.process.config.news();
        answer_json(&json!({
            "file": news.file,
            "version": news.version,
            "restart_needed": news.restart,
            "settings": news.settings(&config::process_environment),
        }))
    }

    /// Access to the buckets. It hashes no keys: `limits` has already hashed the keys that are hashed in
    /// Redis.
    async fn store(&self) -> &Arc<Store> {
        let store = self.store.get_or_init(|| {
            Store::new(self.process.store.clone(), &self.first_store, KeyDisplay::Plain)
        });
        store.connected(CONNECT_PATIENCE).await;
        store
    }

    /// The time of day.
    fn wall(&self) -> Timestamp {
        self.clocks().wall
    }

    /// The present time by both clocks.
    fn clocks(&self) -> Now {
        let clock = &self.process.clock;
        clock.wall().both(clock.now())
    }

    fn metrics(&self) -> AdminResponse {
        let page = metrics::page(&Scrape {
            reading: self.process.metrics.reading(),
            store: self.process.store.counters(),
            servers: self.process.store.cluster_servers(),
            log_dropped: self.dropped.total(),
            panics: panics::total(),
            now: self.clocks(),
            process: &self.process,
            published: &self.published.borrow().clone(),
        });
        answer(StatusCode::OK, HeaderValue::from_static(prometheus::CONTENT_TYPE), page.into())
    }
}

#[cfg(test)]
mod tests;
