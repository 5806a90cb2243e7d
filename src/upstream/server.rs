//! A server of an upstream, as one worker sees it, and the exchanges that are under way there.

use std::fmt::Display;
use std::sync::Arc;

use super::body::BodyEnd;
use super::connect::Wanted;
use super::connection::Connection;
use super::error::{ServerFailure, UpstreamError};
use super::health::{ServerState, UpstreamState};
use super::pool::Pool;
use super::queue::RequestSlot;
use crate::plan::{Scheme, ServerAddress};

#[derive(Debug)]
pub(super) struct Server {
    pub(super) address: ServerAddress,
    pub(super) weight: u32,
    pub(super) hash: u64,
    pub(super) state: Arc<ServerState>,
    /// What the process knows of all servers.
    pub(super) upstream: Arc<UpstreamState>,
    pub(super) pool: Pool,
}

/// A request under way at a server, until this is dropped.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) server: Arc<Server>,
    /// Its place among `max_requests`.
    slot: Option<RequestSlot>,
}

impl InFlight {
    pub(super) fn at(server: &Arc<Server>, slot: Option<RequestSlot>) -> Self {
        server.state.begin();
        Self { server: server.clone(), slot }
    }

    /// Ends the exchange with this server. The request keeps its slot for another try.
    pub(super) fn into_slot(mut self) -> Option<RequestSlot> {
        self.slot.take()
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.server.state.end();
    }
}

impl Server {
    /// Which protocols a connection to this server may carry. An `h2c` server speaks HTTP/2 alone, so there
    /// is no choice.
    pub(super) fn wanted(&self, wanted: Wanted) -> Wanted {
        match self.address.scheme {
            Scheme::H2c => Wanted::Any,
            Scheme::Http | Scheme::Https => wanted,
        }
    }

    pub(super) fn failed(&self, failure: ServerFailure) -> UpstreamError {
        UpstreamError::Server { server: self.state.url().clone(), failure }
    }

    pub(super) fn take(&self, wanted: Wanted) -> Option<Connection> {
        self.pool.take(self.wanted(wanted))
    }

    /// An answer of the server came to its end.
    fn finished(&self) {
        self.upstream.finished(&self.state);
    }

    /// Keeps a new connection for requests to come.
    pub(super) fn keep(&self, connection: Connection) {
        match connection {
            Connection::Http1(connection) => self.pool.put(connection),
            Connection::Http2(connection) => self.pool.share(connection),
        }
    }
}

/// The connection on which a response's body is coming. Dropping it ends the exchange. The server then
/// learns that the rest is not read.
#[derive(Debug)]
pub(crate) struct ConnectionLease {
    pub(super) connection: Connection,
    pub(super) body_end: BodyEnd,
    pub(super) in_flight: InFlight,
}

impl ConnectionLease {
    /// The server's URL, for the log.
    pub(crate) fn server(&self) -> &Arc<str> {
        self.in_flight.server.state.url()
    }

    /// Marks an HTTP/1.1 connection: it must not be used for another request.
    pub(crate) fn end_soon(&mut self) {
        if let Connection::Http1(connection) = &self.connection {
            connection.watched.spoil();
        }
    }

    /// Notes that the connection carries another protocol from now on.
    pub(crate) fn switch(&self) {
        self.in_flight.server.finished();
        if let Connection::Http1(connection) = &self.connection {
            connection.watched.switch();
        }
    }

    /// The server broke its answer off.
    pub(crate) fn broke_off(&self, error: &dyn Display) {
        let server = &self.in_flight.server;
        if self.connection.breaks() {
            server.upstream.broke_off(&server.state, error);
        }
    }

    /// The response's body has ended. An HTTP/1.1 connection goes back to the pool, unless it is spoilt or
    /// the request's body is still on its way.
    pub(crate) fn release(self) {
        self.in_flight.server.finished();
        if !self.body_end.is_reached() {
            return;
        }
        self.connection.finish();
        if let Connection::Http1(connection) = self.connection
            && !connection.is_spoilt()
        {
            self.in_flight.server.pool.put(connection);
        }
    }
}
