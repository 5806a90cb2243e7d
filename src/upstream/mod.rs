//! The way to the API's servers. `proxy::forward` calls [`Upstream::send`].
//!
//! [`Upstream::send`] waits for a place (`queue`), picks a server (`balance`) of those that are not set aside
//! (`health`), takes a pooled connection (`pool`) or opens one (`connect`), sends the request, and waits for
//! the response's head (`connection`, `deadline`). A request is tried again only where a second try is safe
//! (`retry`). `body` limits and times the request's body.

pub(crate) mod balance;
pub(crate) mod body;
pub(crate) mod budget;
mod connect;
mod connection;
mod deadline;
mod error;
pub(crate) mod event_timeout;
pub mod health;
mod kept_head;
pub(crate) mod overhead;
mod pool;
mod queue;
mod retry;
mod server;
mod stream;
pub(crate) mod times;
pub(crate) mod write;

use std::fmt;
use std::io;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use http::header::UPGRADE;
use http::{Request, Response};
use hyper::body::Incoming;
use smallvec::SmallVec;
use tokio::time::{Instant, timeout};

use self::balance::{Affinity, Chooser, server_hash};
use self::body::RequestBody;
use self::connect::{ConnectionSource, Connector, Wanted};
use self::connection::{Connection, NoHead};
use self::health::{LONGEST_PAUSE, Standing, Trial, UpstreamState};
use self::kept_head::KeptHead;
use self::pool::Pool;
use self::retry::{RetryBudget, asked_pause, is_idempotent};
use self::server::{InFlight, Server};
use crate::plan::{Scheme, UpstreamSpec};

pub(crate) use self::error::Cause;
pub(crate) use self::error::{ServerFailure, UpstreamError};
pub(crate) use self::server::ConnectionLease;

/// One upstream in one worker. The pooled connections are the worker's own. The servers' health is the
/// process's, shared by all workers.
pub(crate) struct Upstream {
    spec: UpstreamSpec,
    state: Arc<UpstreamState>,
    servers: Vec<Arc<Server>>,
    chooser: Chooser,
    connector: Connector,
    budget: RetryBudget,
}

/// A response whose body is still to come, and the connection that it comes on.
#[derive(Debug)]
pub(crate) struct Answered {
    /// Head and body as the server sends them.
    pub(crate) response: Response<Incoming>,
    /// The connection. It must be kept until the body has ended.
    pub(crate) lease: ConnectionLease,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("name", &self.spec.name).finish_non_exhaustive()
    }
}

impl Upstream {
    /// An upstream without connections.
    pub(crate) fn new(spec: UpstreamSpec, state: Arc<UpstreamState>) -> Self {
        let servers = spec.servers.iter().zip(state.servers());
        let servers: Vec<_> = servers
            .map(|(server, server_state)| {
                Arc::new(Server {
                    address: server.address.clone(),
                    weight: server.weight,
                    hash: server_hash(&server.address.url),
                    state: server_state.clone(),
                    upstream: state.clone(),
                    pool: Pool::default(),
                })
            })
            .collect();
        let chooser = Chooser::new(spec.balance.clone(), Arc::clone(&state));
        let (connector, budget) = (Connector::new(&spec), RetryBudget::default());
        Self { spec, state, servers, chooser, connector, budget }
    }

    /// The settings from which the upstream was made.
    pub(crate) fn spec(&self) -> &UpstreamSpec {
        &self.spec
    }

    /// Closes pooled connections that are idle for too long, are too old, or were closed by their server.
    pub(crate) fn prune(&self, now: Instant) {
        for server in &self.servers {
            server.pool.prune(now);
        }
    }

