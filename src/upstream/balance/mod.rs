//! Chooses the server for a request.

use std::rc::Rc;
use std::sync::Arc;

use siphasher::sip::SipHasher13;
use smallvec::SmallVec;

use super::Server;
use super::health::{Health, UpstreamState};
use crate::limit::key::Key;
use crate::settings::Balance;

/// The hash of a request's `hash_key`. It is the same on every proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Affinity(u64);

impl Affinity {
    /// The affinity of a request with this key.
    pub(crate) fn of(key: &Key) -> Self {
        Self(SipHasher13::new().hash(key.as_bytes()))
    }

    /// The score of a server for this affinity: weighted rendezvous hashing (Schindelhauer and Schomaker, "Weighted
    /// Distributed Hash Tables", 2005, the logarithmic method). The server with the highest score gets the request. If
    /// a server is added or removed, only its own requests move.
    fn pull(self, server: &Server) -> f64 {
        let mixed = spread(self.0 ^ server.hash);
        // Above 0 and below 1.
        let share = ((mixed >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
        f64::from(server.weight) / -share.ln()
    }
}

/// The hash of a server's URL, for [`Affinity`].
pub(super) fn server_hash(url: &str) -> u64 {
    SipHasher13::new().hash(url.as_bytes())
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): each bit of the result depends on all bits.
fn spread(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

/// Chooses servers for one worker.
#[derive(Debug)]
pub(super) struct Chooser {
    balance: Balance,
    upstream: Arc<UpstreamState>,
    /// For each server, its weight together with the weights of the servers before it.
    weights: Vec<u64>,
}

/// The indices of the servers that may be chosen.
type Candidates = SmallVec<[usize; 8]>;

impl Chooser {
    pub(super) fn new(
        balance: Balance,
        upstream: Arc<UpstreamState>,
        servers: &[Rc<Server>],
    ) -> Self {
        let add = |sum: &mut u64, server: &Rc<Server>| {
            *sum += u64::from(server.weight);
            Some(*sum)
        };
        Self { balance, upstream, weights: servers.iter().scan(0, add).collect() }
    }

    /// The index of a server that is not in `tried`. A server that is set aside is chosen only if no other is
    /// left. `None` if each server was tried or has asked for a pause.
    pub(super) fn choose(
        &self,
        servers: &[Rc<Server>],
        tried: &[usize],
        affinity: Option<Affinity>,
    ) -> Option<usize> {
        if let [server] = servers {
            let may = tried.is_empty() && !matches!(server.state.health(), Health::Paused(_));
            return may.then_some(0);
        }
        let untried = |index| !tried.contains(&index);
        match (&self.balance, affinity) {
            (Balance::RoundRobin, _) => self.next_in_turn(servers, &candidates(servers, untried)),
            (Balance::Hash(_), Some(affinity)) => {
                most_drawn(servers, &candidates(servers, untried), affinity)
            }
            (Balance::LeastRequests | Balance::Hash(_), _) => self.least_requests(servers, untried),
        }
    }

    /// Draws two servers by their weights and takes the first one. Takes the second one if, with this request, it
    /// would have no more requests in flight for its weight than the first one has now (Mitzenmacher, "The Power
    /// of Two Choices in Randomized Load Balancing", 2001). An idle server of a small weight is therefore not
    /// always taken.
    fn least_requests(
        &self,
        servers: &[Rc<Server>],
        untried: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let first = self.draw(servers, &untried, None)?;
        let Some(second) = self.draw(servers, &untried, Some(first)) else { return Some(first) };
        let load = |index: usize| servers[index].state.in_flight();
        let weight = |index: usize| u64::from(servers[index].weight);
        // Compares load / weight, without the division.
        let is_second_better = (load(second) + 1) * weight(first) <= load(first) * weight(second);
        Some(if is_second_better { second } else { first })
    }

    /// Draws a server by weight, other than `drawn`. The first draws are from all servers, because most servers are
    /// up. If a few draws find no server that may be chosen, a list of the candidates is made.
    fn draw(
        &self,
        servers: &[Rc<Server>],
        untried: impl Fn(usize) -> bool,
        drawn: Option<usize>,
    ) -> Option<usize> {
        const DRAWS: usize = 8;
        for _ in 0..DRAWS {
            let at = fastrand::u64(..*self.weights.last()?);
            let index = self.weights.partition_point(|sum| *sum <= at);
            if servers[index].state.is_up() && Some(index) != drawn && untried(index) {
                return Some(index);
            }
        }
        let mut candidates = candidates(servers, untried);
        candidates.retain(|index| Some(*index) != drawn);
        let weight = |index: &usize| u64::from(servers[*index].weight);
        let mut left = fastrand::u64(..candidates.iter().map(weight).sum::<u64>().max(1));
        candidates.into_iter().find(|index| {
            let is_here = left < weight(index);
            left = left.saturating_sub(weight(index));
            is_here
        })
    }

    /// The smooth weighted round-robin of nginx: at each request, each candidate gains its weight. The candidate with
    /// the highest sum gets the request, and loses the weight of all candidates. All workers share the sums.
    fn next_in_turn(&self, servers: &[Rc<Server>], candidates: &[usize]) -> Option<usize> {
        let mut arrears = self.upstream.arrears.lock();
        let mut total = 0;
        let mut first: Option<(usize, i64)> = None;
        for index in candidates {
            let (weight, lacks) = (i64::from(servers[*index].weight), &mut arrears[*index]);
            *lacks += weight;
            total += weight;
            if first.is_none_or(|(_, most)| *lacks > most) {
                first = Some((*index, *lacks));
            }
        }
        let (index, _) = first?;
        arrears[index] -= total;
        Some(index)
    }
}

/// The servers that may be chosen: those that are up, or else those that are set aside.
fn candidates(servers: &[Rc<Server>], untried: impl Fn(usize) -> bool) -> Candidates {
    let (mut up, mut aside) = (Candidates::new(), Candidates::new());
    for (index, server) in servers.iter().enumerate().filter(|(index, _)| untried(*index)) {
        match server.state.health() {
            Health::Up | Health::Returning => up.push(index),
            Health::Aside | Health::Ill => aside.push(index),
            Health::Paused(_) => {}
        }
    }
    if up.is_empty() { aside } else { up }
}

/// The server with the highest score for a request.
fn most_drawn(servers: &[Rc<Server>], candidates: &[usize], affinity: Affinity) -> Option<usize> {
    let pull = |index: &usize| affinity.pull(&servers[*index]);
    candidates.iter().copied().max_by(|one, other| pull(one).total_cmp(&pull(other)))
}

#[cfg(test)]
mod tests;
