//! Opens connections for requests, and tries servers that were set aside.

use std::io;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::task::spawn_local;

use super::balance::Affinity;
use super::connection::Connection;
use super::error::in_time;
use super::health::{ClientId, Event, LONGEST_PAUSE, Trial};
use super::pool::ShownProtocol;
use super::send::Tries;
use super::server::Server;
use super::{Purpose, Upstream, UpstreamError};
use crate::plan::Scheme;

impl Upstream {
    /// Tries servers that were set aside and whose pause is over. No client waits for the connections that
    /// are tried. Returns the index of a server that this request itself has to try. A request that is not
    /// `repeatable` tries a server only if no other request has done so for [`LONGEST_PAUSE`].
    pub(super) fn try_due_servers(&self, repeatable: bool, client: ClientId) -> Option<usize> {
        if self.state.are_sound() {
            return None;
        }
        let mut trial = None;
        let time_limit = self.spec.connect_timeout;
        // If this attempt is lost, as in a reload, another attempt follows at the time when this one should have ended.
        let overdue = if repeatable { Duration::ZERO } else { LONGEST_PAUSE };
        for (index, how) in self.state.due(time_limit * 2, Some((overdue, client))) {
            if how == Trial::Request {
                trial = Some(index);
                continue;
            }
            let (server, state) = (self.servers[index].clone(), self.state.clone());
            let connector = self.connector.clone();
            spawn_local(async move {
                let opening = connector.open(&server.address, Purpose::Any);
                match state.tried(&server.state, in_time(time_limit, opening).await) {
                    Some(Connection::Http1(connection)) => server.pool.put(connection),
                    Some(Connection::Http2(shared)) => server.pool.share(shared, Purpose::Any),
                    None => {}
                }
            });
        }
        trial
    }

    /// Opens a connection to a server, or takes a shared one that another request has opened meanwhile. A connection
    /// that is not `for_all` is always new, and is not shared.
    async fn open(
        &self,
        server: &Server,
        for_all: bool,
        lively: bool,
        wanted: Purpose,
    ) -> io::Result<Connection> {
        let shares = match server.wanted(wanted) {
            Purpose::Any => server.address.scheme == Scheme::H2c || server.pool.has_shared(),
            Purpose::Http2 => true,
            Purpose::Http1 | Purpose::Own => false,
        };
        let _alone = match shares && for_all {
            true => Some(server.pool.connecting.lock().await),
            false => None,
        };
        if for_all && let Some(connection) = server.take(wanted, lively) {
            return Ok(connection);
        }
        let wanted = server.wanted(wanted);
        let mut made_for = if wanted == Purpose::Http2 { Purpose::Any } else { wanted };
        let connection = self.connector.open(&server.address, made_for).await?;
        self.state.note(&server.state, Event::Connected, &"");
        let mut connection = match (connection, wanted) {
            // The server prefers HTTP/1.1. It is asked for HTTP/2 alone.
            (Connection::Http1(ordinary), Purpose::Http2) => {
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
            (Connection::Http2(shared), Purpose::Any | Purpose::Http2) if for_all => {
                server.pool.share(shared.clone(), made_for);
            }
            (Connection::Http2(_), Purpose::Any | Purpose::Http2) => {}
            // The server speaks HTTP/2 alone. A connection that was to be HTTP/1.1 is not shared.
            (Connection::Http2(_), Purpose::Http1 | Purpose::Own) => server.pool.note(None),
        }
        Ok(connection)
    }

    /// A connection to the server at this index, or to the next server that can be reached, and its index. The
    /// request has `failed` at these servers, so they are not next. A server that was restarted has closed all its
    /// pooled connections, so after a failure the connection is new. It is shared with no other request: perhaps the
    /// answer to this request broke the last one.
    pub(super) async fn connect(
        &self,
        mut index: usize,
        tries: &Tries,
        affinity: Option<Affinity>,
    ) -> Result<(usize, Connection), UpstreamError> {
        let mut tried: SmallVec<[usize; 8]> = SmallVec::from_slice(&tries.failed);
        let (is_first, lively) = (tries.failed.is_empty(), tries.needs_life());
        loop {
            let server = &self.servers[index];
            let connecting = self.open(server, is_first, lively, tries.wanted);
            let failure = match in_time(self.spec.connect_timeout, connecting).await {
                Ok(connection) => return Ok((index, connection)),
                Err(failure) => failure,
            };
            let is_this_machines = failure.is_this_machines();
            server.state.failed(failure.kind());
            let error = server.state.error(failure);
            if !is_this_machines {
                self.state.note(&server.state, Event::Refused, &error);
            }
            tried.push(index);
            match self.chooser.choose(&self.servers, &tried, affinity) {
                Some(next) => index = next,
                None => return Err(error),
            }
        }
    }
}
