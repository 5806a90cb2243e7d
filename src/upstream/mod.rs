//! The existing API: picks a server, connects or takes a pooled connection, sends, waits, and
//! tries again only where that is safe.

pub mod balance;
pub mod body;
mod connect;
pub mod connection;
mod deadline;
pub mod fault;
pub mod incoming;
mod pool;
mod upload;

use std::fmt;
use std::io;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use smallvec::SmallVec;
use tokio::time::{Instant, timeout};

use self::balance::{Chooser, ServerState};
use self::body::RequestBody;
use self::connection::{Connection, NoHead};
use self::fault::Fault;
use self::incoming::{Incoming, Lease};
use self::pool::Pool;
use self::upload::Upload;
use crate::http1::response::ResponseHead;
use crate::observe::events;
use crate::plan::{ServerAddress, UpstreamSpec};

/// One upstream as one worker sees it: its own pooled connections, the process's view of health.
#[derive(Debug)]
pub struct Upstream {
    spec: UpstreamSpec,
    servers: Vec<Server>,
    chooser: Chooser,
}

#[derive(Debug)]
struct Server {
    address: ServerAddress,
    state: Arc<ServerState>,
    pool: Arc<Pool>,
}

/// A request's head as a server is sent it.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'r> {
    /// The method.
    pub method: &'r Method,
    /// Path and query.
    pub target: &'r str,
    /// The fields. What frames the body is taken from the body.
    pub headers: &'r HeaderMap,
    /// More fields, of other names.
    pub more: &'r [(&'r HeaderName, &'r HeaderValue)],
}

/// A response whose body is still to come.
#[derive(Debug)]
pub struct Answered {
    /// The head as the server sends it.
    pub head: ResponseHead,
    /// The body.
    pub body: Incoming,
    /// The server's URL, for the log.
    pub server: Arc<str>,
}

/// Why there is no response.
#[derive(Debug)]
pub enum UpstreamError {
    /// No server could be connected to; this was the last one's answer.
    Connect {
        /// The server.
        server: Arc<str>,
        /// What it said.
        source: io::Error,
    },
    /// The last server that was tried did not take the connection in time.
    ConnectTimeout {
        /// The server.
        server: Arc<str>,
    },
    /// No head within the response timeout.
    ResponseTimeout {
        /// The server.
        server: Arc<str>,
    },
    /// The exchange broke before there was a head, or the head was no HTTP.
    Exchange {
        /// The server.
        server: Arc<str>,
        /// What broke.
        source: Fault,
    },
    /// The body is coded in a way that this proxy would pass on wrongly.
    Coding {
        /// The server.
        server: Arc<str>,
    },
    /// It changed to another protocol, which nobody had offered.
    Switched {
        /// The server.
        server: Arc<str>,
    },
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect { server, source } => write!(f, "cannot connect to {server}: {source}"),
            Self::ConnectTimeout { server } => write!(f, "no connection to {server} in time"),
            Self::ResponseTimeout { server } => write!(f, "no answer from {server} in time"),
            Self::Switched { server } => {
                write!(f, "{server} changed to another protocol without being asked")
            }
            Self::Coding { server } => {
                write!(f, "{server} answered with a transfer coding other than chunked")
            }
            Self::Exchange { server, source } => {
                write!(f, "the exchange with {server} failed: {source}")
            }
        }
    }
}

impl std::error::Error for UpstreamError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Connect { source, .. } => Some(source),
            Self::Exchange { source, .. } => Some(source),
            Self::ConnectTimeout { .. }
            | Self::ResponseTimeout { .. }
            | Self::Coding { .. }
            | Self::Switched { .. } => None,
        }
    }
}

impl Upstream {
    /// An upstream without connections. `states` are its servers' in the spec's order.
    pub fn new(spec: UpstreamSpec, states: &[Arc<ServerState>]) -> Self {
        let servers = spec
            .servers
            .iter()
            .zip(states)
            .map(|(address, state)| Server {
                address: address.clone(),
                state: state.clone(),
                pool: Arc::new(Pool::default()),
            })
            .collect();
        let chooser = Chooser::new(spec.balance);
        Self { spec, servers, chooser }
    }

    /// What it was made from.
    pub fn spec(&self) -> &UpstreamSpec {
        &self.spec
    }

