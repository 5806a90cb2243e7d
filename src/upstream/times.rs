//! How long a client may take.

use std::time::Duration;

use crate::settings::ServerSpec;

/// The time-outs in force for all clients of a worker. A reload changes them, also for the connections that are
/// open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientTimes {
    /// For a request's head, and for the handshakes before the first one.
    pub(crate) header: Duration,
    /// Without a request on the connection.
    pub(crate) idle: Duration,
    /// Between two reads of a request's body or two writes of a response.
    pub(crate) body: Duration,
    /// Without a byte on a connection that has changed to another protocol.
    pub(crate) tunnel: Duration,
}

impl ClientTimes {
    pub(crate) fn of(server: &ServerSpec) -> Self {
        Self {
            header: server.header_timeout,
            idle: server.idle_timeout,
            body: server.body_timeout,
            tunnel: server.tunnel_timeout,
        }
    }
}

/// Times for the tests.
#[cfg(test)]
pub(crate) mod testing {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    pub(crate) const HEADER: Duration = Duration::from_secs(10);
    pub(crate) const IDLE: Duration = Duration::from_secs(75);
    pub(crate) const BODY: Duration = Duration::from_secs(30);

    /// The default time-outs, with this one for idle connections.
    pub(crate) fn times_with(idle: Duration) -> Rc<Cell<ClientTimes>> {
        Rc::new(Cell::new(ClientTimes { header: HEADER, idle, body: BODY, tunnel: BODY }))
    }
}
