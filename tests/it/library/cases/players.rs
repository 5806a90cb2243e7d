//! The places in which a history is played: the pure functions, and a store.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::limit::algorithm::sliding_log::Log;
use tidegate::limit::algorithm::{
    Algorithm, BucketState, Difference, Receipt, Settlement, concurrency,
};
use tidegate::limit::decide::{Ask, Change, decide};
use tidegate::limit::decision::Decision;
use tidegate::limit::time::Timestamp;
use tidegate::limit::waiting::MaxWait;
use tidegate::settings::LimitSpec;
use tidegate::store::{BucketAsk, BucketKey, Claim, SWEEP_STEPS};

use super::bytes::{Written, kept};
use crate::support::bench::Bench;
use crate::support::limits::no_key;

/// Something that happens at a time.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) now: Timestamp,
    pub(crate) what: What,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    /// A request, known by the number of requests before it.
    Request(Vec<Asked>),
    /// A request ends: its slots are free.
    End { request: usize },
    /// What a request had asked at this place, and taken, turns out to have used more, or less. With `newest` nobody
    /// says which request it was.
    Settle { request: usize, place: usize, used: Difference, newest: bool },
}

/// An ask about the bucket of this number. As in a store, algorithms never meet in one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) bucket: usize,
    pub(crate) ask: Ask,
}

impl Asked {
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.bucket, self.ask.algorithm.name())
    }

    pub(crate) fn is_slot(&self) -> bool {
        matches!(self.ask.algorithm, Algorithm::Concurrency(_))
    }
}

/// How a state is remembered: where its figures change meanwhile, or a clock steps back, it makes a
/// difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kept {
    /// In few bytes.
    #[default]
    AsInRedis,
    AsItIs,
}

impl Kept {
    fn state(self, state: BucketState, algorithm: &Algorithm) -> BucketState {
        match self {
            Self::AsInRedis => kept(state, algorithm),
            Self::AsItIs => state,
        }
    }

    /// When a bucket is full by these figures. In Redis its key's expiry says so.
    fn full_at(self, algorithm: &Algorithm) -> impl Fn(BucketState) -> Option<Timestamp> {
        move |state| (self == Self::AsItIs).then(|| algorithm.fresh_at(state))
    }
}

/// The pure functions, and what they are to remember.
#[derive(Default)]
pub(crate) struct Pure {
    kept: Kept,
    buckets: HashMap<String, Bucket>,
    /// Each with what was noted of its asks.
    requests: Vec<(Vec<Asked>, Vec<Option<Receipt>>)>,
    /// Counts the calls, of which one has all requests of one moment.
    calls: usize,
    last_request: Option<Timestamp>,
}

/// The microseconds in which every lease is renewed, and those by which its end may be late: see `lists.lua`.
const RENEWED: u64 = 9_000_000;
const LATE: u64 = 1_000_000;

#[derive(Default)]
struct Bucket {
    state: Option<BucketState>,
    /// The figures under which that was written.
    under: Option<Algorithm>,
    /// In the process: when the bucket is full by the figures of its last request. From then on it is a new one.
    full_at: Option<Timestamp>,
    /// For each call that took nothing: when the bucket is full by the figures of its last request.
    aged: Vec<(usize, Option<Timestamp>)>,
    log: Log,
    /// Each request that holds a slot, and the microsecond at which its lease ends.
    slots: Vec<(usize, u64)>,
}

impl Bucket {
    fn forget_if_full(&mut self, now: Timestamp) {
        if self.full_at.is_some_and(|full_at| full_at <= now) {
            (self.state, self.full_at) = (None, None);
        }
    }

    fn seen(&mut self, ask: &Ask, now: Timestamp) -> Option<BucketState> {
        self.forget_if_full(now);
        match ask.algorithm {
            Algorithm::SlidingLog(params) => {
                self.log.seen(&params, ask.cost, now).map(BucketState::SlidingLog)
            }
            Algorithm::Concurrency(params) => {
                let now = now.as_micros();
                self.slots.retain(|(_, ends)| *ends > now);
                // Ends from before the clock was set back are lowered.
                let most = now + lease(&params).max(RENEWED);
                let late = self.slots.iter_mut().filter(|(_, ends)| *ends > most + LATE);
                late.for_each(|(_, ends)| *ends = most);
                let held = u64::try_from(self.slots.len()).unwrap();
                (held > 0).then_some(BucketState::Concurrency(concurrency::State { held }))
            }
            _ => self.state,
        }
    }

