//! The course of a simulation: requests arrive, messages travel, nodes fail.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use super::bound::Bound;
use super::node::{NodeAnswer, Returned, SimulatedNode, number};
use super::random::Random;
use super::server::SimulatedServer;
use super::traffic::{Arrival, Traffic};
use super::{Limit, Scenario, Strategy, Tally, micros, time};
use crate::limit::algorithm::Receipt;
use crate::limit::decision::{Decision, Outcome};
use crate::limit::rate::Cost;
use crate::store::claim::Moment;
use crate::store::prefetch::{Fetch, Fetched, WINDOW};

/// After this time a node does not wait for an answer any more: the default of `store.timeout`.
const TIMEOUT: u64 = 100_000;

const SECOND: u64 = 1_000_000;

/// Plays one simulation to its end.
pub(super) fn play(setting: &Scenario) -> Tally {
    World::new(setting).run()
}

/// A node's place, with its process and whether it runs.
struct NodePlace {
    node: Option<SimulatedNode>,
    /// The number of its process. What was meant for an earlier process is thrown away.
    process: u64,
    /// A process that is stopped goes on then, with all that it had.
    stopped_until: u64,
}

/// A message to the server, or the event that no answer to it came.
#[derive(Clone)]
enum Question {
    Request { key: usize, hot: bool },
    Batch(Rc<Fetch>),
    Return(Returned),
    Announcement,
}

enum ServerReply {
    Decision(Decision, Option<Receipt>),
    Processes(u64),
    None,
}

#[derive(Clone)]
struct Message {
    place: usize,
    process: u64,
    sent: u64,
    question: Question,
}

enum WorldEvent {
    /// With the time at which the node hears the answer. `None` where it never does.
    AtServer(Message, Option<u64>),
    AtNode(Message, ServerReply),
    Sweep(usize, u64),
    Announce(usize, u64),
    Failure(usize),
    Start(usize),
}

struct World<'s> {
    setting: &'s Scenario,
    limit: Limit,
    server: SimulatedServer,
    bounds: Vec<Bound>,
    places: Vec<NodePlace>,
    /// What happens, by its time and a running number.
    events: BTreeMap<(u64, u64), WorldEvent>,
    numbers: u64,
    /// When the simulation began, by the clock of the process. Only distances from it count.
    base: Instant,
    now: u64,
    network: Random,
    failures: Random,
    figures: Tally,
}

