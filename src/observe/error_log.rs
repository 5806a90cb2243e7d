//! Errors of clients and servers while requests are served. The workers count the errors, and the process writes the
//! log lines about them.

use std::time::Duration;

use tokio::time::Instant;

use super::events;
use super::log_interval::LogIntervals;
use super::repeated::{FailedExchanges, MalformedRequests, Repeated, SlowClients};

/// The time between two lines about proxies in front that are not trusted.
const UNTRUSTED_PAUSE: Duration = Duration::from_secs(3600);

/// The errors of the process, which all workers count together.
#[derive(Debug)]
pub(crate) struct ErrorLog {
    /// Exchanges with servers that failed.
    pub(crate) failed: FailedExchanges,
    /// Requests that are not valid HTTP.
    pub(crate) malformed: MalformedRequests,
    /// Clients that took too long.
    pub(crate) slow: SlowClients,
    /// Proxies in front that are not trusted.
    pub(crate) untrusted: LogIntervals<()>,
}

impl Default for ErrorLog {
    fn default() -> Self {
        Self {
            failed: Repeated::new(events::upstream_failed),
            malformed: Repeated::new(events::malformed_requests),
            slow: Repeated::new(events::slow_clients),
            untrusted: LogIntervals::new(UNTRUSTED_PAUSE),
        }
    }
}

impl ErrorLog {
    /// Writes the summaries whose last line is at least `interval` old.
    pub(crate) fn write(&self, interval: Duration, now: Instant) {
        self.failed.write(interval, now);
        self.malformed.write(interval, now);
        self.slow.write(interval, now);
    }
}