    fn write(
        &mut self,
        algorithm: &Algorithm,
        state: BucketState,
        (request, now): (usize, Timestamp),
    ) {
        match (algorithm, state) {
            (Algorithm::SlidingLog(params), BucketState::SlidingLog(state)) => {
                self.log.write(params, state);
            }
            (Algorithm::Concurrency(params), _) => {
                self.slots.push((request, now.as_micros() + lease(params)));
            }
            (_, state) => {
                (self.state, self.under) = (Some(state), Some(*algorithm));
                self.aged.clear();
            }
        }
    }

    /// A request by these figures took nothing. The key lives until the bucket is full by them, unless the bytes
    /// tell that it lives long enough.
    fn age(&mut self, algorithm: &Algorithm, (call, now): (usize, Timestamp)) {
        let Some(mark) = self.written().map(|written| written.mark()) else { return };
        if mark.is_some_and(|mark| mark == algorithm.figures()[3]) {
            return;
        }
        let (used, max_wait) = (Difference::More(0), MaxWait::NONE);
        let none = Settlement { used, receipt: Receipt::NONE, max_wait };
        let full = algorithm.settle(self.state, &none, now).map(|state| algorithm.fresh_at(state));
        self.aged.pop_if(|(before, _)| *before == call);
        self.aged.push((call, full));
    }

    fn written(&self) -> Option<Written> {
        let (state, under) = self.state.zip(self.under)?;
        let aged = self.aged.iter().filter_map(|(_, full)| *full).collect();
        Some(Written { aged, ..Written::of(state, &under) })
    }
}

fn lease(params: &concurrency::Params) -> u64 {
    u64::try_from(params.lease().as_micros()).unwrap()
}

/// What is noted of an ask: something where it took. A slot is known by its holder.
fn noted(ask: &Ask, change: &Change, now: Timestamp) -> Option<Receipt> {
    match (ask.algorithm, *change) {
        (Algorithm::Concurrency(_), _) => Some(Receipt::NONE),
        (_, Change::Taken(state, outcome)) => {
            Some(ask.receipt(outcome, state, now.into()).under(&ask.algorithm, now))
        }
        _ => None,
    }
}

/// The receipt of a settlement, from what was noted of the request.
pub(crate) fn settled_by(noted: Option<Receipt>, newest: bool) -> Receipt {
    if newest { Receipt::NEWEST } else { noted.unwrap_or(Receipt::NONE) }
}

impl Pure {
    pub(crate) fn new(kept: Kept) -> Self {
        Self { kept, ..Self::default() }
    }

    /// What is said to each ask; nothing to what is no request.
    pub(crate) fn play(&mut self, event: &Event) -> Vec<Decision> {
        let now = event.now;
        match &event.what {
            What::Request(asked) => {
                let known: Vec<_> =
                    asked.iter().map(|asked| self.bucket(asked).seen(&asked.ask, now)).collect();
                let asks: Vec<_> = asked.iter().map(|asked| asked.ask).collect();
                let decided = decide(&asks, &known, now.into());
                let changed = asks.iter().zip(&decided.changes);
                let noted = changed.map(|(ask, change)| noted(ask, change, now));
                let noted = noted.collect();
                let number = self.requests.len();
                if self.last_request.replace(now) != Some(now) {
                    self.calls += 1;
                }
                let (call, kept) = (self.calls, self.kept);
                for (asked, change) in asked.iter().zip(decided.changes) {
                    let bucket = self.bucket(asked);
                    let algorithm = &asked.ask.algorithm;
                    match change.state() {
                        Some(state) => {
                            let state = kept.state(state, algorithm);
                            bucket.write(algorithm, state, (number, now));
                        }
                        None => bucket.age(algorithm, (call, now)),
                    }
                    let full_at = kept.full_at(algorithm);
                    bucket.full_at = bucket.state.and_then(full_at);
                }
                self.requests.push((asked.clone(), noted));
                decided.decisions.to_vec()
            }
            What::End { request } => {
                self.last_request = None;
                let asked = self.requests[*request].0.clone();
                for asked in asked.iter().filter(|asked| asked.is_slot()) {
                    self.bucket(asked).slots.retain(|(holder, _)| holder != request);
                }
                Vec::new()
            }
            What::Settle { request, place, used, newest } => {
                self.last_request = None;
                let (asked, receipt) = self.settled(self.requests.len(), *request, *place);
                let receipt = settled_by(receipt, *newest);
                let settled = Settlement { used: *used, receipt, max_wait: asked.ask.max_wait };
                let kept = self.kept;
                let bucket = self.bucket(&asked);
                bucket.forget_if_full(now);
                match asked.ask.algorithm {
                    Algorithm::SlidingLog(params) => {
                        bucket.log.settle(&params, &settled, now);
                    }
                    algorithm => {
                        let settled = algorithm.settle(bucket.state, &settled, now);
                        bucket.state = settled.map(|state| kept.state(state, &algorithm));
                        bucket.under = Some(algorithm);
                        bucket.full_at = bucket.state.and_then(kept.full_at(&algorithm));
                        bucket.aged.clear();
                    }
                }
                Vec::new()
            }
        }
    }