    /// Sends a request (in origin form) and waits for the response's head. Afterwards `request` is empty, or
    /// it is the whole request again, if no byte of it was sent. `response_timeout` is the route's own
    /// time-out for the head, if there is one. `affinity` comes from the request's `hash_key`, where the
    /// upstream has one. `asked` gets the server before it answers, because this future may be dropped
    /// meanwhile.
    ///
    /// If a server cannot be connected to, the next one is tried. If a pooled connection turns out to be
    /// closed, another connection is used. A request that failed after it was sent may have had an effect.
    /// It is sent again only if the server has said that it did not process the request, or if its method is
    /// idempotent and its body empty. Bodies are kept for a second try over HTTP/2 alone: over HTTP/1.1 a
    /// server cannot say that it did not process a request.
    ///
    /// # Errors
    /// Where no server answered in time with a valid HTTP head, or the request was sent to no server.
    // One function, and the request by reference: a request is large, and each call that takes it by value
    // copies it.
    pub(crate) async fn send(
        &self,
        request: &mut Request<RequestBody>,
        response_timeout: Option<Duration>,
        affinity: Option<Affinity>,
        mut asked: Option<&mut Option<Arc<str>>>,
    ) -> Result<Answered, UpstreamError> {
        let mut slot = match self.spec.max_requests {
            None => None,
            Some(most) => {
                let entering = self.state.queue.enter(most, self.spec.queue_timeout);
                Some(Box::pin(entering).await.map_err(UpstreamError::Queue)?)
            }
        };
        let response_timeout = response_timeout.unwrap_or(self.spec.response_timeout);
        let whole = request.body().is_empty();
        let repeatable = whole && is_idempotent(request.method());
        let wanted = match request.headers().contains_key(UPGRADE) {
            true => Wanted::Http1,
            false => Wanted::Any,
        };
        self.budget.earn();
        let mut retries = self.spec.retries;
        let mut source = ConnectionSource::Pool;
        let mut failed = Vec::new();
        loop {
            let trial = failed.is_empty().then(|| self.try_due_servers(repeatable)).flatten();
            let place = match trial {
                Some(trial) => trial,
                None => self.place(&failed, affinity)?,
            };
            let mut note = |place: usize| {
                if let Some(asked) = asked.as_deref_mut() {
                    *asked = Some(self.servers[place].state.url().clone());
                }
            };
            note(place);
            let pooled = match source {
                ConnectionSource::Pool => self.servers[place].take(wanted),
                ConnectionSource::New => None,
            };
            let (place, mut connection) = match pooled {
                Some(connection) => (place, connection),
                // Boxed: most requests find a pooled connection. Their future must not have the room for
                // opening one.
                None => Box::pin(self.connect(place, source, wanted, affinity, &failed)).await?,
            };
            note(place);
            let server = &self.servers[place];
            let in_flight = InFlight::at(server, slot.take());
            let (body_end, was_up) = (request.body().end(), server.state.is_up());
            let can_repeat = whole || matches!(connection, Connection::Http2(_));
            let kept = (can_repeat && retries > 0).then(|| KeptHead::of(request));
            if kept.is_some() {
                body_end.keep();
            }
            let sent = mem::replace(request, Request::new(RequestBody::empty()));
            let failure = match connection.send(sent, &server.address, response_timeout).await {
                Ok(response) => {
                    drop(body_end.take_kept());
                    if !was_up {
                        self.state.recovered(&server.state);
                    }
                    if self.spec.respect_retry_after
                        && let Some(pause) = asked_pause(response.status(), response.headers())
                    {
                        self.state.paused(&server.state, pause);
                    }
                    let lease = ConnectionLease { connection, body_end, in_flight };
                    return Ok(Answered { response, lease });
                }
                Err(failure) => failure,
            };
            slot = in_flight.into_slot();
            let NoHead { failure, unsent } = failure;
            // Perhaps the way to the server is gone, and not the server. A new connection takes another way.
            if let (ServerFailure::ResponseTimeout, Connection::Http2(shared)) =
                (&failure, &connection)
                && !connection.has_heard()
            {
                server.pool.retire(shared);
            }
            let is_unsent = unsent.map(|unsent| *request = *unsent).is_some();
            if is_unsent && connection.is_pooled() {
                continue;
            }
            let (may_pass, is_unprocessed) = (failure.may_pass(), failure.is_unprocessed());
            let is_servers_fault = failure.is_servers_fault();
            let error = server.failed(failure);
            if is_servers_fault {
                self.state.broke_off(&server.state, &error);
            }
            let kept = kept.filter(|_| repeatable || is_unprocessed);
            let body = match whole {
                true => Some(RequestBody::empty()),
                false => body_end.take_kept().map(RequestBody::again),
            };
            let again = kept.zip(body).and_then(|(head, body)| head.into_request(body));
            let may_retry = retries > 0 && may_pass && (is_unsent || again.is_some());
            if !may_retry || !self.budget.spend() {
                return Err(error);
            }
            if let Some(again) = again.filter(|_| !is_unsent) {
                *request = again;
            }
            // A server that was restarted has closed all its pooled connections. The next try needs a new
            // one.
            source = ConnectionSource::New;
            failed.push(place);
            server.state.retried();
            retries -= 1;
        }
    }

