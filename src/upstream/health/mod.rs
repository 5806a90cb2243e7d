//! Which servers of an upstream get requests. All workers share this state.
//!
//! A server is set aside for three reasons. It refuses connections or breaks off exchanges (for a short time
//! that grows). It fails its health checks (until it passes them again). Or it has asked for a pause with
//! `retry-after`.

pub(crate) mod check;
mod record;
mod server;

use std::fmt::Display;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use self::check::CheckError;
pub(crate) use self::record::ClientId;
pub(super) use self::record::LONGEST_PAUSE;
use self::record::{MOST_BREAKS, ServerRecord};
pub(super) use self::server::ExchangeBegin;
use self::server::HealthChange;
pub(crate) use self::server::ServerState;
pub(super) use self::server::{Standing, Trial};
use super::queue::RequestQueue;
use crate::limit::name::Name;
use crate::observe::events;
use crate::plan::{HealthSpec, UpstreamSpec};
use crate::upstream::{ServerFailure, UpstreamError};
use crate::wire::dialer::Dialer;

/// What the process knows about one upstream: its servers, and the requests that wait for it.
#[derive(Debug)]
pub struct UpstreamState {
    name: Name,
    /// In the order of the upstream's `servers`.
    servers: Vec<Arc<ServerState>>,
    /// The number of servers that are not sound. With it a request need not look at each of hundreds of servers.
    unsound: Arc<AtomicUsize>,
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
        let unsound = before.map(|before| before.unsound.clone()).unwrap_or_default();
        let servers = spec.servers.iter().map(|server| {
            let url = &server.address.url;
            known(url).unwrap_or_else(|| Arc::new(ServerState::new(url, &unsound)))
        });
        let queue = before.map(|before| before.queue.clone()).unwrap_or_default();
        let dialer = before.map(|before| before.dialer.clone()).unwrap_or_default();
        let servers: Vec<_> = servers.collect();
        let arrears = Mutex::new(vec![0; servers.len()]);
        let state = Self { name: spec.name.clone(), servers, unsound, queue, dialer, arrears };
        state.end_unwatched_states(spec);
        state
    }

    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    pub(crate) fn servers(&self) -> &[Arc<ServerState>] {
        &self.servers
    }

    /// Whether all servers are sound, so that there is nothing to remember about them.
    pub(super) fn are_sound(&self) -> bool {
        self.unsound.load(Ordering::Relaxed) == 0
    }

    /// Ends states that would never end with a changed `spec`. Without health checks an ill server would stay ill for
    /// ever. If pauses are not respected any more, earlier pauses end.
    fn end_unwatched_states(&self, spec: &UpstreamSpec) {
        for server in &self.servers {
            self.note(server, &"", |record, _| {
                if spec.health.is_none() {
                    (record.is_ill, record.was_checked, record.contrary_checks) = (false, false, 0);
                }
                if !spec.respect_retry_after {
                    record.paused_until = None;
                }
            });
        }
    }

    /// A server refused a connection, or did not take it in time.
    pub(super) fn refused(&self, server: &ServerState, error: &dyn Display) {
        self.note(server, error, |record, now| {
            // If no server is open, each request tries one that is set aside. A failure of such a try does
            // not set the server aside for longer.
            if record.aside_until.is_none_or(|until| until <= now) {
                record.set_aside(now);
            }
        });
    }

    /// A server refused a connection that no request needs. If the server was set aside already, it is now set aside
    /// for longer.
    pub(super) fn refused_trial(&self, server: &ServerState, failure: ServerFailure) {
        let error = UpstreamError::Server { server: server.url().clone(), failure };
        self.note(server, &error, |record, now| record.set_aside(now));
    }

    /// A server took a connection. This brings back a server that refused connections.
    pub(super) fn connected(&self, server: &ServerState) {
        if !server.is_sound() {
            self.note(server, &"", |record, _| {
                if record.breaks < MOST_BREAKS {
                    record.aside_until = None;
                }
            });
        }
    }

    /// A server broke off an exchange, or did not answer in time. `is_trial` says whether the exchange tried the server,
    /// which was set aside.
    pub(super) fn broke_off(
        &self,
        server: &ServerState,
        exchange: ExchangeBegin,
        is_trial: bool,
        error: &dyn Display,
    ) {
        if server.broke(exchange) {
            let answered = server.answered();
            self.note(server, error, |record, now| {
                record.breaks_off(exchange.client, is_trial, &answered, now);
            });
        }
    }

    /// The client of a trial has left, or has not sent all of its request. The trial says nothing about the server.
    pub(super) fn trial_left(&self, server: &ServerState) {
        self.note(server, &"", ServerRecord::renew_pause);
    }

    /// An answer of a server came to its end. That does not bring the server back if it is set aside: it may be
    /// finishing its last requests.
    pub(super) fn finished(&self, server: &ServerState, exchange: ExchangeBegin) {
        server.finished(exchange);
        if !server.is_sound() {
            server.note(|record, _| {
                (record.breaks, record.times_aside) = (0, 0);
                record.answers();
            });
        }
    }

    /// The head of an answer came to a request that was sent while the server was set aside. If the server breaks
    /// this answer off, it is set aside for longer.
    pub(super) fn recovered(&self, server: &ServerState) {
        self.note(server, &"", |record, _| {
            (record.breaks, record.aside_until) = (record.breaks.min(MOST_BREAKS - 1), None);
            // When the trial began, it was counted as a time aside, in case no answer would come.
            record.times_aside = record.times_aside.saturating_sub(1);
        });
    }

    /// A server asked for a pause.
    pub(super) fn paused(&self, server: &ServerState, pause: Duration) {
        let reason = format!("it asked for a pause of {} s (retry-after)", pause.as_secs());
        self.note(server, &reason, |record, now| {
            record.paused_until = record.paused_until.max(Some(now + pause));
        });
    }

    /// A health check of a server has ended.
    fn checked(&self, server: &ServerState, result: Result<(), CheckError>, spec: &HealthSpec) {
        let error = result.as_ref().err().map_or(&"" as &dyn Display, |error| error);
        let (now, wrong) = (Instant::now(), result.as_ref().err().map(ToString::to_string));
        server.annotate(|notes| notes.last_check = Some((now, wrong)));
        self.note(server, error, |record, _| {
            let was_checked = mem::replace(&mut record.was_checked, true);
            if record.is_ill == result.is_err() {
                record.contrary_checks = 0;
                return;
            }
            record.contrary_checks += 1;
            let needed = match record.is_ill {
                // For a server that is new to this process, the first check decides.
                _ if !was_checked => 1,
                true => spec.healthy_after,
                false => spec.unhealthy_after,
            };
            if record.contrary_checks >= needed {
                (record.is_ill, record.contrary_checks) = (!record.is_ill, 0);
            }
        });
    }

    /// Ends pauses that are over. Returns the servers that were set aside and may be tried now, and how each is tried.
    /// A server is returned at most once in `time_limit`. At most one server is to be tried by a request, and only if
    /// its pause has been over for as long as `overdue`, which has the request's client too. If `overdue` is `None`, no
    /// server is tried by a request.
    pub(super) fn due(
        &self,
        time_limit: Duration,
        overdue: Option<(Duration, ClientId)>,
    ) -> impl Iterator<Item = (usize, Trial)> {
        let mut overdue = overdue;
        self.servers.iter().enumerate().filter_map(move |(index, server)| {
            if server.is_sound() {
                return None;
            }
            self.end_pause(server);
            let trial = server.due(time_limit, overdue)?;
            if trial == Trial::Request {
                overdue = None;
            }
            Some((index, trial))
        })
    }

    /// Ends pauses that are over, and logs that their servers are up. Otherwise only the next request would do so.
    pub(crate) fn end_pauses(&self) {
        self.servers.iter().filter(|server| !server.is_sound()).for_each(|it| self.end_pause(it));
    }

    fn end_pause(&self, server: &ServerState) {
        self.note(server, &"", ServerRecord::end_pause);
    }

    /// Changes the record of a server, and logs what that changed. `error` is why the server went down.
    fn note(
        &self,
        server: &ServerState,
        error: &dyn Display,
        change: impl FnOnce(&mut ServerRecord, Instant),
    ) {
        let name = self.name.as_str();
        let changed = server.note(change);
        if changed.is_some() {
            server.annotate(|notes| {
                (notes.changed, notes.reason) = (Instant::now(), error.to_string())
            });
        }
        match changed {
            None => {}
            Some(HealthChange::Up) => events::server_up(name, server.url()),
            Some(HealthChange::Down) => {
                events::server_down(name, server.url(), error);
                if self.servers.iter().all(|server| !server.is_up()) {
                    events::upstream_down(name, error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
