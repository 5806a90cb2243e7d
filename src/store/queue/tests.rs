use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::limit::algorithm::fixed_window::{self, windows::Windows};
use crate::limit::algorithm::sliding_log::{self, Log};
use crate::limit::algorithm::token_bucket::Params;
use crate::limit::algorithm::{
    Algorithm, BucketState, Difference, Receipt, Settlement, Want, leaky_bucket,
};
use crate::limit::decision::Outcome;
use crate::limit::rate::{Burst, Interval, Rate};
use crate::limit::time::Timestamp;
use crate::limit::waiting::MaxWait;

const SECOND: u64 = 1_000_000;
const BEGIN: u64 = 1_700_000_000 * SECOND;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

fn burst(tokens: u64) -> Burst {
    Burst::new(tokens).unwrap()
}

/// A bucket that several processes share.
#[derive(Clone)]
struct Bucket {
    algorithm: Algorithm,
    state: Option<BucketState>,
    log: Log,
}

impl Bucket {
    fn new(algorithm: Algorithm) -> Self {
        Self { algorithm, state: None, log: Log::default() }
    }

    /// How long a request of this cost waits, and what the bucket notes. `None` if the bucket refuses.
    fn take(&mut self, cost: Cost, now: u64) -> Option<(u64, Receipt)> {
        if let Algorithm::SlidingLog(params) = self.algorithm {
            self.state = self.log.seen(&params, cost, at(now)).map(BucketState::SlidingLog);
        }
        let want = Want { cost, max_wait: MaxWait::ENDLESS };
        let step = self.algorithm.decide(self.state, want, at(now));
        let taken = step.taken?;
        self.state = Some(taken);
        if let (Algorithm::SlidingLog(params), BucketState::SlidingLog(state)) =
            (self.algorithm, taken)
        {
            self.log.write(&params, state);
        }
        let wait = match step.decision.outcome {
            Outcome::Delay(wait) => u64::try_from(wait.as_micros()).unwrap(),
            _ => 0,
        };
        Some((wait, self.algorithm.receipt(step.decision.outcome, taken, at(now))))
    }

    /// Gives a place back.
    fn give_back(&mut self, cost: Cost, receipt: Receipt, now: u64) {
        let used = Difference::Less(cost.get());
        let settled = Settlement { used, receipt, max_wait: MaxWait::ENDLESS };
        if let Algorithm::SlidingLog(params) = self.algorithm {
            self.log.settle(&params, &settled, at(now));
        } else {
            self.state = self.algorithm.settle(self.state, &settled, at(now));
        }
    }
}

/// A request that waits.
struct WaitingRequest {
    process: usize,
    queued: Arc<QueuedRequest>,
    came: u64,
    cost: Cost,
    /// The moment that the bucket named.
    told: u64,
}

/// Processes that share a bucket, each with its queue, on a clock that is moved by hand.
struct QueueWorld {
    begin: Instant,
    now: u64,
    bucket: Bucket,
    processes: Vec<Queues<Receipt>>,
    waiting: Vec<WaitingRequest>,
    /// When each request came, its cost, and when it went.
    went: Vec<(u64, Cost, u64)>,
}

const ID: QueueId = QueueId { bucket: 0, is_here: true };

impl QueueWorld {
    fn new(algorithm: Algorithm, processes: usize) -> Self {
        Self {
            begin: Instant::now(),
            now: BEGIN,
            bucket: Bucket::new(algorithm),
            processes: (0..processes).map(|_| Queues::default()).collect(),
            waiting: Vec::new(),
            went: Vec::new(),
        }
    }

    fn instant(&self, time: u64) -> Instant {
        self.begin + Duration::from_micros(time - BEGIN)
    }

    fn time(&self, instant: Instant) -> u64 {
        BEGIN + u64::try_from((instant - self.begin).as_micros()).unwrap()
    }

    /// A request comes. Returns the moment that the bucket names. `None` if the bucket refuses.
    fn come(&mut self, process: usize, cost: Cost) -> Option<u64> {
        let (wait, taken) = self.bucket.take(cost, self.now)?;
        if wait == 0 {
            self.went.push((self.now, cost, self.now));
            return Some(self.now);
        }
        let told = self.now + wait;
        let goes = self.instant(told);
        let queued = self.processes[process].join(ID, goes, (cost, taken), &Arc::default());
        self.waiting.push(WaitingRequest { process, queued, came: self.now, cost, told });
        Some(told)
    }

    fn goes(&self, waiting: &WaitingRequest) -> u64 {
        self.time(waiting.queued.goes())
    }

    /// The client of this request leaves.
    fn leave(&mut self, place: usize) {
        let WaitingRequest { process, queued, cost, .. } = self.waiting.remove(place);
        let now = self.instant(self.now);
        let last = self.processes[process].with(ID, |queue| queue.leave(&queued, now));
        if let Some(last) = last {
            self.bucket.give_back(cost, last, self.now);
        }
    }

