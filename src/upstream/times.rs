//! How long a client may take.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::plan::ServerSpec;

/// The time-outs in force for all clients of a worker, in microseconds. A reload changes them, also for the
/// connections that are open.
#[derive(Debug, Default)]
pub(crate) struct ClientTimes {
    header: AtomicU64,
    idle: AtomicU64,
    body: AtomicU64,
    tunnel: AtomicU64,
}

impl ClientTimes {
    /// From now on the time-outs of this file are in force.
    pub(crate) fn adopt(&self, server: &ServerSpec) {
        for (place, time) in [
            (&self.header, server.header_timeout),
            (&self.idle, server.idle_timeout),
            (&self.body, server.body_timeout),
            (&self.tunnel, server.tunnel_timeout),
        ] {
            place.store(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// For a request's head, and for the handshakes before the first one.
    pub(crate) fn header(&self) -> Duration {
        Self::get(&self.header)
    }

    /// Without a request on the connection.
    pub(crate) fn idle(&self) -> Duration {
        Self::get(&self.idle)
    }

    /// Between two reads of a request's body or two writes of a response.
    pub(crate) fn body(&self) -> Duration {
        Self::get(&self.body)
    }

    /// Without a byte on a connection that has changed to another protocol.
    pub(crate) fn tunnel(&self) -> Duration {
        Self::get(&self.tunnel)
    }

    fn get(place: &AtomicU64) -> Duration {
        Duration::from_micros(place.load(Ordering::Relaxed))
    }
}

/// Times for the tests.
#[cfg(test)]
pub(crate) mod testing {
    use std::sync::Arc;

    use super::*;

    pub(crate) const HEADER: Duration = Duration::from_secs(10);
    pub(crate) const IDLE: Duration = Duration::from_secs(75);
    pub(crate) const BODY: Duration = Duration::from_secs(30);

    /// The default time-outs, with this one for idle connections.
    pub(crate) fn times_with(idle: Duration) -> Arc<ClientTimes> {
        let times = ClientTimes::default();
        let server = ServerSpec {
            header_timeout: HEADER,
            idle_timeout: idle,
            body_timeout: BODY,
            ..ServerSpec::default()
        };
        times.adopt(&server);
        Arc::new(times)
    }
}
