//! Which servers of an upstream get requests. All workers share this state.
//!
//! A server is set aside for three reasons. It refuses connections or breaks off exchanges (for a short time
//! that grows). It fails its health checks (until it passes them again). Or it has asked for a pause with
//! `retry-after`. What happens to a server changes its record (`record`), which says whether it gets requests.

pub(crate) mod check;
mod record;
mod server;

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use self::check::CheckError;
pub(crate) use self::record::ClientId;
pub(super) use self::record::{Event, ExchangeBegin, Health, LONGEST_PAUSE};
pub(crate) use self::server::ServerState;
use super::queue::RequestQueue;
use crate::limit::name::Name;
use crate::observe::events;
use crate::settings::{HealthSpec, UpstreamSpec};
use crate::wire::dialer::Dialer;

/// What the process knows about one upstream: its servers, and the requests that wait for it.
#[derive(Debug)]
pub struct UpstreamState {
    name: Name,
    /// In the order of the upstream's `servers`.
    servers: Vec<Arc<ServerState>>,
    /// Whether there may be a server that is not just up. If not, a request need not look at each of hundreds of
    /// servers.
    is_troubled: Arc<AtomicBool>,
    pub(super) queue: Arc<RequestQueue>,
    pub(super) dialer: Arc<Dialer>,
    /// For each server the sum of `Balance::RoundRobin`: how far the server is behind its share of requests.
    pub(super) arrears: Mutex<Vec<i64>>,
}

impl UpstreamState {
    /// The state of an upstream. After a reload the state of its servers stays: `before` is the state of the upstream
    /// of the same name.
    pub fn new(spec: &UpstreamSpec, before: Option<&Self>) -> Self {
        let known =
            |url: &str| before?.servers.iter().find(|server| **server.url() == *url).cloned();
        let is_troubled = before.map(|before| before.is_troubled.clone()).unwrap_or_default();
        let servers = spec.servers.iter().map(|server| {
            let url = &server.address.url;
            known(url).unwrap_or_else(|| Arc::new(ServerState::new(url, &is_troubled)))
        });
        let queue = match before {
            Some(before) => before.queue.clone(),
            None => Arc::new(RequestQueue::new(spec)),
        };
        let dialer = before.map(|before| before.dialer.clone()).unwrap_or_default();
        let servers: Vec<_> = servers.collect();
        let arrears = Mutex::new(vec![0; servers.len()]);
        let state = Self { name: spec.name.clone(), servers, is_troubled, queue, dialer, arrears };
        // Without health checks an ill server would stay ill for ever.
        let ended = spec.health.is_none().then_some(Event::Unchecked);
        let ended = [ended, (!spec.respect_retry_after).then_some(Event::Unpaused)];
        for server in &state.servers {
            ended.into_iter().flatten().for_each(|event| state.note(server, event, &""));
        }
        state
    }

    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    pub(crate) fn servers(&self) -> &[Arc<ServerState>] {
        &self.servers
    }

    /// Who waits for the upstream, and whether it is overloaded.
    pub(crate) fn queue(&self) -> &Arc<RequestQueue> {
        &self.queue
    }

    /// Whether all servers are up, and there is nothing to remember about them.
    pub(super) fn are_sound(&self) -> bool {
        !self.is_troubled.load(Ordering::Relaxed)
    }

    /// A server broke off an exchange, or did not answer in time.
    pub(super) fn broke_off(
        &self,
        server: &ServerState,
        exchange: ExchangeBegin,
        error: &dyn Display,
    ) {
        if server.broke(exchange) {
            self.note(server, Event::Broke(exchange), error);
        }
    }

    /// A health check of a server has ended.
    fn checked(&self, server: &ServerState, result: Result<(), CheckError>, spec: &HealthSpec) {
        let wrong = result.as_ref().err().map(ToString::to_string);
        let reason = wrong.clone().unwrap_or_default();
        server.annotate(|notes| notes.last_check = Some((Instant::now(), wrong)));
        self.note(server, Event::Checked(result.is_ok(), spec), &reason);
    }

    /// Ends pauses that are over. Returns the servers that refused connections and may be tried now, each at most once in
    /// `time_limit`.
    fn due(&self, time_limit: Duration) -> impl Iterator<Item = usize> {
        self.servers.iter().enumerate().filter_map(move |(index, server)| {
            self.note(server, Event::Looked, &"");
            server.is_due(time_limit).then_some(index)
        })
    }

    /// Ends pauses that are over. Returns the server that a request of this client is to try, if the server took
    /// connections and did not answer, and its pause has been over for as long as `overdue`.
    pub(super) fn due_for(&self, client: ClientId, overdue: Duration) -> Option<usize> {
        self.servers.iter().position(|server| {
            self.note(server, Event::Looked, &"");
            server.is_due_for(client, overdue)
        })
    }

    /// Ends pauses that are over, and logs that their servers are up. Otherwise only the next request would do so. To be
    /// called about once a second.
    pub(crate) fn end_pauses(&self) {
        if self.are_sound() {
            return;
        }
        let look = || self.servers.iter().for_each(|it| self.note(it, Event::Looked, &""));
        look();
        if self.servers.iter().all(|server| server.health() == Health::Up) {
            self.is_troubled.store(false, Ordering::Relaxed);
            // Something may have happened meanwhile.
            look();
        }
    }

    /// Notes what has happened to a server, and logs what that changed. `reason` is why the server went down.
    pub(super) fn note(&self, server: &ServerState, event: Event<'_>, reason: &dyn Display) {
        let name = self.name.as_str();
        match server.note(event, reason) {
            None => {}
            Some(true) => events::server_up(name, server.url()),
            Some(false) => {
                events::server_down(name, server.url(), reason);
                if self.servers.iter().all(|server| !server.is_up()) {
                    events::upstream_down(name, reason);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