    /// Closes pooled connections that have not been used for a while.
    pub fn prune(&self, now: Instant) {
        for server in &self.servers {
            server.pool.prune(now);
        }
    }

    /// Sends a request (in origin form) and waits for the response's head.
    ///
    /// A server that cannot be connected to makes way for the next one. What was sent and failed
    /// is sent again only where the method is idempotent and the body empty, since nobody knows
    /// what the server did with it.
    ///
    /// # Errors
    /// Where no server answered in time with a head that is HTTP.
    pub async fn send(
        &self,
        head: RequestHead<'_>,
        body: RequestBody,
    ) -> Result<Answered, UpstreamError> {
        let repeatable = body.is_empty() && is_idempotent(head.method);
        let mut upload = Upload::new(head, body);
        let mut retries = self.spec.retries;
        let mut source = Source::Pool;
        loop {
            let error = match self.attempt(&mut upload, source).await {
                Ok(answered) => return Ok(answered),
                Err(error) => error,
            };
            if retries == 0 || !error.may_pass() || !(repeatable || upload.is_untouched()) {
                return Err(error);
            }
            upload.rewind();
            // A server that was started again has closed all of its pooled connections.
            source = Source::New;
            retries -= 1;
        }
    }

    /// Sends once. A pooled connection that turns out to be closed before anything is written does
    /// not count.
    async fn attempt(
        &self,
        upload: &mut Upload,
        source: Source,
    ) -> Result<Answered, UpstreamError> {
        loop {
            let (server, mut connection) = self.connection(source).await?;
            let in_flight = server.state.enter();
            let pooled = connection.pooled;
            let head = connection.head(upload, self.spec.response_timeout).await;
            let name = server.state.url().clone();
            match head {
                Ok(head) => {
                    let (keeps, pool) = (head.keeps, server.pool.clone());
                    let upload = upload.take_rest().map(Box::new);
                    let lease = Lease { connection, upload, keeps, pool, _in_flight: in_flight };
                    let body = match head.status {
                        StatusCode::SWITCHING_PROTOCOLS => Incoming::switched(lease),
                        _ => Incoming::new(head.framing, lease),
                    };
                    return Ok(Answered { head, body, server: name });
                }
                Err(NoHead::TooLate) => {
                    return Err(UpstreamError::ResponseTimeout { server: name });
                }
                Err(NoHead::Fault(source)) => {
                    let error = UpstreamError::Exchange { server: name, source };
                    if !(pooled && upload.is_untouched() && error.may_pass()) {
                        return Err(error);
                    }
                    upload.rewind();
                }
            }
        }
    }

    /// A connection to the server that balancing prefers, or to the next one that can be reached.
    async fn connection(
        &self,
        source: Source,
    ) -> Result<(&Server, Box<Connection>), UpstreamError> {
        let mut tried: SmallVec<[usize; 8]> = SmallVec::new();
        loop {
            let place = self.chooser.choose(&self.servers, &tried);
            let server = &self.servers[place];
            if source == Source::Pool
                && let Some(connection) = server.pool.take()
            {
                return Ok((server, connection));
            }
            let connecting = timeout(self.spec.connect_timeout, connect::open(&server.address));
            let name = server.state.url().clone();
            let error = match connecting.await {
                Ok(Ok(connection)) => {
                    if server.state.reached() {
                        events::server_up(&name);
                    }
                    return Ok((server, connection));
                }
                Ok(Err(source)) => UpstreamError::Connect { server: name, source },
                Err(_) => UpstreamError::ConnectTimeout { server: name },
            };
            if server.state.failed() {
                events::server_down(server.state.url(), &error);
            }
            tried.push(place);
            if tried.len() == self.servers.len() {
                return Err(error);
            }
        }
    }
}

/// Where a connection may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The pool, or a new one where there is none.
    Pool,
    /// A new one in any case.
    New,
}

impl UpstreamError {
    /// Whether the same request may fare better at once.
    fn may_pass(&self) -> bool {
        matches!(self, Self::Exchange { source, .. } if !matches!(source, Fault::Request(_)))
    }
}

/// RFC 9110, 9.2.2.
fn is_idempotent(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET | Method::HEAD | Method::OPTIONS | Method::PUT | Method::DELETE | Method::TRACE
    )
}