    /// The place of the server for a request that has `failed` at these servers. It is another server, unless the
    /// request has failed at all of them.
    fn place(&self, failed: &[usize], affinity: Option<Affinity>) -> Result<usize, UpstreamError> {
        let choose = |tried: &[usize]| self.chooser.choose(&self.servers, tried, affinity);
        choose(failed).or_else(|| choose(&[])).ok_or_else(|| self.all_paused())
    }

    /// No server may be asked, since each has asked for a pause.
    fn all_paused(&self) -> UpstreamError {
        let pauses = self.servers.iter().filter_map(|server| match server.state.standing() {
            Standing::Paused(until) => Some(until),
            Standing::Open(_) | Standing::Aside => None,
        });
        // If no pause is left, the last one has ended just now.
        let until = pauses.min().unwrap_or_else(Instant::now);
        UpstreamError::Paused(until.saturating_duration_since(Instant::now()))
    }

    /// Tries servers that were set aside and whose pause is over. No client waits for the connections that
    /// are tried. Returns the place of a server that this request itself has to try. A request that is not
    /// `repeatable` tries a server only if no other request has done so for [`LONGEST_PAUSE`].
    fn try_due_servers(&self, repeatable: bool) -> Option<usize> {
        if self.servers.iter().all(|server| server.state.is_sound()) {
            return None;
        }
        let mut trial = None;
        let time_limit = self.spec.connect_timeout;
        // If the attempt is lost, as in a reload, another one follows when it should have ended.
        let overdue = if repeatable { Duration::ZERO } else { LONGEST_PAUSE };
        for (place, how) in self.state.due(time_limit * 2, overdue) {
            if how == Trial::Request {
                trial = Some(place);
                continue;
            }
            let (server, state) = (self.servers[place].clone(), self.state.clone());
            let connector = self.connector.clone();
            tokio::spawn(async move {
                let wanted = server.wanted(Wanted::Any);
                match timeout(time_limit, connector.open(&server.address, wanted)).await {
                    Ok(Ok(connection)) => {
                        state.connected(&server.state);
                        server.keep(connection);
                    }
                    Ok(Err(_)) | Err(_) => state.refused_again(&server.state),
                }
            });
        }
        trial
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
        self.state.connected(&server.state);
        Ok(connection)
    }

    /// A connection to the server at this place, or to the next server that can be reached, and its place. The
    /// request has `failed` at these servers, so they are not next.
    async fn connect(
        &self,
        mut place: usize,
        source: ConnectionSource,
        wanted: Wanted,
        affinity: Option<Affinity>,
        failed: &[usize],
    ) -> Result<(usize, Connection), UpstreamError> {
        let mut tried: SmallVec<[usize; 8]> = SmallVec::from_slice(failed);
        loop {
            let server = &self.servers[place];
            let connecting = timeout(self.spec.connect_timeout, self.open(server, source, wanted));
            let error = server.failed(match connecting.await {
                Ok(Ok(connection)) => return Ok((place, connection)),
                Ok(Err(error)) if error.kind() != io::ErrorKind::TimedOut => {
                    ServerFailure::Connect(error)
                }
                Ok(Err(_)) | Err(_) => ServerFailure::ConnectTimeout,
            });
            self.state.refused(&server.state, &error);
            tried.push(place);
            match self.chooser.choose(&self.servers, &tried, affinity) {
                Some(next) => place = next,
                None => return Err(error),
            }
        }
    }
}
