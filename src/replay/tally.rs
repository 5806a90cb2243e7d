//! The counts of a replay: of requests, clients, limits, keys and routes.
//! [`Replay`](super::Replay) hands each [`JudgedRequest`] to [`ReplayTally::count`].

use std::collections::BTreeMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;

use super::judge::{JudgedRequest, MissingFact};
use super::timeline::{Slice, Timeline};
use crate::limit::Mode;
use crate::limit::decision::{Outcome, Verdict};
use crate::limit::key::Key;
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::request::network::client_network;
use crate::settings::{LimitSpec, Settings};
use crate::throttle::RehearsedLimit;

/// The most clients that are counted one by one, and the most keys of each limit. The requests of all others are
/// counted together, so that the memory is bounded for a log of any length.
pub(crate) const MOST_TRACKED: usize = 1_000_000;

/// The counts of one replay.
pub(crate) struct ReplayTally<'p> {
    settings: &'p Settings,
    /// Requests that get an error in place of a decision, by the part of them that is wrong.
    pub(crate) bad: BTreeMap<&'static str, u64>,
    /// Requests that limits refuse, or would refuse but for shadow, because they cannot count them, by the answer in
    /// words.
    pub(crate) refused: BTreeMap<String, u64>,
    /// All requests over the log's time.
    pub(crate) timeline: Timeline,
    /// The clients by address.
    pub(crate) clients: HitTable<IpAddr>,
    /// Each limit, and right after it its candidate.
    pub(crate) limits: Vec<LimitTally<'p>>,
    /// The requests of each route, by the route's index in the settings. The last entry is of those without a route.
    pub(crate) routes: Vec<Slice>,
    /// Requests that are not rejected, but might be: the log does not have all that their limits read.
    pub(crate) undecided: u64,
    /// For each limit that was left out, and each route that may have been missed: the number of requests.
    pub(crate) missing: BTreeMap<MissingFact, u64>,
    /// The indices of the limits by their names.
    indices: HashMap<Name, usize>,
}

/// The counts of one limit, or of one candidate.
pub(crate) struct LimitTally<'p> {
    pub(crate) spec: &'p Arc<LimitSpec>,
    /// The longest time for which it holds a request.
    pub(crate) longest_wait: Duration,
    pub(crate) keys: HitTable<Key>,
    /// The requests to which it applied, and those that it rejects or holds. It holds no request that another
    /// limit rejects.
    pub(crate) timeline: Timeline,
}

/// What happened to each client, or to each key of a limit.
pub(crate) struct HitTable<K> {
    /// Those that are counted one by one.
    pub(crate) table: HashMap<K, HitCount>,
    /// The requests of all others: the table was full when they came.
    pub(crate) untracked: Slice,
}

/// What happened to one client or key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HitCount {
    /// Its requests, and how many of them are held and rejected.
    pub(crate) counts: Slice,
    /// When a request of it was first held or rejected, and when last.
    pub(crate) hit: Option<(Timestamp, Timestamp)>,
}

impl HitCount {
    fn add(&mut self, counted: &Slice, now: Timestamp) {
        self.counts.add(counted);
        if counted.rejected + counted.delayed > 0 {
            self.hit = Some((self.hit.map_or(now, |(first, _)| first), now));
        }
    }
}

impl<K> Default for HitTable<K> {
    fn default() -> Self {
        Self { table: HashMap::new(), untracked: Slice::default() }
    }
}

impl<K: Hash + Eq + Clone> HitTable<K> {
    fn add(&mut self, key: &K, counted: &Slice, now: Timestamp) {
        let is_full = self.table.len() >= MOST_TRACKED;
        match self.table.get_mut(key) {
            Some(count) => count.add(counted, now),
            None if is_full => self.untracked.add(counted),
            None => self.table.entry(key.clone()).or_default().add(counted, now),
        }
    }

    /// Those with a rejected request.
    pub(crate) fn rejected(&self) -> impl Iterator<Item = (&K, &HitCount)> {
        self.table.iter().filter(|(_, count)| count.counts.rejected > 0)
    }

