//! The course of a simulation: requests arrive, messages travel, nodes fail.

use std::collections::BTreeMap;
use std::time::Duration;

use super::bound::Bound;
use super::node::SimulatedNode;
use super::random::Random;
use super::server::SimulatedServer;
use super::traffic::{Arrival, Traffic};
use super::{Limit, Scenario, Tally, micros, time};
use crate::limit::decision::{Decision, Outcome};

/// After this time a node does not wait for an answer any more: the default of `store.timeout`.
const TIMEOUT: u64 = 100_000;

const SECOND: u64 = 1_000_000;

/// Plays one simulation to its end.
pub(super) fn play(setting: &Scenario) -> Tally {
    World::new(setting).run()
}

/// A node, with its process and whether it runs.
struct NodeEntry {
    node: Option<SimulatedNode>,
    /// The number of its process. What was meant for an earlier process is thrown away.
    process: u64,
    /// When a stopped process goes on, with all that it had.
    stopped_until: u64,
}

/// A request's question to the server.
#[derive(Clone, Copy)]
struct NodeQuestion {
    index: usize,
    process: u64,
    sent: u64,
    key: usize,
}

enum WorldEvent {
    /// The question, and the time at which the node gets the answer. `None` if it gets none.
    AtServer(NodeQuestion, Option<u64>),
    /// The answer, or `None` once the node waits no longer.
    AtNode(NodeQuestion, Option<Decision>),
    Failure(usize),
    Start(usize),
}

struct World<'s> {
    setting: &'s Scenario,
    limit: Limit,
    server: SimulatedServer,
    bounds: Vec<Bound>,
    entries: Vec<NodeEntry>,
    /// What happens, by its time and a running number.
    events: BTreeMap<(u64, u64), WorldEvent>,
    numbers: u64,
    now: u64,
    network: Random,
    failures: Random,
    figures: Tally,
}

impl<'s> World<'s> {
    fn new(setting: &'s Scenario) -> Self {
        let limit = Limit::of(setting);
        let keys = limit.keys.len();
        let server = SimulatedServer::new(limit.ask, keys);
        let entry = || NodeEntry { node: None, process: 0, stopped_until: 0 };
        let mut world = Self {
            bounds: vec![Bound::of(&limit.ask.algorithm); keys],
            entries: (0..setting.nodes).map(|_| entry()).collect(),
            events: BTreeMap::new(),
            numbers: 0,
            now: 0,
            network: Random::new(setting.seed ^ 1),
            failures: Random::new(setting.seed ^ 2),
            figures: Tally::default(),
            setting,
            limit,
            server,
        };
        for index in 0..setting.nodes {
            let at = world.failures.gap(500_000.0);
            world.put(at, WorldEvent::Start(index));
        }
        world
    }

    fn run(mut self) -> Tally {
        let mut traffic = Traffic::new(self.setting);
        let end = micros(self.setting.length);
        let mut arrival = traffic.next_arrival();
        loop {
            let next = self.events.first_key_value().map_or(u64::MAX, |((at, _), _)| *at);
            self.now = arrival.at.min(next);
            if self.now >= end {
                return self.figures;
            }
            if next > arrival.at {
                self.arrive(&arrival);
                arrival = traffic.next_arrival();
            } else if let Some((_, event)) = self.events.pop_first() {
                self.happen(event);
            }
        }
    }

    fn put(&mut self, at: u64, event: WorldEvent) {
        self.numbers += 1;
        self.events.insert((at, self.numbers), event);
    }

    fn runs(&self, index: usize) -> bool {
        let entry = &self.entries[index];
        entry.node.is_some() && entry.stopped_until <= self.now
    }

    /// A request comes to its node, or to the next one that runs.
    fn arrive(&mut self, arrival: &Arrival) {
        let (nodes, &Arrival { key, to, .. }) = (self.setting.nodes, arrival);
        let Some(index) = (to..to + nodes).map(|it| it % nodes).find(|it| self.runs(*it)) else {
            return;
        };
        self.figures.requests += 1;
        let Some(node) = &self.entries[index].node else { return };
        match node.refuse(&self.limit, key, time(self.now)) {
            Some(retry_after) => {
                self.figures.known_refusals += 1;
                self.check_refusal(key, micros(retry_after));
            }
            None => self.ask(index, key),
        }
    }

