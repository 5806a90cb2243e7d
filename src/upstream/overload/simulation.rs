//! An API of workers with one queue, its clients, and the proxies between them, on a clock of its own. Arrivals and
//! work follow from a seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use super::rule::{LimitChange, LimitRule, SentEnd, SentRequest};
use super::turns::{FairQueue, Waiter};
use super::window::{Micros, SECOND};
use crate::settings::{AnswerGoal, GoalMode, MaxRequests, Priority};

/// How often those who have waited too long are looked for, and how often the rule is told that time passes.
const LOOK: Micros = 10_000;
const TICK: Micros = 100_000;
/// After this time a client tries again that was refused.
const AGAIN: Micros = 100_000;

/// Numbers that look random (splitmix64).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to below 1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(super) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn micros(seconds: f64) -> Micros {
    (seconds * SECOND as f64) as Micros
}

/// Clients that send at one rate, which may change each second.
pub(super) struct Clients {
    /// Requests a second at a time.
    pub(super) rate: Box<dyn Fn(f64) -> f64>,
    pub(super) class: Priority,
    pub(super) key: usize,
    /// The proxy; `None` for those who go past all of them.
    pub(super) proxy: Option<usize>,
}

/// The seconds of work of a request that begins at a time, as one of so many at work.
type Work = Box<dyn Fn(f64, usize, &mut Random) -> f64>;

pub(super) struct ApiCase {
    pub(super) seconds: u32,
    pub(super) goal: f64,
    pub(super) proxies: usize,
    pub(super) sources: Vec<Clients>,
    pub(super) workers: Box<dyn Fn(f64) -> usize>,
    pub(super) work: Work,
    /// By how much the answer comes later, without holding a worker.
    pub(super) later: Box<dyn Fn(f64) -> f64>,
    /// After so many seconds the proxy gives up. The API works on.
    pub(super) timeout: Option<f64>,
    /// How often a client sends a request that failed or was refused.
    pub(super) tries: u32,
}

/// What happened in a second, at the first proxy where it is about one.
#[derive(Clone, Debug, Default)]
pub(super) struct Second {
    pub(super) offered: u32,
    pub(super) refused: u32,
    pub(super) answered: u32,
    pub(super) in_time: u32,
    pub(super) by_class: [u32; 3],
    pub(super) by_key: [u32; 4],
    /// In milliseconds.
    pub(super) took: Vec<u64>,
    pub(super) limit: Option<f64>,
    pub(super) goal_times: u32,
}

pub(super) struct CaseOutcome {
    pub(super) seconds: Vec<Second>,
    /// When which proxy's limit changed, and to what.
    pub(super) changes: Vec<(f64, usize, LimitChange, Option<f64>)>,
    pub(super) limits: Vec<Option<f64>>,
}

impl CaseOutcome {
    pub(super) fn sum(&self, from: usize, to: usize, of: impl Fn(&Second) -> u32) -> f64 {
        let to = to.min(self.seconds.len());
        self.seconds[from..to].iter().map(|second| f64::from(of(second))).sum()
    }

    pub(super) fn refused(&self, from: usize, to: usize) -> f64 {
        self.sum(from, to, |it| it.refused) / self.sum(from, to, |it| it.offered).max(1.0)
    }

    /// The 95th percentile of the API's time, in milliseconds.
    pub(super) fn p95(&self, from: usize, to: usize) -> u64 {
        let to = to.min(self.seconds.len());
        let mut took: Vec<_> = self.seconds[from..to].iter().flat_map(|it| &it.took).collect();
        took.sort_unstable();
        took.get(took.len() * 95 / 100).map_or(0, |took| **took)
    }

