//! Errors of clients and servers while requests are served. The workers count the errors, and the process writes the
//! log lines about them.

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::events::{self, RefusedRequests};
use super::repeated::{FailedExchanges, MalformedRequests, Repeated};

/// The errors of the process, which all workers count together.
#[derive(Debug)]
pub(crate) struct ErrorLog {
    /// Exchanges with servers that failed.
    pub(crate) failed: FailedExchanges,
    /// Requests that are not valid HTTP.
    pub(crate) malformed: MalformedRequests,
    /// Requests that were refused with 4xx, and that no limit rejected.
    pub(crate) refused: Repeated<RefusedRequests, IpAddr>,
}

impl Default for ErrorLog {
    fn default() -> Self {
        Self {
            failed: Repeated::new(events::upstream_failed),
            malformed: Repeated::new(events::malformed_requests),
            refused: Repeated::new(events::refused),
        }
    }
}

impl ErrorLog {
    /// Writes the summaries whose last line is at least `interval` old.
    pub(crate) fn write(&self, interval: Duration, now: Instant) {
        self.failed.write(interval, now);
        self.malformed.write(interval, now);
        self.refused.write(interval, now);
    }
}
