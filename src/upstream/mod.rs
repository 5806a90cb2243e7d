//! The way to the API's servers. `proxy::forward` calls [`Upstream::send`].
//!
//! [`Upstream::send`] waits for a place (`queue`), picks a server (`balance`) of those that are not set aside
//! (`health`), takes a pooled connection (`pool`) or opens one (`connect`), sends the request, and waits for
//! the response's head (`connection`, `deadline`). A request is tried again only where a second try is safe
//! (`retry`). `body` limits and times the request's body.

pub(crate) mod balance;
pub(crate) mod body;
mod connect;
mod connection;
mod deadline;
mod error;
pub(crate) mod event_timeout;
pub(crate) mod executor;
pub mod health;
mod kept_head;
mod pool;
mod queue;
mod retry;
mod server;
mod stream;
pub(crate) mod times;
pub(crate) mod trailers;
mod wanted;

use std::fmt;
use std::io;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use smallvec::SmallVec;
use tokio::task::spawn_local;
use tokio::time::{Instant, timeout};

use self::balance::{Affinity, Chooser, server_hash};
use self::body::RequestBody;
use self::connect::{ConnectionSource, Connector};
use self::connection::{Connection, NoHead};
use self::health::{ClientId, LONGEST_PAUSE, Standing, Trial, UpstreamState};
use self::kept_head::KeptHead;
use self::pool::{Pool, ShownProtocol};
use self::retry::{RetryBudget, asked_pause, is_idempotent};
use self::server::{InFlight, Server};
use crate::plan::{Scheme, UpstreamSpec};

pub(crate) use self::error::Cause;
pub(crate) use self::error::{ServerFailure, UpstreamError};
pub(crate) use self::queue::RequestSlot;
pub(crate) use self::server::{ConnectionLease, PrivateConnections};
pub(crate) use self::wanted::Wanted;

/// One upstream in one worker. The pooled connections are the worker's own. The servers' health is the
/// process's, shared by all workers.
pub(crate) struct Upstream {
    spec: UpstreamSpec,
    state: Arc<UpstreamState>,
    servers: Vec<Rc<Server>>,
    chooser: Chooser,
    connector: Connector,
    budget: RetryBudget,
}

