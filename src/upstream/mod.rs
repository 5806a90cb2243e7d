//! The way to the API's servers. `proxy::forward` calls [`Upstream::send`].
//!
//! [`Upstream::send`] picks a server (`balance`), takes a pooled connection (`pool`) or opens one (`connect`),
//! sends the request, and waits for the response's head (`connection`, `deadline`). A request is tried again
//! only where a second try is safe. `body` limits and times the request's body.

pub mod balance;
pub mod body;
pub mod budget;
mod connect;
mod connection;
mod deadline;
mod error;
mod kept_head;
mod pool;
mod stream;
pub mod write;

use std::fmt;
use std::io;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use http::header::UPGRADE;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use smallvec::SmallVec;
use tokio::time::{Instant, timeout};

use self::balance::{Chooser, InFlight, ServerState};
use self::body::RequestBody;
use self::connect::{Connector, Wanted};
use self::connection::{Connection, NoHead};
use self::kept_head::KeptHead;
use self::pool::Pool;
use crate::observe::events;
use crate::plan::{Scheme, ServerAddress, UpstreamSpec};

pub use self::connection::ConnectionLease;
pub(crate) use self::error::Cause;
pub use self::error::{ServerFailure, UpstreamError};

/// One upstream in one worker. The pooled connections are the worker's own. The servers' health is the
/// process's, shared by all workers.
pub struct Upstream {
    spec: UpstreamSpec,
    servers: Vec<Arc<Server>>,
    chooser: Chooser,
    connector: Connector,
}

#[derive(Debug)]
struct Server {
    address: ServerAddress,
    state: Arc<ServerState>,
    pool: Pool,
}

/// A response whose body is still to come, and the connection that it comes on.
#[derive(Debug)]
pub struct Answered {
    /// Head and body as the server sends them.
    pub response: Response<Incoming>,
    /// The connection. It must be kept until the body has ended.
    pub lease: ConnectionLease,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("name", &self.spec.name).finish_non_exhaustive()
    }
}

impl Server {
    /// Which protocols a connection to this server may carry. An `h2c` server speaks HTTP/2 alone, so there
    /// is no choice.
    fn wanted(&self, wanted: Wanted) -> Wanted {
        match self.address.scheme {
            Scheme::H2c => Wanted::Any,
            Scheme::Http | Scheme::Https => wanted,
        }
    }

    fn failed(&self, failure: ServerFailure) -> UpstreamError {
        UpstreamError { server: self.state.url().clone(), failure }
    }

    fn take(&self, wanted: Wanted) -> Option<Connection> {
        self.pool.take(self.wanted(wanted))
    }
}

impl Upstream {
    /// An upstream without connections. `states` has the state of each server, in the spec's order.
    pub fn new(spec: UpstreamSpec, states: &[Arc<ServerState>]) -> Self {
        let servers = spec
            .servers
            .iter()
            .zip(states)
            .map(|(address, state)| {
                let (address, state, pool) = (address.clone(), state.clone(), Pool::default());
                Arc::new(Server { address, state, pool })
            })
            .collect();
        let (chooser, connector) = (Chooser::new(spec.balance), Connector::new(&spec));
        Self { spec, servers, chooser, connector }
    }

    /// The settings from which the upstream was made.
    pub fn spec(&self) -> &UpstreamSpec {
        &self.spec
    }

    /// Closes pooled connections that are idle for too long, are too old, or were closed by their server.
    pub(crate) fn prune(&self, now: Instant) {
        for server in &self.servers {
            server.pool.prune(now);
        }
    }

