//! The existing API: picks a server, connects or takes a pooled connection, sends, waits, and
//! tries again only where that is safe.

pub mod balance;
pub mod body;
mod connect;
mod pool;

use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response};
use hyper::body::Incoming;
use smallvec::SmallVec;
use tokio::time::{Instant, timeout, timeout_at};

use self::balance::{Chooser, ServerState};
use self::body::{BodyEnd, RequestBody, Turn};
use self::pool::{Connection, Pool};
use crate::observe::events;
use crate::plan::{ServerAddress, UpstreamSpec};

pub use self::pool::Lease;

/// How far away a timer is set that is not meant to fire.
const FAR: Duration = Duration::from_secs(24 * 3600);

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

/// A response whose body is still to come, and the connection that it comes on.
#[derive(Debug)]
pub struct Answered {
    /// Head and body as the server sends them.
    pub response: Response<Incoming>,
    /// To be kept until the body has ended.
    pub lease: Lease,
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
        source: hyper::Error,
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
                write!(f, "the exchange with {server} failed: {source}")?;
                match std::error::Error::source(source) {
                    Some(cause) => write!(f, ": {cause}"),
                    None => Ok(()),
                }
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
    pub async fn send(&self, mut request: Request<RequestBody>) -> Result<Answered, UpstreamError> {
        let repeatable = request.body().is_empty() && is_idempotent(request.method());
        let mut retries = self.spec.retries;
        let mut source = Source::Pool;
        loop {
            let copy = (repeatable && retries > 0).then(|| copy_of(&request));
            let failed = match self.attempt(request, source).await {
                Ok(answered) => return Ok(answered),
                Err(failed) => failed,
            };
            match failed.unsent.or(copy) {
                Some(again) if retries > 0 && failed.error.may_pass() => request = again,
                _ => return Err(failed.error),
            }
            // A server that was started again has closed all of its pooled connections.
            source = Source::New;
            retries -= 1;
        }
    }

    /// Sends once. A pooled connection that turns out to be closed does not count.
    async fn attempt(
        &self,
        mut request: Request<RequestBody>,
        source: Source,
    ) -> Result<Answered, Failed> {
        loop {
            let (server, mut connection) =
                self.connection(source).await.map_err(|error| Failed { error, unsent: None })?;
            let name = server.state.url().clone();
            let in_flight = server.state.enter();
            let body_end = request.body().end();
            let pooled = connection.pooled;
            let exchange = connection.sender.try_send_request(request);
            let error = match self.head_in_time(exchange, &body_end).await {
                Ok(Ok(response)) => {
                    let pool = server.pool.clone();
                    let lease = Lease { connection, pool, body_end, _in_flight: in_flight };
                    return Ok(Answered { response, lease, server: name });
                }
                Ok(Err(mut failure)) => match failure.take_message() {
                    Some(unsent) if pooled => {
                        request = unsent;
                        continue;
                    }
                    unsent => {
                        let source = failure.into_error();
                        let error = UpstreamError::Exchange { server: name, source };
                        return Err(Failed { error, unsent });
                    }
                },
                Err(TooLate) => UpstreamError::ResponseTimeout { server: name },
            };
            return Err(Failed { error, unsent: None });
        }
    }

    /// Waits for the response's head. The server's time runs from when it got the last of the
    /// request, and not while the client is to send more of it: an upload takes as long as it
    /// takes, and a client that stalls is not the server's fault.
    async fn head_in_time<F: Future>(
        &self,
        exchange: F,
        body_end: &BodyEnd,
    ) -> Result<F::Output, TooLate> {
        let mut exchange = pin!(exchange);
        let sent = Instant::now();
        let mut deadline = self.response_deadline(sent);
        loop {
            if let Ok(head) = timeout_at(deadline, exchange.as_mut()).await {
                return Ok(head);
            }
            let now = Instant::now();
            deadline = self.response_deadline(match body_end.turn() {
                Turn::Client => now,
                Turn::Server(since) => since.unwrap_or(sent),
            });
            if deadline <= now {
                return Err(TooLate);
            }
        }
    }

    fn response_deadline(&self, since: Instant) -> Instant {
        // Looked at again when it is reached, so a limit beyond what the clock can count is kept.
        since.checked_add(self.spec.response_timeout).unwrap_or_else(|| Instant::now() + FAR)
    }

    /// A connection to the server that balancing prefers, or to the next one that can be reached.
    async fn connection(&self, source: Source) -> Result<(&Server, Connection), UpstreamError> {
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

/// The head did not come in time.
struct TooLate;

struct Failed {
    error: UpstreamError,
    /// The request, where nothing of it was sent.
    unsent: Option<Request<RequestBody>>,
}

impl UpstreamError {
    /// Whether the same request may fare better at once.
    fn may_pass(&self) -> bool {
        matches!(self, Self::Exchange { .. })
    }
}

/// RFC 9110, 9.2.2.
fn is_idempotent(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET | Method::HEAD | Method::OPTIONS | Method::PUT | Method::DELETE | Method::TRACE
    )
}

/// The head again, without a body.
fn copy_of(request: &Request<RequestBody>) -> Request<RequestBody> {
    let mut copy = Request::new(RequestBody::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Balance;

    fn upstream(response_timeout: Duration) -> Upstream {
        let spec = UpstreamSpec {
            name: crate::limit::name::Name::new("api").unwrap(),
            servers: Vec::new(),
            balance: Balance::RoundRobin,
            connect_timeout: Duration::from_secs(1),
            response_timeout,
            idle_timeout: Duration::from_secs(1),
            retries: 0,
        };
        Upstream::new(spec, &[])
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_for_an_answer_runs_from_the_last_byte_of_the_request() {
        let upstream = upstream(Duration::from_secs(30));
        let began = Instant::now();
        let end = BodyEnd::default();
        assert!(upstream.head_in_time(std::future::pending::<()>(), &end).await.is_err());
        assert_eq!(began.elapsed(), Duration::from_secs(30), "without a body");

        let end = BodyEnd::begin();
        let sending = async {
            end.await_client();
            tokio::time::sleep(Duration::from_secs(100)).await;
            end.reach();
            std::future::pending::<()>().await;
        };
        let began = Instant::now();
        assert!(upstream.head_in_time(sending, &end).await.is_err());
        assert_eq!(began.elapsed().as_secs(), 130, "not while the client is to send");
    }
}