    /// The request passes at this moment.
    fn admit(&mut self, key: usize) {
        self.figures.excess = self.figures.excess.max(self.bounds[key].admit(self.now));
    }

    /// Compares a known refusal with what the server would say now.
    fn check_refusal(&mut self, key: usize, known: u64) {
        let Outcome::Reject { retry_after: Some(wait) } = self.server.look(key, self.now).outcome
        else {
            self.figures.wrong_refusals += 1;
            return;
        };
        let wait = micros(wait);
        self.figures.late_refusals += u64::from(known > wait);
        self.figures.earliest = self.figures.earliest.max(wait.saturating_sub(known));
    }

    /// Asks the server. The delays are chosen at once, and whether the question or its answer is lost.
    fn ask(&mut self, index: usize, key: usize) {
        self.figures.calls += 1;
        let process = self.entries[index].process;
        let question = NodeQuestion { index, process, sent: self.now, key };
        let (there, back) = (self.delay(), self.delay());
        let answered = there.zip(back).map(|(there, back)| there + back);
        let answered = answered.filter(|delay| *delay <= TIMEOUT).map(|delay| self.now + delay);
        if let Some(there) = there {
            self.put(self.now + there, WorldEvent::AtServer(question, answered));
        }
        if answered.is_none() {
            self.put(self.now + TIMEOUT, WorldEvent::AtNode(question, None));
        }
    }

    /// How long a message travels. `None` if it is lost. A few take much longer than the others.
    fn delay(&mut self) -> Option<u64> {
        if self.network.happens(self.setting.loss) {
            return None;
        }
        let mean = if self.network.happens(0.01) { 20_000.0 } else { 150.0 };
        Some(100 + self.network.gap(mean))
    }

    fn happen(&mut self, event: WorldEvent) {
        match event {
            WorldEvent::AtServer(question, answered) => self.serve(question, answered),
            WorldEvent::AtNode(question, decision) => {
                let entry = &self.entries[question.index];
                if question.process != entry.process {
                    return;
                }
                match entry.stopped_until {
                    until if until > self.now => {
                        self.put(until, WorldEvent::AtNode(question, decision));
                    }
                    _ => self.hear(question, decision),
                }
            }
            WorldEvent::Failure(index) => self.fail(index),
            WorldEvent::Start(index) => self.start(index),
        }
    }

    fn start(&mut self, index: usize) {
        let node = SimulatedNode::start(self.setting.mode);
        self.numbers += 1;
        let process = self.numbers;
        self.entries[index] = NodeEntry { node: Some(node), process, stopped_until: 0 };
        self.plan_failure(index, self.now);
    }

    fn plan_failure(&mut self, index: usize, from: u64) {
        let after = self.failures.gap(mean(self.setting.lifetime));
        self.put(from + after, WorldEvent::Failure(index));
    }

    /// The node dies, and a new one comes. Or it is stopped, and goes on with what it had.
    fn fail(&mut self, index: usize) {
        let lasts = SECOND + self.failures.gap(mean(self.setting.outage));
        if self.failures.happens(0.5) {
            let failed = &mut self.entries[index];
            (failed.node, failed.process) = (None, 0);
            self.put(self.now + lasts, WorldEvent::Start(index));
        } else {
            self.entries[index].stopped_until = self.now + lasts;
            self.plan_failure(index, self.now + lasts);
        }
    }

    fn serve(&mut self, question: NodeQuestion, answered: Option<u64>) {
        let decision = self.server.take(question.key, self.now);
        let Some(at) = answered else { return };
        // The request counts from now on, and not from when its node gets the answer.
        if decision.outcome.passes() {
            self.admit(question.key);
        }
        self.put(at, WorldEvent::AtNode(question, Some(decision)));
    }

    fn hear(&mut self, question: NodeQuestion, decision: Option<Decision>) {
        let NodeQuestion { index, sent, key, .. } = question;
        let Some(node) = &self.entries[index].node else { return };
        match decision {
            Some(decision) => {
                node.hear(&self.limit, key, decision, time(sent));
                self.figures.admitted += u64::from(decision.outcome.passes());
            }
            None => node.hear_nothing(&self.limit, key),
        }
    }
}

/// Microseconds, for [`Random::gap`].
fn mean(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000_000.0
}
