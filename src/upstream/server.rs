//! A server of an upstream, as one worker sees it, and the exchanges that are under way there.

use std::fmt::Display;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::connection::Connection;
use super::health::{ClientId, Event, ExchangeBegin, ServerState, UpstreamState};
use super::pool::Pool;
use super::progress::BodyEnd;
use super::purpose::Purpose;
use super::queue::RequestPermit;
use super::stream::ServerStream;
use crate::observe::metrics::UpstreamFailure;
use crate::settings::{Scheme, ServerAddress};
use crate::wire::streams::StreamCosts;

#[derive(Debug)]
pub(super) struct Server {
    pub(super) address: ServerAddress,
    pub(super) weight: u32,
    pub(super) hash: u64,
    pub(super) state: Arc<ServerState>,
    /// What the process knows about all servers.
    pub(super) upstream: Arc<UpstreamState>,
    pub(super) pool: Pool,
}

/// A request under way at a server, until this is dropped.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) server: Rc<Server>,
    pub(super) exchange: ExchangeBegin,
    /// If the upstream has `max_requests`. A request that is sent again keeps it.
    pub(super) permit: Option<RequestPermit>,
    /// It tries the server, which was set aside, and nothing is known yet.
    pub(super) is_open_trial: bool,
    /// Nobody uses its connection afterwards.
    pub(super) is_alone: bool,
}

impl InFlight {
    pub(super) fn at(
        server: &Rc<Server>,
        client: ClientId,
        permit: Option<RequestPermit>,
        is_trial: bool,
    ) -> Self {
        let exchange = server.state.begin(client, is_trial);
        let (server, is_open_trial) = (server.clone(), is_trial);
        Self { server, exchange, permit, is_open_trial, is_alone: false }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.server.state.end();
        if self.is_open_trial {
            self.server.upstream.note(&self.server.state, Event::LeftTrial, &"");
        }
    }
}

impl Server {
    /// The kind of connection that serves a request of this purpose. Without TLS a server has one protocol, so
    /// there is no choice. The connections of HTTP/1.1 are never shared.
    pub(super) fn wanted(&self, wanted: Purpose) -> Purpose {
        match (self.address.scheme, wanted) {
            (Scheme::H2c, Purpose::Own) => Purpose::Own,
            (Scheme::Https, Purpose::Own) => Purpose::Http1,
            (Scheme::Http | Scheme::H2c, _) => Purpose::Any,
            (Scheme::Https, wanted) => wanted,
        }
    }

    /// Whether a new connection of this kind is likely to be shared.
    pub(super) fn shares(&self, wanted: Purpose) -> bool {
        wanted == Purpose::Any && (self.address.scheme == Scheme::H2c || self.pool.has_shared())
    }
}

/// The connection on which a response's body is coming. Dropping it ends the exchange. The server then
/// learns that the rest is not read.
#[derive(Debug)]
pub(crate) struct ConnectionLease {
    pub(super) connection: Connection,
    pub(super) body_end: BodyEnd,
    pub(super) in_flight: InFlight,
    /// Until the exchange is over, its request's body waits although its client has left.
    pub(super) _open: Option<oneshot::Sender<()>>,
}

impl ConnectionLease {
    pub(super) fn begin(connection: Connection, body_end: BodyEnd, in_flight: InFlight) -> Self {
        Self { connection, body_end, in_flight, _open: None }
    }

    /// The server's URL, for the log.
    pub(crate) fn server(&self) -> &Arc<str> {
        self.in_flight.server.state.url()
    }

    /// What the streams of an HTTP/2 connection cost it.
    pub(crate) fn stream_costs(&self) -> Option<&Rc<StreamCosts>> {
        match &self.connection {
            Connection::Http1(_) => None,
            Connection::Http2(shared) => Some(&shared.costs),
        }
    }

    /// Marks an HTTP/1.1 connection: it must not be used for another request.
    pub(crate) fn end_soon(&mut self) {
        if let Connection::Http1(connection) = &self.connection {
            connection.socket.ends_soon.set(true);
        }
    }

    /// Nobody uses the connection after this exchange. A connection of HTTP/2 that other requests share stays shared.
    pub(crate) fn stay_alone(&mut self) {
        self.in_flight.is_alone = true;
    }

    /// Notes that the connection carries another protocol from now on. A tunnel may live for hours, so its permit
    /// goes to the next request. With WebSocket no side reads on when it has closed (RFC 6455, 7.1.1).
    pub(crate) fn switch(&mut self, is_websocket: bool) {
        self.in_flight.permit = None;
        self.in_flight.server.state.finished(self.in_flight.exchange);
        if let Connection::Http1(connection) = &self.connection {
            connection.socket.switch(is_websocket);
        }
    }

    /// Waits for the server's side of the tunnel. `None` if the server has closed it instead.
    pub(crate) async fn switched(&mut self) -> Option<ServerStream> {
        match &mut self.connection {
            Connection::Http1(connection) => connection.switched().await,
            Connection::Http2(_) => None,
        }
    }

    /// The client's side of the tunnel has broken. The server's side ends by a reset, so that it leaves no port
    /// unusable.
    pub(crate) fn abandon(&self) {
        self.connection.abandon();
    }

    /// The server broke its answer off.
    pub(crate) fn broke_off(&self, error: &dyn Display) {
        let server = &self.in_flight.server;
        server.state.failed(UpstreamFailure::Broken);
        if self.connection.breaks() {
            // The head has ended the trial.
            let exchange = ExchangeBegin { is_trial: false, ..self.in_flight.exchange };
            server.upstream.broke_off(&server.state, exchange, error);
        }
    }

    /// The response's body has ended. An HTTP/1.1 connection goes back to the pool, unless it is
    /// unusable or the request's body is still on its way.
    pub(crate) fn release(self) {
        let server = &self.in_flight.server;
        server.state.finished(self.in_flight.exchange);
        if !self.body_end.is_reached() || self.in_flight.is_alone {
            return;
        }
        self.connection.finish();
        if let Connection::Http1(connection) = self.connection
            && !connection.is_unusable()
        {
            server.pool.put(connection);
        }
    }
}