/// How a request is to be sent.
pub(crate) struct Sending {
    /// Whose request it is.
    pub(crate) client: ClientId,
    /// The route's own time-out for the response's head, if there is one.
    pub(crate) response_timeout: Option<Duration>,
    /// From the request's `hash_key`, where the upstream has one.
    pub(crate) affinity: Option<Affinity>,
    /// What the request needs of its connection.
    pub(crate) wanted: Wanted,
    /// The connections that belong to the request's client, if any do. [`Wanted::Own`] needs them.
    pub(crate) private: Option<Rc<PrivateConnections>>,
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
                Rc::new(Server {
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

    /// Waits for a place among `max_requests`; `None` where there is no such bound.
    ///
    /// # Errors
    /// Where none is free in time.
    pub(crate) async fn enter(&self) -> Result<Option<RequestSlot>, UpstreamError> {
        let Some(most) = self.spec.max_requests else { return Ok(None) };
        let entering = self.state.queue.enter(most, self.spec.queue_timeout);
        Box::pin(entering).await.map(Some).map_err(UpstreamError::Queue)
    }

    /// Sends a request (in origin form) and waits for the response's head. Afterwards `request` is empty, or
    /// it is the whole request again, if no byte of it was sent. `asked` gets the server before it answers,
    /// because this future may be dropped meanwhile.
    ///
    /// A connection that belongs to the client comes first, whatever `balance` says: the server takes its
    /// requests for those of this client.
    ///
    /// If a server cannot be connected to, the next one is tried. If a pooled connection turns out to be
    /// closed, another connection is used. A request that failed after it was sent may have had an effect.
    /// It is sent again only if the server has said that it did not process the request, or if its method is
    /// idempotent and its body empty. Bodies are kept for a second try over HTTP/2 alone: over HTTP/1.1 a
    /// server cannot say that it did not process a request. A server that demands HTTP/1.1 gets the request by
    /// HTTP/1.1, and this is no retry.
    ///
    /// # Errors
    /// Where no server answered in time with a valid HTTP head, or the request was sent to no server.
    // One function, and the request by reference: a request is large, and each call that takes it by value
    // copies it.
    pub(crate) async fn send(
        &self,
        request: &mut Request<RequestBody>,
        sending: Sending,
        mut slot: Option<RequestSlot>,
        mut asked: Option<&mut Option<Arc<str>>>,
    ) -> Result<Answered, UpstreamError> {
        let Sending { client, response_timeout, affinity, mut wanted, private } = sending;
        let response_timeout = response_timeout.unwrap_or(self.spec.response_timeout);
        let whole = request.body().is_empty();
        let repeatable = whole && is_idempotent(request.method());
        self.budget.earn();
        let mut retries = self.spec.retries;
        let mut source = ConnectionSource::Pool;
        let mut failed = Vec::new();
        loop {
            let (mut own, mut trial) = (None, None);
            if failed.is_empty() {
                if let Some(private) = private.as_ref().filter(|_| wanted != Wanted::Http2) {
                    let taking = private.take(&self.servers, self.spec.connect_timeout);
                    own = Box::pin(taking).await;
                }
                trial = self.try_due_servers(repeatable);
            }
            let place = match (&own, trial) {
                (Some((place, _)), _) => *place,
                (None, Some(trial)) => trial,
                (None, None) => self.place(&failed, affinity)?,
            };
            let mut note = |place: usize| {
                if let Some(asked) = asked.as_deref_mut() {
                    *asked = Some(self.servers[place].state.url().clone());
                }
            };
            note(place);
            let is_own = own.is_some() || wanted == Wanted::Own;
            let pooled = match (own, source) {
                (Some((_, connection)), _) => Some(connection),
                (None, ConnectionSource::Pool) => self.servers[place].take(wanted),
                (None, ConnectionSource::New) => None,
            };
            let (place, mut connection) = match pooled {
                Some(connection) => (place, connection),
                // Boxed: most requests find a pooled connection. Their future must not have the room for
                // opening one.
                None => Box::pin(self.connect(place, source, wanted, affinity, &failed)).await?,
            };
            note(place);
            let server = &self.servers[place];
            let in_flight = InFlight::at(server, client, slot.take());
            let (body_end, was_up) = (request.body().end(), server.state.is_up());
            let is_http2 = matches!(connection, Connection::Http2(_));
            let can_repeat = is_http2 || (whole && retries > 0);
            let kept = can_repeat.then(|| KeptHead::of(request));
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
                    if response.status().is_server_error() {
                        server.state.answered_5xx();
                    }
                    if self.spec.respect_retry_after
                        && let Some(pause) = asked_pause(response.status(), response.headers())
                    {
                        self.state.paused(&server.state, pause);
                    }
                    let owner = private.clone().filter(|_| is_own);
                    let lease = ConnectionLease { connection, body_end, in_flight, owner };
                    return Ok(Answered { response, lease });
                }
                Err(failure) => failure,
            };
            let exchange = in_flight.exchange;
            slot = in_flight.into_slot();
            let NoHead { failure, unsent } = failure;
            let changes = matches!(failure, ServerFailure::Http1Required)
                && matches!(wanted, Wanted::Any | Wanted::Http2)
                && server.address.scheme == Scheme::Https;
            if changes {
                server.pool.note(Some(ShownProtocol::Http1Required));
            }
            let is_unsent = unsent.map(|unsent| *request = *unsent).is_some();
            if is_unsent && connection.is_pooled() {
                continue;
            }
            let (may_pass, is_unprocessed) = (failure.may_pass(), failure.is_unprocessed());
            // Perhaps the way to a silent server is gone, and not the server. A new connection takes another way.
            let is_silent =
                matches!(failure, ServerFailure::ResponseTimeout) && !connection.has_heard();
            let is_clients_fault = body_end.fault().is_some();
            let is_known = (may_pass || is_silent) && !is_clients_fault && !connection.breaks();
            let is_bystander = is_known && !failure.is_of_stream();
            // A request that breaks each connection on which it is sent speaks once against a server. A server need not
            // wait for a client that sends its request slowly.
            let is_servers_fault = failure.is_servers_fault()
                && !(is_clients_fault || is_known || failed.contains(&place))
                && !body_end.awaits_client();
            if !is_clients_fault {
                server.state.failed(failure.kind());
            }
            let error = server.failed(failure);
            if is_servers_fault {
                self.state.broke_off(&server.state, exchange, &error);
            }
            let kept = kept.filter(|_| repeatable || is_unprocessed);
            let body = match whole {
                true => Some(RequestBody::empty()),
                false => body_end.take_kept().map(RequestBody::again),
            };
            let again = kept.zip(body).and_then(|(head, body)| head.into_request(body));
            let may_repeat = is_unsent || again.is_some();
            // The end of a shared connection costs one retry, whatever the number of its requests.
            let may_retry = || retries > 0 && may_pass && (is_bystander || self.budget.spend());
            if !(may_repeat && (changes || may_retry())) {
                return Err(error);
            }
            if let Some(again) = again.filter(|_| !is_unsent) {
                *request = again;
            }
            if changes {
                wanted = Wanted::Http1;
                continue;
            }
            // A server that was restarted has closed all its pooled connections. The next try needs a new
            // one. It shares it with no other request: perhaps the answer to this request broke the last one.
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
            spawn_local(async move {
                let opening = connector.open(&server.address, Wanted::Any);
                match timeout(time_limit, opening).await {
                    Ok(Ok(connection)) => {
                        state.connected(&server.state);
                        match connection {
                            Connection::Http1(connection) => server.pool.put(connection),
                            Connection::Http2(shared) => server.pool.share(shared, Wanted::Any),
                        }
                    }
                    // Another trial follows when this one should have ended.
                    Ok(Err(error)) if error::lack(&error).is_some() => {}
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
        let shares = match server.wanted(wanted) {
            Wanted::Any => server.address.scheme == Scheme::H2c || server.pool.has_shared(),
            Wanted::Http2 => true,
            Wanted::Http1 | Wanted::Own => false,
        };
        let is_for_all = source == ConnectionSource::Pool;
        let _turn = match shares && is_for_all {
            true => Some(server.pool.connecting.lock().await),
            false => None,
        };
        if source == ConnectionSource::Pool
            && let Some(connection) = server.take(wanted)
        {
            return Ok(connection);
        }
        let wanted = server.wanted(wanted);
        let mut made_for = if wanted == Wanted::Http2 { Wanted::Any } else { wanted };
        let connection = self.connector.open(&server.address, made_for).await?;
        self.state.connected(&server.state);
        let mut connection = match (connection, wanted) {
            // The server prefers HTTP/1.1. It is asked for HTTP/2 alone.
            (Connection::Http1(ordinary), Wanted::Http2) => {
                match self.connector.open(&server.address, wanted).await {
                    Ok(Connection::Http2(shared)) => {
                        server.pool.put(ordinary);
                        made_for = wanted;
                        Connection::Http2(shared)
                    }
                    Ok(Connection::Http1(_)) | Err(_) => {
                        server.pool.note(Some(ShownProtocol::NoHttp2));
                        Connection::Http1(ordinary)
                    }
                }
            }
            (connection, _) => connection,
        };
        match (&mut connection, made_for) {
            (Connection::Http1(connection), _) => connection.made_for = made_for,
            (Connection::Http2(shared), Wanted::Any | Wanted::Http2) if is_for_all => {
                server.pool.share(shared.clone(), made_for);
            }
            (Connection::Http2(_), Wanted::Any | Wanted::Http2) => {}
            // The server speaks HTTP/2 alone. A connection that was to be HTTP/1.1 is not shared.
            (Connection::Http2(_), Wanted::Http1 | Wanted::Own) => server.pool.note(None),
        }
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
            let failure = match connecting.await {
                Ok(Ok(connection)) => return Ok((place, connection)),
                Ok(Err(error)) if error.kind() != io::ErrorKind::TimedOut => {
                    ServerFailure::Connect(error)
                }
                Ok(Err(_)) | Err(_) => ServerFailure::ConnectTimeout,
            };
            let is_this_machines = failure.is_this_machines();
            server.state.failed(failure.kind());
            let error = server.failed(failure);
            if !is_this_machines {
                self.state.refused(&server.state, &error);
            }
            tried.push(place);
            match self.chooser.choose(&self.servers, &tried, affinity) {
                Some(next) => place = next,
                None => return Err(error),
            }
        }
    }
}
