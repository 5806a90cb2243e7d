//! Opens connections for requests, and tries servers that were set aside.

use std::io;
use std::mem;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::task::spawn_local;

use super::connection::Connection;
use super::error::in_time;
use super::health::{Event, LONGEST_PAUSE, Trial};
use super::pool::ShownProtocol;
use super::retry::Tries;
use super::server::Server;
use super::{Purpose, Upstream, UpstreamError};

impl Upstream {
    /// Tries servers that were set aside and whose pause is over. No client waits for the connections that
    /// are tried. Returns the index of a server that this request itself has to try. A request that is not
    /// repeatable tries a server only if no other request has done so for [`LONGEST_PAUSE`].
    pub(super) fn try_due_servers(&self, tries: &Tries) -> Option<usize> {
        if self.state.are_sound() {
            return None;
        }
        let mut trial = None;
        let time_limit = self.spec.connect_timeout;
        // If this attempt is lost, as in a reload, another attempt follows at the time when this one should have ended.
        let overdue = if tries.is_repeatable { Duration::ZERO } else { LONGEST_PAUSE };
        for (index, how) in self.state.due(time_limit * 2, Some((overdue, tries.sending.client))) {
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

    /// A connection for a request. For its first try this may be a shared one that another request has opened
    /// meanwhile. After a failure it is a new one that no other request shares: perhaps the answer to this request
    /// broke the last one.
    async fn open(&self, server: &Server, tries: &Tries) -> io::Result<Connection> {
        let wanted = tries.sending.wanted;
        if !tries.failed.is_empty() {
            return Ok(self.open_new(server, wanted).await?.0);
        }
        let _alone = match server.shares(wanted) {
            true => Some(server.pool.connecting.lock().await),
            false => None,
        };
        if let Some(connection) = server.take(wanted, tries.needs_life()) {
            return Ok(connection);
        }
        let (connection, made_for) = self.open_new(server, wanted).await?;
        if let Connection::Http2(shared) = &connection
            && matches!(made_for, Purpose::Any | Purpose::Http2)
        {
            server.pool.share(shared.clone(), made_for);
        }
        Ok(connection)
    }

    /// A new connection to a server, and what it was made for.
    async fn open_new(
        &self,
        server: &Server,
        wanted: Purpose,
    ) -> io::Result<(Connection, Purpose)> {
        let wanted = server.wanted(wanted);
        let mut made_for = if wanted == Purpose::Http2 { Purpose::Any } else { wanted };
        let mut connection = self.connector.open(&server.address, made_for).await?;
        self.state.note(&server.state, Event::Connected, &"");
        match &mut connection {
            // The server prefers HTTP/1.1. It is asked for HTTP/2 alone.
            Connection::Http1(_) if wanted == Purpose::Http2 => {
                match self.connector.open(&server.address, wanted).await {
                    Ok(shared @ Connection::Http2(_)) => {
                        made_for = wanted;
                        if let Connection::Http1(it) = mem::replace(&mut connection, shared) {
                            server.pool.put(it);
                        }
                    }
                    Ok(_) | Err(_) => server.pool.note(Some(ShownProtocol::NoHttp2)),
                }
            }
            Connection::Http1(connection) => connection.made_for = made_for,
            // The server speaks HTTP/2 alone. A connection that was to be HTTP/1.1 is not shared.
            Connection::Http2(_) if matches!(made_for, Purpose::Http1 | Purpose::Own) => {
                server.pool.note(None);
            }
            Connection::Http2(_) => {}
        }
        Ok((connection, made_for))
    }

    /// A connection to the server at this index, or to the next server that can be reached, and its index. It is none
    /// of the servers at which the request has failed.
    pub(super) async fn connect(
        &self,
        mut index: usize,
        tries: &Tries,
    ) -> Result<(usize, Connection), UpstreamError> {
        let mut tried: SmallVec<[usize; 8]> = SmallVec::from_slice(&tries.failed);
        loop {
            let server = &self.servers[index];
            let connecting = self.open(server, tries);
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
            match self.chooser.choose(&self.servers, &tried, tries.sending.affinity) {
                Some(next) => index = next,
                None => return Err(error),
            }
        }
    }
}
