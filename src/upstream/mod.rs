//! The way to the API's servers. `proxy::forward` calls [`Upstream::send`].
//!
//! [`Upstream::send`] (`send`) waits for a permit (`queue`), picks a server (`balance`) of those that are not set
//! aside (`health`), takes a pooled connection (`pool`) or opens one (`connect`), sends the request, and waits
//! for the response's head (`connection`, `deadline`). A request is tried again only if a second try is safe
//! (`retry`). `body` limits and times the request's body, and `progress` notes how far it has come.

pub(crate) mod balance;
pub(crate) mod body;
mod connect;
mod connection;
mod deadline;
mod error;
pub(crate) mod event_timeout;
pub(crate) mod executor;
pub(crate) mod fetch;
pub mod health;
mod kept_head;
pub(crate) mod overload;
mod pool;
pub(crate) mod progress;
mod purpose;
mod queue;
mod retry;
mod send;
mod server;
mod stream;
pub(crate) mod times;
pub(crate) mod trailers;

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Response};
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tokio::time::Instant;

use self::balance::{Affinity, Chooser, server_hash};
use self::body::RequestBody;
use self::connect::Connector;
use self::health::{ClientId, UpstreamState};
use self::pool::Pool;
use self::retry::RetryBudget;
use self::server::Server;
use crate::settings::UpstreamSpec;

pub(crate) use self::error::Cause;
pub(crate) use self::error::{ServerFailure, UpstreamError};
pub(crate) use self::purpose::Purpose;
use self::queue::Entered;
pub(crate) use self::queue::{QueueError, RequestOrigin, RequestPermit};
pub(crate) use self::server::ConnectionLease;

/// Stands in the refusal of a request because the API has as many as it can answer in time.
pub(crate) const TIDEGATE_OVERLOAD: HeaderName = HeaderName::from_static("tidegate-overload");

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
    /// From the request's `hash_key`, if the upstream has one.
    pub(crate) affinity: Option<Affinity>,
    /// What the request needs of its connection.
    pub(crate) wanted: Purpose,
    /// Dropped when the exchange is over, for a request that outlives its client.
    pub(crate) open: Option<oneshot::Sender<()>>,
}

/// A response whose body is still to come, and its connection.
#[derive(Debug)]
pub(crate) struct UpstreamResponse {
    /// Head and body as the server sends them.
    pub(crate) response: Response<Incoming>,
    /// The connection. It must be kept until the body has ended.
    pub(crate) lease: ConnectionLease,
}

/// Why a request got no answer.
#[derive(Debug)]
pub(crate) struct Unanswered {
    pub(crate) error: UpstreamError,
    /// The request's body, if no byte of the request was sent.
    pub(crate) unsent: Option<RequestBody>,
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
        let chooser = Chooser::new(spec.balance.clone(), Arc::clone(&state), &servers);
        let (connector, budget) =
            (Connector::new(&spec, state.dialer.clone()), RetryBudget::default());
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

    /// Waits for permits for one of `max_requests` requests. `by` says whose request it is. Returns `None` if the upstream
    /// has no `max_requests`.
    ///
    /// # Errors
    /// If no permit was free in time.
    pub(crate) async fn enter(
        &self,
        by: impl FnOnce() -> RequestOrigin,
    ) -> Result<Option<Entered>, QueueError> {
        if self.spec.max_requests.is_none() {
            return Ok(None);
        }
        let queue = &self.state.queue;
        match queue.enter(by()) {
            Ok(entered) => Ok(Some(entered)),
            Err(by) => Box::pin(queue.clone().wait(by, self.spec.queue_timeout)).await.map(Some),
        }
    }

    /// Whether a limit is in force, so that a request may have to wait.
    pub(crate) fn is_bound(&self) -> bool {
        self.state.queue.is_bound()
    }
}