    /// Sends a request (in origin form) and waits for the response's head. Afterwards `request` is empty,
    /// or it is the whole request again, if no byte of it was sent. `response_timeout` is the route's own
    /// time-out for the head, if there is one.
    ///
    /// If a server cannot be connected to, the next one is tried. If a pooled connection turns out to be
    /// closed, another connection is used. A request that failed after it was sent may have had an effect.
    /// It is sent again only if its body is empty, and only if its method is idempotent or the server has
    /// said that it did not process the request.
    ///
    /// # Errors
    /// Where no server answered in time with a head that is HTTP.
    // One function, and the request by reference: a request is large, and each call that takes it by value
    // copies it.
    pub async fn send(
        &self,
        request: &mut Request<RequestBody>,
        response_timeout: Option<Duration>,
    ) -> Result<Answered, UpstreamError> {
        let response_timeout = response_timeout.unwrap_or(self.spec.response_timeout);
        let whole = request.body().is_empty();
        let repeatable = whole && is_idempotent(request.method());
        let wanted = match request.headers().contains_key(UPGRADE) {
            true => Wanted::Http1,
            false => Wanted::Any,
        };
        let mut retries = self.spec.retries;
        let mut source = ConnectionSource::Pool;
        loop {
            let place = self.chooser.choose(&self.servers, &[]);
            let pooled = match source {
                ConnectionSource::Pool => self.servers[place].take(wanted),
                ConnectionSource::New => None,
            };
            let (server, mut connection) = match pooled {
                Some(connection) => (&self.servers[place], connection),
                // Boxed: most requests find a pooled connection. Their future must not have the room for
                // opening one.
                None => Box::pin(self.connect(place, source, wanted)).await?,
            };
            let in_flight = InFlight::at(server);
            let body_end = request.body().end();
            let kept = (whole && retries > 0).then(|| KeptHead::of(request));
            let sent = mem::replace(request, Request::new(RequestBody::empty()));
            let failure = match connection.send(sent, &server.address, response_timeout).await {
                Ok(response) => {
                    self.reached(server);
                    let lease = ConnectionLease { connection, body_end, in_flight };
                    return Ok(Answered { response, lease });
                }
                Err(failure) => failure,
            };
            let NoHead { failure, unsent } = failure;
            let is_unsent = unsent.map(|unsent| *request = *unsent).is_some();
            if is_unsent && connection.is_pooled() {
                continue;
            }
            if retries == 0 || !failure.may_pass() {
                return Err(server.failed(failure));
            }
            if !is_unsent {
                let kept = kept.filter(|_| repeatable || failure.is_unprocessed());
                let Some(again) = kept.and_then(KeptHead::into_request) else {
                    return Err(server.failed(failure));
                };
                *request = again;
            }
            // A server that was restarted has closed all its pooled connections. The next try needs a new
            // one.
            source = ConnectionSource::New;
            server.state.retried();
            retries -= 1;
        }
    }

    /// Opens a connection to a server. Where requests share connections, another request may have opened a
    /// connection meanwhile. Then that connection is taken instead.
    async fn open(
        &self,
        server: &Server,
        source: ConnectionSource,
        wanted: Wanted,
    ) -> io::Result<Connection> {
        let wanted = server.wanted(wanted);
        let shares = server.address.scheme == Scheme::H2c || server.pool.has_shared();
        let _turn = match shares && wanted == Wanted::Any {
            true => Some(server.pool.connecting.lock().await),
            false => None,
        };
        if source == ConnectionSource::Pool
            && let Some(connection) = server.take(wanted)
        {
            return Ok(connection);
        }
        let connection = self.connector.open(&server.address, wanted).await?;
        // A connection that was to be HTTP/1.1 is not shared, even if the server speaks HTTP/2 alone.
        if wanted == Wanted::Any
            && let Connection::Http2(shared) = &connection
        {
            server.pool.share(shared.clone());
        }
        Ok(connection)
    }

    /// The server has taken a connection or has answered.
    fn reached(&self, server: &Server) {
        if server.state.reached() {
            events::server_up(self.spec.name.as_str(), server.state.url());
        }
    }

    /// A connection to the server at this place, or to the next server that can be reached.
    async fn connect(
        &self,
        mut place: usize,
        source: ConnectionSource,
        wanted: Wanted,
    ) -> Result<(&Arc<Server>, Connection), UpstreamError> {
        let mut tried: SmallVec<[usize; 8]> = SmallVec::new();
        loop {
            let server = &self.servers[place];
            let connecting = timeout(self.spec.connect_timeout, self.open(server, source, wanted));
            let error = server.failed(match connecting.await {
                Ok(Ok(connection)) => {
                    self.reached(server);
                    return Ok((server, connection));
                }
                Ok(Err(error)) if error.kind() != io::ErrorKind::TimedOut => {
                    ServerFailure::Connect(error)
                }
                Ok(Err(_)) | Err(_) => ServerFailure::ConnectTimeout,
            });
            if server.state.failed() {
                let upstream = self.spec.name.as_str();
                events::server_down(upstream, server.state.url(), &error);
                if self.servers.iter().all(|server| !server.state.is_up()) {
                    events::upstream_down(upstream, &error);
                }
            }
            tried.push(place);
            if tried.len() == self.servers.len() {
                return Err(error);
            }
            place = self.chooser.choose(&self.servers, &tried);
        }
    }
}

/// Where a connection may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionSource {
    /// The pool, or a new connection if the pool has none.
    Pool,
    /// A new connection in any case.
    New,
}

/// RFC 9110, 9.2.2.
fn is_idempotent(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET | Method::HEAD | Method::OPTIONS | Method::PUT | Method::DELETE | Method::TRACE
    )
}