    /// Those with a rejected or held request.
    pub(crate) fn hit(&self) -> impl Iterator<Item = (&K, &HitCount)> {
        self.table.iter().filter(|(_, count)| count.hit.is_some())
    }
}

impl<'p> ReplayTally<'p> {
    /// Nothing counted yet.
    pub(crate) fn new(settings: &'p Settings) -> Self {
        let limits: Vec<_> = settings
            .limits
            .iter()
            .flat_map(|spec| std::iter::once(spec).chain(&spec.candidate))
            .map(LimitTally::new)
            .collect();
        let indices = limits.iter().map(|limit| limit.spec.name.clone()).zip(0..).collect();
        Self {
            settings,
            bad: BTreeMap::new(),
            refused: BTreeMap::new(),
            timeline: Timeline::default(),
            clients: HitTable::default(),
            limits,
            routes: vec![Slice::default(); settings.routes.len() + 1],
            undecided: 0,
            missing: BTreeMap::new(),
            indices,
        }
    }

    /// Counts a request.
    pub(crate) fn count(&mut self, judged: &JudgedRequest<'p>, now: Timestamp) {
        let mut counted = Slice { requests: 1, ..Slice::default() };
        self.timeline.start.get_or_insert(now);
        match &judged.answer {
            Err(bad) => {
                // An enforcing limit refuses it. Other faults are not the limits' doing.
                counted.rejected = u64::from(matches!(*bad, "key" | "cost"));
                *self.bad.entry(*bad).or_default() += 1;
            }
            Ok(answer) => {
                match answer.verdict {
                    Verdict::Refuse { .. } => counted.rejected = 1,
                    Verdict::Pass { wait } if !wait.is_zero() => counted.delayed = 1,
                    Verdict::Pass { .. } => {}
                }
                for limit in answer.limits() {
                    if let Some(index) = self.indices.get(&limit.spec.name) {
                        let tally = &mut self.limits[*index];
                        tally.timeline.start = self.timeline.start;
                        tally.count(&limit, counted.rejected == 0, now);
                    }
                }
            }
        }
        if let Some(why) = &judged.refused {
            *self.refused.entry(why.clone()).or_default() += 1;
        }
        let enforces = |missing: &MissingFact| match missing {
            MissingFact::Limit(limit, _) => self.settings.used[*limit].mode == Mode::Enforce,
            MissingFact::Route(_) => true,
        };
        if counted.rejected == 0 && judged.missing.iter().any(enforces) {
            self.undecided += 1;
        }
        for missing in &judged.missing {
            *self.missing.entry(*missing).or_default() += 1;
        }
        self.timeline.add(now, &counted);
        self.routes[judged.route.unwrap_or(self.settings.routes.len())].add(&counted);
        if let Some(client) = judged.client {
            let client = client_network(client, self.settings.server.prefixes);
            self.clients.add(&client, &counted, now);
        }
    }
}

impl<'p> LimitTally<'p> {
    fn new(spec: &'p Arc<LimitSpec>) -> Self {
        Self {
            spec,
            longest_wait: Duration::ZERO,
            keys: HitTable::default(),
            timeline: Timeline::default(),
        }
    }

    /// Counts what the limit said to a request. `passes` says whether no enforcing limit rejects the request.
    fn count(&mut self, limit: &RehearsedLimit<'_>, passes: bool, now: Timestamp) {
        let mut counted = Slice { requests: 1, ..Slice::default() };
        match limit.decision.outcome {
            Outcome::Delay(wait) if passes => {
                counted.delayed = 1;
                self.longest_wait = self.longest_wait.max(wait);
            }
            Outcome::Reject { .. } => counted.rejected = 1,
            Outcome::Allow | Outcome::Delay(_) => {}
        }
        self.keys.add(&limit.key, &counted, now);
        self.timeline.add(now, &counted);
    }
}