    /// What is kept of a bucket, as the script's answer has it.
    pub(crate) fn kept(&self, asked: &Asked) -> Written {
        let Some(bucket) = self.buckets.get(&asked.name()) else { return Written::default() };
        let listed: Vec<_> = match asked.ask.algorithm {
            Algorithm::SlidingLog(_) => {
                let text = |(at, by): (Timestamp, Timestamp)| {
                    format!("{}:{}", at.as_micros(), by.as_micros())
                };
                bucket.log.entries().map(text).collect()
            }
            Algorithm::Concurrency(_) => {
                bucket.slots.iter().map(|(request, _)| format!("{request:09}")).collect()
            }
            _ => {
                return bucket.written().unwrap_or_default();
            }
        };
        let holds = listed.join(" ").into_bytes();
        Written { holds, ..Written::default() }
    }

    /// What is settled of a request at a place, by the figures of the last of these first requests, and what was noted
    /// of it.
    pub(crate) fn settled(
        &self,
        first: usize,
        request: usize,
        place: usize,
    ) -> (Asked, Option<Receipt>) {
        let (asked, receipt) = self.noted(request, place);
        (latest(&asked, self.requests[..first].iter().map(|(asked, _)| asked)), receipt)
    }

    /// What a request had asked at a place, and what was noted of it.
    pub(crate) fn noted(&self, request: usize, place: usize) -> (Asked, Option<Receipt>) {
        let (asked, noted) = &self.requests[request];
        (asked[place], noted[place])
    }

    fn bucket(&mut self, asked: &Asked) -> &mut Bucket {
        self.buckets.entry(asked.name()).or_default()
    }
}

/// The last ask of these requests about the same bucket: its figures are in force.
fn latest<'a>(asked: &Asked, requests: impl DoubleEndedIterator<Item = &'a Vec<Asked>>) -> Asked {
    let mut asks = requests.rev().flat_map(|asks| asks.iter().rev());
    *asks.find(|other| other.name() == asked.name()).unwrap_or(asked)
}

/// A store, be it of the process or in Redis.
pub(crate) struct InStore {
    pub(crate) bench: Bench,
    /// The limits, by the numbers of their buckets.
    specs: Vec<Arc<LimitSpec>>,
    key: BucketKey,
    requests: Vec<Held>,
}

/// A request's asks, what it holds, and what was noted of it.
struct Held {
    asked: Vec<Asked>,
    claims: Vec<Claim<'static>>,
    receipts: Vec<Option<Receipt>>,
}

impl InStore {
    pub(crate) fn new(bench: Bench, specs: Vec<Arc<LimitSpec>>) -> Self {
        Self { bench, specs, key: no_key(), requests: Vec::new() }
    }

    /// What is said to each ask; nothing to what is no request.
    pub(crate) async fn play(&mut self, event: &Event) -> Vec<Decision> {
        let now = event.now;
        match &event.what {
            What::Request(asked) => {
                let asks: Vec<_> = asked.iter().map(|asked| self.ask(asked)).collect();
                let answer = self.bench.decide_at(&asks, now).await;
                let (asked, claims, receipts) = (asked.clone(), answer.claims, answer.receipts);
                self.requests.push(Held { asked, claims, receipts });
                answer.decisions.into_iter().map(|decision| decision.unwrap()).collect()
            }
            What::End { request } => {
                self.requests[*request].claims.clear();
                Vec::new()
            }
            What::Settle { request, place, used, newest } => {
                let Held { asked, receipts, .. } = &self.requests[*request];
                let receipt = settled_by(receipts[*place], *newest);
                let asked = latest(&asked[*place], self.requests.iter().map(|it| &it.asked));
                self.bench.store.settle(&self.ask(&asked), *used, receipt, now);
                self.bench.store.settled().await;
                Vec::new()
            }
        }
    }

    /// Forgets whatever is as good as new.
    pub(crate) fn sweep(&self, now: Timestamp) {
        (0..SWEEP_STEPS).for_each(|_| self.bench.shared.sweep(now));
    }

    fn ask(&self, asked: &Asked) -> BucketAsk<'_> {
        BucketAsk { spec: &self.specs[asked.bucket], key: &self.key, ask: asked.ask }
    }
}