    /// Time goes by, and the requests go whose moments come.
    fn pass(&mut self, micros: u64) {
        self.now += micros;
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|it| {
            let goes = self.goes(it);
            assert!(goes <= it.told, "told {}, goes {goes}", it.told);
            let has_come = goes <= self.now;
            if has_come {
                self.processes[it.process].with(ID, |queue| queue.go(&it.queued)).unwrap();
                self.went.push((it.came, it.cost, goes));
            }
            !has_come
        });
        self.waiting = waiting;
    }

    /// The moments at which requests went or will go, with their costs.
    fn moments(&self) -> Vec<(u64, u64)> {
        let waiting = self.waiting.iter().map(|it| (self.goes(it), it.cost.get()));
        let went = self.went.iter().map(|(_, cost, goes)| (*goes, cost.get()));
        let mut moments: Vec<_> = went.chain(waiting).collect();
        moments.sort_unstable();
        moments
    }

    /// When a request that comes now would go, if the requests whose clients have left had never come.
    fn without_those_who_left(&self, cost: Cost) -> Option<u64> {
        let waiting = self.waiting.iter().map(|it| (it.came, it.cost));
        let mut came: Vec<_> =
            self.went.iter().map(|(came, cost, _)| (*came, *cost)).chain(waiting).collect();
        came.sort_by_key(|(came, _)| *came);
        let mut bucket = Bucket::new(self.bucket.algorithm);
        for (came, cost) in came {
            bucket.take(cost, came)?;
        }
        bucket.take(cost, self.now).map(|(wait, _)| self.now + wait)
    }
}

/// Visits of clients: the time since the visit before, the process, the cost, and perhaps the number of a waiting
/// client that leaves.
type Visits = Vec<(u64, usize, Cost, Option<usize>)>;

fn any_visits(costs: std::ops::Range<u64>) -> impl Strategy<Value = Visits> {
    let gap = prop_oneof![4 => Just(0), 3 => 0..SECOND, 1 => 0..5 * SECOND];
    let cost = costs.prop_map(|cost| Cost::new(cost).unwrap());
    prop::collection::vec((gap, 0..2_usize, cost, prop::option::of(0..50_usize)), 1..80)
}

/// Two processes after these visits.
fn visited(algorithm: Algorithm, visits: Visits) -> QueueWorld {
    let mut world = QueueWorld::new(algorithm, 2);
    for (gap, process, cost, leaves) in visits {
        world.pass(gap);
        world.come(process, cost);
        if let Some(leaves) = leaves.filter(|leaves| *leaves < world.waiting.len()) {
            world.leave(leaves);
        }
    }
    world
}

fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    let rate = |count: u64, seconds: u64| Rate::new(count, seconds * SECOND).unwrap();
    (1_u64..6, 1_u64..6, 1_u64..6, 0..4).prop_map(move |(count, seconds, size, kind)| {
        let windows = Windows::Clock(Interval::from_micros(seconds * SECOND).unwrap());
        match kind {
            0 => Algorithm::TokenBucket(Params { rate: rate(count, seconds), burst: burst(size) }),
            1 => {
                let params = leaky_bucket::Params::new(rate(count, seconds), 30).unwrap();
                Algorithm::LeakyBucket(params)
            }
            2 => Algorithm::FixedWindow(fixed_window::Params { count: burst(count), windows }),
            _ => Algorithm::SlidingLog(sliding_log::Params::new(rate(count, seconds)).unwrap()),
        }
    })
}

/// Fails if more passes than the algorithm ever lets pass.
fn no_more_than_the_rate(algorithm: Algorithm, moments: &[(u64, u64)]) {
    let bucket = |rate: Rate, size: u64| {
        for (first, (from, _)) in moments.iter().enumerate() {
            let mut went = 0;
            for (to, cost) in moments.iter().skip(first) {
                went += cost;
                let beyond = went.saturating_sub(size.max(*cost)) * rate.period();
                // Moments are whole microseconds.
                assert!(beyond <= (to - from + 1) * rate.tokens(), "{algorithm} {moments:?}");
            }
        }
    };
    match algorithm {
        Algorithm::TokenBucket(params) => bucket(params.rate, params.burst.get()),
        Algorithm::LeakyBucket(params) => bucket(params.rate, 1),
        Algorithm::FixedWindow(params) => {
            let Windows::Clock(length) = params.windows else { panic!() };
            let window = |(time, _): &(u64, u64)| time / length.as_micros();
            for inside in moments.chunk_by(|one, other| window(one) == window(other)) {
                let all: u64 = inside.iter().map(|(_, cost)| cost).sum();
                assert!(all <= params.count.get(), "{algorithm} {moments:?}");
            }
        }
        Algorithm::SlidingLog(params) => {
            for (first, (from, _)) in moments.iter().enumerate() {
                let end = from + params.interval.as_micros();
                let inside = moments.iter().skip(first).take_while(|(time, _)| *time < end);
                let all: u64 = inside.map(|(_, cost)| cost).sum();
                assert!(all <= params.count.get(), "{algorithm} {moments:?}");
            }
        }
        _ => panic!("{algorithm}"),
    }
}

