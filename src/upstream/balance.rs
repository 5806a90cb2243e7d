//! Which server of an upstream gets the next request, and which are set aside.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::Server;
use crate::plan::Balance;

/// How long a server is set aside after its first failure in a row; doubled with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest time for which a server is set aside.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What the process knows of one server; shared by all workers.
#[derive(Debug)]
pub struct ServerState {
    url: Arc<str>,
    in_flight: AtomicUsize,
    failures: AtomicU32,
    /// Requests that were tried once more after this server had failed.
    retries: AtomicU64,
    /// Milliseconds after `epoch` until which the server is set aside.
    aside_until: AtomicU64,
    epoch: Instant,
}

impl ServerState {
    /// A server of which nothing is known yet. It counts as up.
    pub fn new(url: &str) -> Self {
        Self {
            url: url.into(),
            in_flight: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            retries: AtomicU64::new(0),
            aside_until: AtomicU64::new(0),
            epoch: Instant::now(),
        }
    }

    /// The server's URL.
    pub fn url(&self) -> &Arc<str> {
        &self.url
    }

    /// Whether the server took the last connection that was tried.
    pub fn is_up(&self) -> bool {
        self.failures.load(Ordering::Relaxed) == 0
    }

    /// Requests that are under way at this server.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Requests that were tried once more after this server had failed.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// A request is tried once more.
    pub(super) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// The server took a connection. Returns whether it was down before.
    pub(super) fn reached(&self) -> bool {
        self.failures.load(Ordering::Relaxed) != 0 && self.failures.swap(0, Ordering::Relaxed) != 0
    }

    /// The server did not take a connection. Returns whether it was up before.
    pub(super) fn failed(&self) -> bool {
        let before = self.failures.fetch_add(1, Ordering::Relaxed);
        let pause = FIRST_PAUSE.saturating_mul(1 << before.min(16)).min(LONGEST_PAUSE);
        self.aside_until.store(millis(self.epoch.elapsed() + pause), Ordering::Relaxed);
        before == 0
    }

    fn is_aside(&self) -> bool {
        !self.is_up() && millis(self.epoch.elapsed()) < self.aside_until.load(Ordering::Relaxed)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// One request under way at a server, counted until this is dropped.
#[derive(Debug)]
pub(super) struct InFlight(Arc<Server>);

impl InFlight {
    pub(super) fn at(server: &Arc<Server>) -> Self {
        server.state.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(server.clone())
    }

    pub(super) fn server(&self) -> &Server {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.state.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Chooses servers for one worker.
#[derive(Debug)]
pub(super) struct Chooser {
    balance: Balance,
    turn: AtomicUsize,
}

impl Chooser {
    pub(super) fn new(balance: Balance) -> Self {
        Self { balance, turn: AtomicUsize::new(0) }
    }

    /// The place of a server that is not in `tried`. A server that is set aside is chosen only if there is
    /// no other.
    pub(super) fn choose(&self, servers: &[Arc<Server>], tried: &[usize]) -> usize {
        if servers.len() < 2 {
            return 0;
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let fit = |aside: bool| {
            let open = move |place: &usize| {
                !tried.contains(place) && (aside || !servers[*place].state.is_aside())
            };
            let mut from_turn = (0..servers.len()).map(|n| (turn + n) % servers.len()).filter(open);
            let first = from_turn.next()?;
            match (self.balance, from_turn.nth(spread(turn) % (servers.len() - 1))) {
                (Balance::LeastRequests, Some(second))
                    if servers[second].state.in_flight() < servers[first].state.in_flight() =>
                {
                    Some(second)
                }
                _ => Some(first),
            }
        };
        fit(false).or_else(|| fit(true)).unwrap_or(0)
    }
}

/// A number that looks random, for the second of the two choices (the first half of SplitMix64's finaliser).
fn spread(turn: usize) -> usize {
    let mut z = (turn as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    usize::try_from(z >> 33).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Endpoint, Scheme, ServerAddress};
    use crate::upstream::pool::Pool;

    fn servers(count: u16) -> Vec<Arc<Server>> {
        (0..count)
            .map(|port| {
                let url = format!("http://127.0.0.1:{port}");
                let endpoint = Endpoint::Tcp { host: "127.0.0.1".into(), port };
                let address = ServerAddress { url: url.clone(), endpoint, scheme: Scheme::Http };
                let (state, pool) = (Arc::new(ServerState::new(&url)), Pool::default());
                Arc::new(Server { address, state, pool })
            })
            .collect()
    }

    #[test]
    fn round_robin_takes_turns() {
        let servers = servers(3);
        let chooser = Chooser::new(Balance::RoundRobin);
        let chosen: Vec<_> = (0..6).map(|_| chooser.choose(&servers, &[])).collect();
        assert_eq!(chosen, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn the_busier_of_two_is_spared() {
        let servers = servers(2);
        let _busy: Vec<_> = (0..5).map(|_| InFlight::at(&servers[0])).collect();
        let chooser = Chooser::new(Balance::LeastRequests);
        assert!((0..10).all(|_| chooser.choose(&servers, &[]) == 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_server_is_set_aside_and_returns() {
        let servers = servers(2);
        let chooser = Chooser::new(Balance::RoundRobin);
        assert!(servers[0].state.failed(), "the first failure is news");
        assert!((0..4).all(|_| chooser.choose(&servers, &[]) == 1));
        assert_eq!(chooser.choose(&servers, &[1]), 0, "better one set aside than none");
        tokio::time::advance(FIRST_PAUSE * 2).await;
        assert!((0..4).any(|_| chooser.choose(&servers, &[]) == 0));
        assert!(!servers[0].state.failed(), "the second is not");
        assert!(servers[0].state.reached(), "that it is back is news");
        assert!(servers[0].state.is_up());
    }

    #[test]
    fn a_guard_counts_while_it_lives() {
        let server = &servers(1)[0];
        let guard = InFlight::at(server);
        assert_eq!(server.state.in_flight(), 1);
        drop(guard);
        assert_eq!(server.state.in_flight(), 0);
    }
}