    /// How many seconds after `from` nine of ten answers are in time, for five seconds.
    pub(super) fn settled(&self, from: usize) -> Option<usize> {
        let is_good = |it: &Second| it.answered > 0 && it.in_time * 10 >= it.answered * 9;
        self.seconds[from..].windows(5).position(|seconds| seconds.iter().all(is_good))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SimulatedEvent {
    Arrival(usize),
    Again(usize),
    /// A worker is done.
    Worked(usize),
    Answer(usize),
    GivenUp(usize),
    Look,
}

struct SimulatedRequest {
    source: usize,
    tries: u32,
    sent_at: Micros,
    sent: Option<SentRequest>,
    is_over: bool,
}

struct SimulatedProxy {
    rule: LimitRule,
    queue: FairQueue<usize, usize>,
    in_flight: usize,
}

struct Simulation<'c> {
    case: &'c ApiCase,
    random: Random,
    now: Micros,
    events: BinaryHeap<Reverse<(Micros, u64, SimulatedEvent)>>,
    added: u64,
    requests: Vec<SimulatedRequest>,
    proxies: Vec<SimulatedProxy>,
    queued: VecDeque<usize>,
    at_work: usize,
    outcome: CaseOutcome,
}

/// The goal of the cases. Requests do not use its `slower_than`: each is sent with the goal of its case.
pub(super) const GOAL: MaxRequests = MaxRequests::Goal(AnswerGoal {
    slower_than: Duration::from_millis(300),
    at_least: 2,
    mode: GoalMode::Enforce,
});

/// Runs a case.
pub(super) fn run(case: &ApiCase, max_requests: MaxRequests, seed: u64) -> CaseOutcome {
    let proxy = || SimulatedProxy {
        rule: LimitRule::new(max_requests, 0),
        queue: FairQueue::new(),
        in_flight: 0,
    };
    let mut simulation = Simulation {
        case,
        random: Random(seed.wrapping_mul(7_919)),
        now: 0,
        events: BinaryHeap::new(),
        added: 0,
        requests: Vec::new(),
        proxies: (0..case.proxies).map(|_| proxy()).collect(),
        queued: VecDeque::new(),
        at_work: 0,
        outcome: CaseOutcome {
            seconds: vec![Second::default(); case.seconds as usize],
            changes: Vec::new(),
            limits: Vec::new(),
        },
    };
    for source in 0..case.sources.len() {
        simulation.arrive_next(source);
    }
    simulation.at(0, SimulatedEvent::Look);
    let end = micros(f64::from(case.seconds));
    while let Some(Reverse((now, _, event))) = simulation.events.pop()
        && now < end
    {
        simulation.now = now;
        simulation.happens(event);
        simulation.work();
    }
    let Simulation { mut outcome, proxies, .. } = simulation;
    outcome.limits = proxies.iter().map(|proxy| proxy.rule.limit).collect();
    outcome
}

impl Simulation<'_> {
    fn at(&mut self, time: Micros, event: SimulatedEvent) {
        self.added += 1;
        self.events.push(Reverse((time, self.added, event)));
    }

    fn seconds(&self) -> f64 {
        self.now as f64 / SECOND as f64
    }

    fn second(&mut self) -> &mut Second {
        &mut self.outcome.seconds[usize::try_from(self.now / SECOND).unwrap()]
    }

    /// Poisson arrivals. The rate is that of the second.
    fn arrive_next(&mut self, source: usize) {
        let mut time = self.seconds();
        while time < f64::from(self.case.seconds) {
            let rate = (self.case.sources[source].rate)(time);
            let next = time + self.random.exponential(1.0 / rate);
            time = time.floor() + 1.0;
            if next < time {
                return self.at(micros(next), SimulatedEvent::Arrival(source));
            }
        }
    }

    fn happens(&mut self, event: SimulatedEvent) {
        match event {
            SimulatedEvent::Arrival(source) => {
                self.arrive_next(source);
                self.arrive(source, self.case.tries);
            }
            SimulatedEvent::Again(request) => {
                let SimulatedRequest { source, tries, .. } = self.requests[request];
                self.arrive(source, tries - 1);
            }
            SimulatedEvent::Worked(request) => {
                self.at_work -= 1;
                let later = micros((self.case.later)(self.seconds()));
                self.at(self.now + later, SimulatedEvent::Answer(request));
            }
            SimulatedEvent::Answer(request) => self.end(request, SentEnd::Answered),
            SimulatedEvent::GivenUp(request) => self.end(request, SentEnd::Failed),
            SimulatedEvent::Look => self.look(),
        }
    }