impl<'s> World<'s> {
    fn new(setting: &'s Scenario) -> Self {
        let limit = Limit::of(setting);
        let base = Instant::now();
        let keys = limit.keys.len();
        let asked = SimulatedNode::start(setting.mode).shared.asked(&limit.spec, &limit.ask);
        let server = SimulatedServer::new(asked, limit.ask, keys);
        let place = || NodePlace { node: None, process: 0, stopped_until: 0 };
        let mut world = Self {
            bounds: vec![server.bound(); keys],
            places: (0..setting.nodes).map(|_| place()).collect(),
            events: BTreeMap::new(),
            numbers: 0,
            now: 0,
            network: Random::new(setting.seed ^ 1),
            failures: Random::new(setting.seed ^ 2),
            figures: Tally::default(),
            setting,
            limit,
            server,
            base,
        };
        for place in 0..setting.nodes {
            let at = world.failures.gap(500_000.0);
            world.put(at, WorldEvent::Start(place));
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

    fn at(&self, time: u64) -> Instant {
        self.base + Duration::from_micros(time)
    }

    fn moment(&self, at: u64) -> Moment {
        Moment { time: time(at), at: self.at(at) }
    }

    /// Whether what happens now counts.
    fn counts(&self, at: u64) -> bool {
        at >= micros(self.setting.warm_up)
    }

    fn runs(&self, place: usize) -> bool {
        let place = &self.places[place];
        place.node.is_some() && place.stopped_until <= self.now
    }

    /// A request comes to its node, or to the next one that runs.
    fn arrive(&mut self, arrival: &Arrival) {
        let (nodes, &Arrival { key, hot, to, .. }) = (self.setting.nodes, arrival);
        let Some(place) = (to..to + nodes).map(|it| it % nodes).find(|it| self.runs(*it)) else {
            return;
        };
        let (counts, moment) = (self.counts(self.now), self.moment(self.now));
        if counts {
            self.figures.requests += 1;
            self.figures.hot_requests += u64::from(hot);
        }
        let Some(node) = &mut self.places[place].node else { return };
        match node.ask(&self.limit, key, moment) {
            NodeAnswer::Passes(to_fetch) => {
                self.admit(key);
                self.count_admitted(self.now, hot);
                self.figures.spent += u64::from(counts);
                to_fetch.into_iter().for_each(|fetch| self.fetch(place, fetch));
            }
            NodeAnswer::Refuses { retry_after } => {
                self.figures.known_refusals += u64::from(counts);
                self.check_refusal(key, micros(retry_after));
            }
            NodeAnswer::Asks => self.send(place, Question::Request { key, hot }),
        }
    }

    /// The request passes at this moment.
    fn admit(&mut self, key: usize) {
        self.figures.excess = self.figures.excess.max(self.bounds[key].admit(self.now));
    }

    fn count_admitted(&mut self, arrived: u64, hot: bool) {
        if self.counts(arrived) {
            self.figures.admitted += 1;
            self.figures.hot_admitted += u64::from(hot);
        }
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

    fn fetch(&mut self, place: usize, fetch: Fetch) {
        self.figures.fetches += u64::from(self.counts(self.now));
        self.send(place, Question::Batch(Rc::new(fetch)));
    }

    /// Sends a message. Its way, and whether it or its answer is lost, is known at once.
    fn send(&mut self, place: usize, question: Question) {
        let is_announcement = matches!(question, Question::Announcement);
        self.figures.calls += u64::from(self.counts(self.now) && !is_announcement);
        let process = self.places[place].process;
        let message = Message { place, process, sent: self.now, question };
        let (there, back) = (self.delay(), self.delay());
        let answered = there.zip(back).map(|(there, back)| there + back);
        let answered = answered.filter(|delay| *delay <= TIMEOUT).map(|delay| self.now + delay);
        if let Some(there) = there {
            self.put(self.now + there, WorldEvent::AtServer(message.clone(), answered));
        }
        if answered.is_none() {
            self.put(self.now + TIMEOUT, WorldEvent::AtNode(message, ServerReply::None));
        }
    }

    /// How long a message travels. `None` where it is lost. A few take much longer than the others.
    fn delay(&mut self) -> Option<u64> {
        if self.network.happens(self.setting.loss) {
            return None;
        }
        let mean = if self.network.happens(0.01) { 20_000.0 } else { 150.0 };
        Some(100 + self.network.gap(mean))
    }

    fn happen(&mut self, event: WorldEvent) {
        match event {
            WorldEvent::AtServer(message, answered) => self.serve(message, answered),
            WorldEvent::AtNode(message, reply) => {
                let place = message.place;
                if message.process == self.places[place].process {
                    match self.wakes(place) {
                        Some(at) => self.put(at, WorldEvent::AtNode(message, reply)),
                        None => self.hear(&message, reply),
                    }
                }
            }
            WorldEvent::Sweep(place, process) if process == self.places[place].process => {
                let now = self.at(self.now);
                if let Some(at) = self.wakes(place) {
                    return self.put(at, WorldEvent::Sweep(place, process));
                }
                let Some(node) = &mut self.places[place].node else { return };
                for returned in node.sweep(now) {
                    self.give_back(place, returned);
                }
                self.put(self.now + micros(WINDOW), WorldEvent::Sweep(place, process));
            }
            WorldEvent::Announce(place, process) if process == self.places[place].process => {
                match self.wakes(place) {
                    Some(at) => self.put(at, WorldEvent::Announce(place, process)),
                    None => self.send(place, Question::Announcement),
                }
            }
            WorldEvent::Sweep(..) | WorldEvent::Announce(..) => {}
            WorldEvent::Failure(place) => self.fail(place),
            WorldEvent::Start(place) => self.start(place),
        }
    }

    /// When this node goes on, where it is stopped.
    fn wakes(&self, place: usize) -> Option<u64> {
        Some(self.places[place].stopped_until).filter(|until| *until > self.now)
    }

    fn start(&mut self, place: usize) {
        let node = SimulatedNode::start(self.setting.mode);
        self.numbers += 1;
        let process = self.numbers;
        self.places[place] = NodePlace { node: Some(node), process, stopped_until: 0 };
        self.put(self.now, WorldEvent::Announce(place, process));
        if self.setting.mode == Strategy::Prefetch {
            self.put(self.now + micros(WINDOW), WorldEvent::Sweep(place, process));
        }
        self.plan_failure(place, self.now);
    }

    fn plan_failure(&mut self, place: usize, from: u64) {
        let after = self.failures.gap(mean(self.setting.lifetime));
        self.put(from + after, WorldEvent::Failure(place));
    }

    /// The node dies, and a new one comes. Or it is stopped, and goes on with what it had.
    fn fail(&mut self, place: usize) {
        let lasts = SECOND + self.failures.gap(mean(self.setting.outage));
        let counts = u64::from(self.counts(self.now));
        if self.failures.happens(0.5) {
            self.figures.deaths += counts;
            let failed = &mut self.places[place];
            (failed.node, failed.process) = (None, 0);
            self.put(self.now + lasts, WorldEvent::Start(place));
        } else {
            self.figures.stops += counts;
            self.places[place].stopped_until = self.now + lasts;
            self.plan_failure(place, self.now + lasts);
        }
    }

    fn serve(&mut self, message: Message, answered: Option<u64>) {
        let now = self.now;
        let reply = match &message.question {
            Question::Request { key, .. } => {
                let (decision, receipt) = self.server.take(*key, Cost::ONE, now);
                // The request counts from now on, and not from when its node hears of it.
                if answered.is_some() && decision.outcome.passes() {
                    self.admit(*key);
                }
                ServerReply::Decision(decision, receipt)
            }
            Question::Batch(fetch) => {
                let ask = fetch.question();
                let (decision, receipt) =
                    self.server.take(number(ask.key.shown()), ask.ask.cost, now);
                ServerReply::Decision(decision, receipt)
            }
            Question::Return((key, tokens, receipt)) => {
                self.server.give_back(*key, *tokens, *receipt, now);
                ServerReply::None
            }
            Question::Announcement => {
                ServerReply::Processes(self.server.announce(message.process, now))
            }
        };
        if let Some(at) = answered {
            self.put(at, WorldEvent::AtNode(message, reply));
        }
    }

    fn hear(&mut self, message: &Message, reply: ServerReply) {
        let (place, sent, counts) = (message.place, message.sent, self.counts(message.sent));
        let (moment, now) = (self.moment(sent), self.at(self.now));
        let Some(node) = &mut self.places[place].node else { return };
        match (&message.question, reply) {
            (Question::Request { key, hot }, ServerReply::Decision(decision, _)) => {
                let to_fetch = node.hear(&self.limit, *key, decision, moment, now);
                if decision.outcome.passes() {
                    self.count_admitted(sent, *hot);
                }
                to_fetch.into_iter().for_each(|fetch| self.fetch(place, fetch));
            }
            (Question::Request { key, .. }, _) => {
                node.hear_nothing(&self.limit, *key);
                self.figures.unanswered += u64::from(counts);
            }
            (Question::Batch(fetch), reply) => {
                let given = match reply {
                    ServerReply::Decision(Decision { remaining, .. }, receipt) => {
                        receipt.map(|receipt| Fetched { remaining, receipt })
                    }
                    _ => None,
                };
                let is_given = counts && given.is_some();
                let back = node.end_fetch(fetch, given);
                self.figures.fetched += fetch.question().ask.cost.get() * u64::from(is_given);
                back.into_iter().for_each(|returned| self.give_back(place, returned));
            }
            (Question::Announcement, reply) => {
                if let ServerReply::Processes(held) = reply {
                    node.count(held, moment.at, now);
                }
                self.put(self.now + SECOND, WorldEvent::Announce(place, message.process));
            }
            (Question::Return(_), _) => {}
        }
    }

    fn give_back(&mut self, place: usize, returned: Returned) {
        self.figures.returned += returned.1 * u64::from(self.counts(self.now));
        self.send(place, Question::Return(returned));
    }
}

/// Microseconds, for [`Random::gap`].
fn mean(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000_000.0
}
