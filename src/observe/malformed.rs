//! Counts malformed requests, and logs them in summaries: a hostile client must not fill the log.

use std::fmt::Display;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use super::events;
use super::repeated::Repeated;

/// The malformed requests of the whole process.
#[derive(Debug)]
pub struct Malformed {
    told: Repeated<String, IpAddr>,
    count: AtomicU64,
}

impl Default for Malformed {
    fn default() -> Self {
        let told = Repeated::new(|reason: &String, client, count| {
            events::malformed_requests(reason, *client, count);
        });
        Self { told, count: AtomicU64::new(0) }
    }
}

impl Malformed {
    /// A client sent a malformed request at `now`, for this reason.
    pub fn request(&self, reason: &dyn Display, client: IpAddr, now: Instant) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.told.count(reason.to_string(), client, now);
    }

    /// All since the start.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Says how many there were besides, where ten seconds are over. To be called now and then.
    pub fn tick(&self, now: Instant) {
        self.told.tick(now);
    }

    /// Says all that is counted and not yet said, as at the end of the process.
    pub fn flush(&self, now: Instant) {
        self.told.flush(now);
    }
}