    fn arrive(&mut self, source: usize, tries: u32) {
        let number = self.requests.len();
        let request = SimulatedRequest { source, tries, sent_at: 0, sent: None, is_over: false };
        self.requests.push(request);
        let (now, Clients { class, key, proxy, .. }) = (self.now, &self.case.sources[source]);
        let Some(at) = *proxy else { return self.send(number) };
        self.second().offered += 1;
        let proxy = &mut self.proxies[at];
        if proxy.queue.is_empty() && proxy.rule.has_room(proxy.in_flight) {
            proxy.queue.begin(*class, key);
            proxy.in_flight += 1;
            return self.send(number);
        }
        let goal = micros(self.case.goal);
        let patience = if proxy.queue.stands(now) { SECOND.min(goal / 4) } else { SECOND };
        let waiter = Waiter { since: now, until: now + patience, charge: goal, value: number };
        if let Some(evicted) = proxy.queue.wait(*class, key, waiter) {
            self.refuse(evicted.value);
        }
    }

    fn refuse(&mut self, request: usize) {
        self.second().refused += 1;
        self.try_again(request);
    }

    fn try_again(&mut self, request: usize) {
        if self.requests[request].tries > 1 {
            self.at(self.now + AGAIN, SimulatedEvent::Again(request));
        }
    }

    fn send(&mut self, number: usize) {
        let request = &mut self.requests[number];
        request.sent_at = self.now;
        if let Some(at) = self.case.sources[request.source].proxy {
            let SimulatedProxy { rule, in_flight, .. } = &mut self.proxies[at];
            request.sent = Some(rule.sent(micros(self.case.goal), *in_flight, self.now));
            if let Some(timeout) = self.case.timeout {
                self.at(self.now + micros(timeout), SimulatedEvent::GivenUp(number));
            }
        }
        self.queued.push_back(number);
    }

    fn end(&mut self, number: usize, end: SentEnd) {
        let request = &mut self.requests[number];
        let source = &self.case.sources[request.source];
        let Some(at) = source.proxy.filter(|_| !request.is_over) else { return };
        request.is_over = true;
        let (took, sent) = (self.now - request.sent_at, request.sent.unwrap());
        let proxy = &mut self.proxies[at];
        proxy.in_flight -= 1;
        proxy.rule.ended(sent, end, proxy.in_flight, self.now);
        proxy.queue.end(source.class, &source.key, took);
        self.note(at);
        if end == SentEnd::Answered {
            let in_time = took <= micros(self.case.goal);
            let second = self.second();
            second.answered += 1;
            second.in_time += u32::from(in_time);
            second.by_class[source.class as usize] += 1;
            second.by_key[source.key] += 1;
            second.took.push(took / 1_000);
        } else {
            self.try_again(number);
        }
        self.advance(at);
    }

    fn advance(&mut self, at: usize) {
        while self.proxies[at].rule.has_room(self.proxies[at].in_flight) {
            let Some(next) = self.proxies[at].queue.next(|_| true) else { return };
            self.proxies[at].in_flight += 1;
            self.send(next.value);
        }
    }

    fn note(&mut self, at: usize) {
        let (seconds, rule) = (self.seconds(), &mut self.proxies[at].rule);
        let limit = rule.limit;
        let changes = rule.changes.drain(..).map(|change| (seconds, at, change, limit));
        self.outcome.changes.extend(changes);
    }

    fn look(&mut self) {
        for at in 0..self.proxies.len() {
            let now = self.now;
            let proxy = &mut self.proxies[at];
            if proxy.in_flight > 0 && now.is_multiple_of(TICK) {
                proxy.rule.tick(proxy.in_flight, now);
                self.note(at);
            }
            for late in self.proxies[at].queue.drain(|waiter| waiter.until <= now) {
                self.refuse(late.value);
            }
            self.advance(at);
        }
        let (limit, goal_times) = (self.proxies[0].rule.limit, self.proxies[0].rule.goal_times());
        let second = self.second();
        (second.limit, second.goal_times) = (limit, goal_times);
        self.at(self.now + LOOK, SimulatedEvent::Look);
    }

    /// Gives work to workers that have none.
    fn work(&mut self) {
        while self.at_work < (self.case.workers)(self.seconds())
            && let Some(request) = self.queued.pop_front()
        {
            self.at_work += 1;
            let work = (self.case.work)(self.seconds(), self.at_work, &mut self.random);
            self.at(self.now + micros(work), SimulatedEvent::Worked(request));
        }
    }
}