proptest! {
    #[test]
    fn never_more_than_the_rate_goes_and_nobody_later_than_told(
        algorithm in any_algorithm(),
        visits in any_visits(1..2),
    ) {
        let mut world = visited(algorithm, visits);
        no_more_than_the_rate(algorithm, &world.moments());
        world.pass(3_600 * SECOND);
        prop_assert!(world.waiting.is_empty());
    }

    /// A request that comes gets the place that a leaving request has given up.
    #[test]
    fn nothing_is_lost_in_a_process(algorithm in any_algorithm(), visits in any_visits(1..2)) {
        let mut world = QueueWorld::new(algorithm, 1);
        for (gap, _, cost, leaves) in visits {
            world.pass(gap);
            let expected = world.without_those_who_left(cost);
            let told = world.come(0, cost);
            prop_assert!(expected.is_none() || told == expected, "{told:?} {expected:?}");
            if let Some(leaves) = leaves.filter(|leaves| *leaves < world.waiting.len()) {
                world.leave(leaves);
            }
        }
    }

    #[test]
    fn requests_of_different_costs_do_not_pass_too_early(
        algorithm in any_algorithm(),
        visits in any_visits(1..4),
    ) {
        let world = visited(algorithm, visits);
        if !matches!(algorithm, Algorithm::LeakyBucket(_)) {
            no_more_than_the_rate(algorithm, &world.moments());
        }
    }
}

fn leaky(queue: u64) -> Algorithm {
    let rate = Rate::new(1, SECOND).unwrap();
    Algorithm::LeakyBucket(leaky_bucket::Params::new(rate, queue).unwrap())
}

/// A regression: clients that gave up left holes in the queue, until nobody got through any more.
#[test]
fn clients_that_give_up_do_not_fill_the_queue() {
    let mut world = QueueWorld::new(leaky(10), 1);
    let mut passed = 0;
    for second in 0..1_000 {
        world.pass(SECOND);
        // Two come in each second, and nobody waits for longer than five.
        for _ in 0..2 {
            world.come(0, Cost::ONE);
        }
        let patience = world.now - 5 * SECOND;
        while let Some(place) = world.waiting.iter().position(|it| it.came < patience) {
            world.leave(place);
        }
        passed = world.went.len();
        assert!(passed >= second, "{passed} in {second} seconds");
    }
    assert!(passed <= 1_001);
}

#[test]
fn a_place_before_that_of_another_process_stays_unused() {
    let second = |seconds: u64| Some(BEGIN + seconds * SECOND);
    let mut world = QueueWorld::new(leaky(10), 2);
    let come = |world: &mut QueueWorld, process| world.come(process, Cost::ONE);
    assert_eq!(come(&mut world, 0), second(0));
    assert_eq!([0, 0, 1].map(|it| come(&mut world, it)), [1, 2, 3].map(second));
    world.leave(0);
    assert_eq!(world.goes(&world.waiting[0]), BEGIN + SECOND, "it has moved up");
    assert_eq!(come(&mut world, 1), second(4), "of the other process");
    assert_eq!(come(&mut world, 0), second(5), "nobody goes at the second that is free");
}

/// A regression: the worker was late, and a client left after the moment of its request. Its token went to the end of
/// the queue. There a new request followed the last one too early.
#[test]
fn a_place_whose_moment_has_come_does_not_go_back() {
    let rate = Rate::new(1, SECOND).unwrap();
    let mut world = QueueWorld::new(Algorithm::TokenBucket(Params { rate, burst: burst(1) }), 1);
    for _ in 0..3 {
        world.come(0, Cost::ONE);
    }
    world.now += SECOND + SECOND / 10;
    world.leave(0);
    assert_eq!(world.come(0, Cost::ONE), Some(BEGIN + 3 * SECOND));
    no_more_than_the_rate(world.bucket.algorithm, &world.moments());
}

/// A regression: each request that moved up searched the queue for itself. If one client of many left, this took as
/// long as the square of their number: here minutes.
#[test]
fn a_client_that_leaves_costs_each_other_client_one_step() {
    const CLIENTS: u64 = 200_000;
    let (queues, begin) = (Queues::default(), Instant::now());
    let goes = |second| begin + Duration::from_secs(second);
    let join = |second| queues.join(ID, goes(second), (Cost::ONE, second), &Arc::default());
    let mut waiting: Vec<_> = (1..=CLIENTS).map(join).collect();
    let first = waiting.remove(0);
    let last = queues.with(ID, |queue| queue.leave(&first, begin)).unwrap();
    assert_eq!(last, CLIENTS);
    for (second, queued) in (1..).zip(&waiting) {
        assert_eq!(queued.goes(), begin + Duration::from_secs(second), "it has moved up");
    }
    for queued in waiting.iter().rev() {
        let goes = queued.goes();
        let second = queues.with(ID, |queue| queue.go(queued)).unwrap();
        assert_eq!(goes, begin + Duration::from_secs(second));
    }
    assert!(queues.0.lock().is_empty());
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
}
