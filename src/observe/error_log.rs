//! What goes wrong with clients and servers while requests are served. The worker counts it, and the process
//! writes its lines.

use std::time::Duration;

use tokio::time::Instant;

use super::log_interval::LogIntervals;
use super::repeated::{FailedExchanges, MalformedRequests, SlowClients, Summaries};

/// The time between two lines about proxies in front that are not trusted.
const UNTRUSTED_PAUSE: Duration = Duration::from_secs(3600);

/// The errors of the process, which all workers count together.
#[derive(Debug)]
pub(crate) struct ErrorLog {
    /// Exchanges with servers that failed.
    pub(crate) failed: FailedExchanges,
    /// What clients sent that is no HTTP.
    pub(crate) malformed: MalformedRequests,
    /// Clients that took too long.
    pub(crate) slow: SlowClients,
    /// Proxies in front that are not trusted.
    pub(crate) untrusted: LogIntervals<()>,
}

impl Default for ErrorLog {
    fn default() -> Self {
        let (failed, malformed, slow) =
            (FailedExchanges::default(), MalformedRequests::default(), SlowClients::default());
        Self { failed, malformed, slow, untrusted: LogIntervals::new(UNTRUSTED_PAUSE) }
    }
}

impl ErrorLog {
    /// Writes the summaries.
    pub(crate) fn write(&self, which: Summaries, now: Instant) {
        self.failed.write(which, now);
        self.malformed.write(which, now);
        self.slow.write(which, now);
    }
}
