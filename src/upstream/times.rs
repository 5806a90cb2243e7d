//! How long a client may take.

use std::cell::Cell;
use std::time::Duration;

use crate::plan::ServerSpec;

/// The time-outs in force for all clients of a worker. A reload changes them, also for the
/// connections that are open.
#[derive(Debug, Default)]
pub(crate) struct ClientTimes {
    header: Cell<Duration>,
    idle: Cell<Duration>,
    body: Cell<Duration>,
    tunnel: Cell<Duration>,
}

impl ClientTimes {
    /// From now on the time-outs of this file are in force.
    pub(crate) fn adopt(&self, server: &ServerSpec) {
        self.header.set(server.header_timeout);
        self.idle.set(server.idle_timeout);
        self.body.set(server.body_timeout);
        self.tunnel.set(server.tunnel_timeout);
    }

    /// For a request's head, and for the handshakes before the first one.
    pub(crate) fn header(&self) -> Duration {
        self.header.get()
    }

    /// Without a request on the connection.
    pub(crate) fn idle(&self) -> Duration {
        self.idle.get()
    }

    /// Between two reads of a request's body or two writes of a response.
    pub(crate) fn body(&self) -> Duration {
        self.body.get()
    }

    /// Without a byte on a connection that has changed to another protocol.
    pub(crate) fn tunnel(&self) -> Duration {
        self.tunnel.get()
    }
}

/// Times for the tests.
#[cfg(test)]
pub(crate) mod testing {
    use std::rc::Rc;

    use super::*;

    pub(crate) const HEADER: Duration = Duration::from_secs(10);
    pub(crate) const IDLE: Duration = Duration::from_secs(75);
    pub(crate) const BODY: Duration = Duration::from_secs(30);

    /// The default time-outs, with this one for idle connections.
    pub(crate) fn times_with(idle: Duration) -> Rc<ClientTimes> {
        let times = ClientTimes::default();
        let server = ServerSpec {
            header_timeout: HEADER,
            idle_timeout: idle,
            body_timeout: BODY,
            ..ServerSpec::default()
        };
        times.adopt(&server);
        Rc::new(times)
    }
}
