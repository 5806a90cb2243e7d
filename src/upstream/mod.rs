//! The existing API: picks a server, connects or takes a pooled connection, sends, waits, and
//! tries again only where that is safe.

pub mod balance;
pub mod body;
pub mod budget;
mod connect;
mod connection;
mod deadline;
mod error;
mod pool;
mod stream;

use std::sync::Arc;

use http::{Method, Request, Response};
use hyper::body::Incoming;
use smallvec::SmallVec;
use tokio::time::{Instant, timeout};

use self::balance::{Chooser, ServerState};
use self::body::RequestBody;
use self::connection::{Connection, NoHead};
use self::pool::Pool;
use crate::observe::events;
use crate::plan::{ServerAddress, UpstreamSpec};

pub use self::connection::Lease;
pub use self::error::{Cause, UpstreamError};

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

/// There is no response.
#[derive(Debug)]
pub struct Unanswered {
    /// Why.
    pub error: UpstreamError,
    /// The request, where nothing of it was sent.
    pub unsent: Option<Request<RequestBody>>,
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
    pub async fn send(&self, mut request: Request<RequestBody>) -> Result<Answered, Unanswered> {
        let repeatable = request.body().is_empty() && is_idempotent(request.method());
        let mut retries = self.spec.retries;
        let mut source = Source::Pool;
        loop {
            let copy = (repeatable && retries > 0).then(|| copy_of(&request));
            let Unanswered { error, unsent } = match self.attempt(request, source).await {
                Ok(answered) => return Ok(answered),
                Err(unanswered) => unanswered,
            };
            if retries == 0 || !error.may_pass() {
                return Err(Unanswered { error, unsent });
            }
            match unsent.or(copy) {
                Some(again) => request = again,
                None => return Err(Unanswered { error, unsent: None }),
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
    ) -> Result<Answered, Unanswered> {
        loop {
            let (server, mut connection) = match self.connection(source).await {
                Ok(found) => found,
                Err(error) => return Err(Unanswered { error, unsent: Some(request) }),
            };
            let name = server.state.url().clone();
            let in_flight = server.state.enter();
            let body_end = request.body().end();
            let error = match connection.send(request, self.spec.response_timeout).await {
                Ok(response) => {
                    self.reached(server);
                    let pool = server.pool.clone();
                    let lease = Lease { connection, pool, body_end, _in_flight: in_flight };
                    return Ok(Answered { response, lease, server: name });
                }
                Err(NoHead::TooLate) => UpstreamError::ResponseTimeout { server: name },
                Err(NoHead::Failed(mut failure)) => match failure.take_message() {
                    Some(unsent) if connection.is_pooled() => {
                        request = unsent;
                        continue;
                    }
                    unsent => {
                        let (source, heard) = (failure.into_error(), connection.has_heard());
                        let error = UpstreamError::Exchange { server: name, source, heard };
                        return Err(Unanswered { error, unsent });
                    }
                },
            };
            return Err(Unanswered { error, unsent: None });
        }
    }

    /// A server has shown that it is there.
    fn reached(&self, server: &Server) {
        if server.state.reached() {
            events::server_up(server.state.url());
        }
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
                    self.reached(server);
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
