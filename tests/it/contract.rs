//! What every store does, run against each of them.

use std::sync::Arc;
use std::time::Duration;

use tidegate::limit::Mode;
use tidegate::limit::algorithm::fixed_window::windows::{Schedule, Unit, Windows};
use tidegate::limit::algorithm::{
    Algorithm, Difference, concurrency, fixed_window, sliding_log, sliding_window,
};
use tidegate::limit::decision::{Decision, Outcome, Verdict};
use tidegate::limit::key::Key;
use tidegate::limit::patience::Patience;
use tidegate::limit::rate::{Burst, Cost, Interval, MAX_INTERVAL, Rate};
use tidegate::limit::time::Timestamp;
use tidegate::plan::{KeyDisplay, LimitSpec, StoreLocation, StoreSpec};
use tidegate::store::{Answer, BucketAsk, Shared, Store};
use tokio::time::Instant;

use crate::support::limits::{ask, bucket, key, limit};
use crate::support::redis::RedisServer;

macro_rules! every_store {
    ($($behaviour:ident)*) => {
        mod memory {
            use super::Bench;
            $(#[tokio::test] async fn $behaviour() { super::$behaviour(&Bench::memory()).await })*
        }
        mod redis {
            use super::Bench;
            $(#[tokio::test] async fn $behaviour() { super::$behaviour(&Bench::redis()).await })*
        }
    };
}

every_store! {
    a_bucket_holds_its_burst
    what_costs_more_than_the_bucket_never_passes
    all_limits_take_or_none
    a_shadow_never_stops_a_request
    a_candidate_stands_in_for_the_limit_before_it
    every_key_and_limit_has_a_bucket_of_its_own
    a_limit_without_a_key_has_one_bucket
    changed_figures_go_on_from_what_was_used
    what_is_given_back_can_be_taken_again
    a_forgotten_bucket_is_new
    a_look_takes_nothing
    two_workers_share_their_buckets
    a_window_holds_its_count
    a_sliding_log_holds_its_count
    a_sliding_log_is_decided_with_the_others
    a_sliding_log_reserves_places
    a_sliding_log_is_told_what_was_used
    a_sliding_log_takes_many_at_once
    a_sliding_log_is_tried_as_a_candidate
    a_slot_is_held_until_it_is_dropped
    slots_are_decided_with_the_others
    a_request_that_is_dropped_holds_no_slot
}

const HOUR: Duration = Duration::from_secs(3_600);
const MILLISECOND: Duration = Duration::from_millis(1);

pub(crate) struct Bench {
    pub(crate) store: Store,
    pub(crate) shared: Arc<Shared>,
    spec: StoreSpec,
    began: Instant,
    _server: Option<RedisServer>,
}

impl Bench {
    pub(crate) fn memory() -> Self {
        Self::at(StoreLocation::Memory, None)
    }

    /// In a server that outlives it.
    pub(crate) fn of(server: &RedisServer) -> Self {
        Self::at(StoreLocation::Redis(server.url()), None)
    }

    fn redis() -> Self {
        let server = RedisServer::start();
        Self::at(StoreLocation::Redis(server.url()), Some(server))
    }

    fn at(location: StoreLocation, server: Option<RedisServer>) -> Self {
        // Long enough for any machine: what waits is not the matter here.
        let timeout = Duration::from_secs(20);
        let spec = StoreSpec { location, prefix: "tidegate".into(), timeout, max_keys: 10_000 };
        let shared = Shared::new(&spec);
        let store = Store::new(Arc::clone(&shared), &spec, KeyDisplay::Plain);
        Self { store, shared, spec, began: Instant::now(), _server: server }
    }

    pub(crate) fn now() -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000).unwrap()
    }

    async fn decide(&self, asks: &[BucketAsk<'_>]) -> Answer {
        self.decide_at(asks, Self::now()).await
    }

    /// At a time that Redis does not look at.
    pub(crate) async fn decide_at(&self, asks: &[BucketAsk<'_>], now: Timestamp) -> Answer {
        let answer = self.store.decide(asks, now).await.unwrap();
        assert_ne!(self.shared.counters().redis_up, Some(false), "Redis did not decide");
        answer
    }

    /// What remains for one ask after it was decided.
    async fn take(&self, ask: BucketAsk<'_>) -> Option<u64> {
        let answer = self.decide(&[ask]).await;
        let decision = answer.decisions[0].unwrap();
        (answer.verdict == Verdict::PASS).then_some(decision.remaining)
    }

    async fn left(&self, ask: BucketAsk<'_>) -> u64 {
        self.store.peek(&ask, Self::now()).await.unwrap().remaining
    }

    /// The same outcome, but that the wait may be shorter by the time that went on in Redis, to the
    /// millisecond in which Redisson counts.
    pub(crate) fn agrees(&self, outcome: Outcome, expected: Outcome) -> bool {
        match (outcome, expected) {
            (Outcome::Delay(promised), Outcome::Delay(expected))
            | (
                Outcome::Reject { retry_after: Some(promised) },
                Outcome::Reject { retry_after: Some(expected) },
            ) => promised <= expected && promised + self.began.elapsed() + MILLISECOND >= expected,
            (outcome, expected) => outcome == expected,
        }
    }

    fn assert_wait(&self, promised: Option<Duration>, expected: Duration) {
        let promised = promised.expect("it passes some day");
        let agrees = self.agrees(Outcome::Delay(promised), Outcome::Delay(expected));
        assert!(agrees, "{promised:?} instead of {expected:?}");
    }
}

async fn a_bucket_holds_its_burst(bench: &Bench) {
    let (spec, key) = (limit("per-client"), key("192.0.2.1"));
    for left in (0..10).rev() {
        assert_eq!(bench.take(ask(&spec, &key, 10)).await, Some(left));
    }
    for _ in 0..3 {
        let answer = bench.decide(&[ask(&spec, &key, 10)]).await;
        let Verdict::Refuse { by: 0, retry_after } = answer.verdict else {
            panic!("{answer:?}");
        };
        bench.assert_wait(retry_after, HOUR);
        let Some(Decision { outcome, remaining: 0 }) = answer.decisions[0] else {
            panic!("{answer:?}");
        };
        assert_eq!(outcome, Outcome::Reject { retry_after });
    }
}

async fn a_window_holds_its_count(bench: &Bench) {
    // So long that none of the clock's windows ends meanwhile.
    let decade = Interval::from_micros(MAX_INTERVAL).unwrap();
    let count = Burst::new(10).unwrap();
    let fixed = |windows| Algorithm::FixedWindow(fixed_window::Params { count, windows });
    let (spec, calendar) = (limit("windows"), years().around(Bench::now()));
    for (name, algorithm) in [
        ("rolling", fixed(Windows::Rolling(decade))),
        ("on the clock", fixed(Windows::Clock(decade))),
        ("on the calendar", fixed(calendar)),
        ("sliding", Algorithm::SlidingWindow(sliding_window::Params::new(count, decade))),
    ] {
        let key = key(name);
        let mut one = ask(&spec, &key, 10);
        one.ask.algorithm = algorithm;
        for left in (0..10).rev() {
            assert_eq!(bench.take(one).await, Some(left), "{name}");
        }
        assert_eq!(bench.take(one).await, None, "{name}");
        bench.store.settle(&one, Difference::Less(1), Bench::now()).await.unwrap();
        assert_eq!(bench.left(one).await, 1, "{name}");
        bench.take(one).await;
        one.ask.patience = Patience::ENDLESS;
        let held = bench.decide(&[one]).await.verdict;
        let is_held = matches!(held, Verdict::Pass { wait } if wait > Duration::ZERO);
        assert!(is_held, "{name}: {held:?}");
        bench.store.settle(&one, Difference::More(20), Bench::now()).await.unwrap();
        one.ask.patience = Patience::NONE;
        assert_eq!(bench.left(one).await, 0, "{name}");
    }
}

/// A calendar whose days are decades.
fn years() -> Schedule {
    let start = |place: u64| Timestamp::from_micros(place * MAX_INTERVAL).unwrap();
    Schedule::new(Unit::Day, "Somewhere".into(), (0..12).map(start).collect()).unwrap()
}

async fn what_costs_more_than_the_bucket_never_passes(bench: &Bench) {
    let (spec, key) = (limit("per-client"), key("192.0.2.1"));
    let mut ask = ask(&spec, &key, 10);
    ask.ask.cost = Cost::new(11).unwrap();
    let answer = bench.decide(&[ask]).await;
    assert_eq!(answer.verdict, Verdict::Refuse { by: 0, retry_after: None });
    assert_eq!(answer.decisions[0].unwrap().remaining, 10);
}

async fn all_limits_take_or_none(bench: &Bench) {
    let (wide, narrow, key) = (limit("wide"), limit("narrow"), key("192.0.2.1"));
    let asks = [ask(&wide, &key, 10), ask(&narrow, &key, 2)];
    for left in [[9, 1], [8, 0]] {
        let answer = bench.decide(&asks).await;
        assert_eq!(answer.verdict, Verdict::PASS);
        let remaining: Vec<_> = answer.decisions.iter().map(|d| d.unwrap().remaining).collect();
        assert_eq!(remaining, left);
    }
    for _ in 0..5 {
        let answer = bench.decide(&asks).await;
        let Verdict::Refuse { by: 1, retry_after } = answer.verdict else {
            panic!("{answer:?}");
        };
        bench.assert_wait(retry_after, HOUR);
        let wide = answer.decisions[0].unwrap();
        assert_eq!(wide, Decision { outcome: Outcome::Allow, remaining: 8 });
    }
    assert_eq!(bench.left(asks[0]).await, 8);
}

async fn a_shadow_never_stops_a_request(bench: &Bench) {
    let (mut shadow, enforced, key) = (limit("shadow"), limit("enforced"), key("192.0.2.1"));
    shadow.mode = Mode::Shadow;
    let asks = [ask(&shadow, &key, 1), ask(&enforced, &key, 3)];
    for (turn, shadow_allows) in [true, false, false].into_iter().enumerate() {
        let answer = bench.decide(&asks).await;
        assert_eq!(answer.verdict, Verdict::PASS, "request {turn}");
        let outcome = answer.decisions[0].unwrap().outcome;
        assert_eq!(outcome == Outcome::Allow, shadow_allows, "request {turn}");
    }
    assert!(matches!(bench.decide(&asks).await.verdict, Verdict::Refuse { by: 1, .. }));

    let other = crate::support::limits::key("192.0.2.2");
    let refused = [ask(&shadow, &other, 5), ask(&enforced, &key, 3)];
    bench.decide(&refused).await;
    assert_eq!(bench.left(refused[0]).await, 5, "a shadow takes only what passes");
}

async fn a_candidate_stands_in_for_the_limit_before_it(bench: &Bench) {
    let (own, other, key) = (limit("own"), limit("other"), key("192.0.2.1"));
    let mut candidate = limit("own");
    candidate.name = candidate.name.of_candidate();
    let mut tried = ask(&candidate, &key, 4);
    tried.ask.mode = Mode::Candidate;
    let asks = |other_burst| [ask(&own, &key, 1), tried, ask(&other, &key, other_burst)];
    for left in [3, 2, 1] {
        bench.decide(&asks(2)).await;
        assert_eq!(bench.left(tried).await, left, "its own limit alone refuses from the second on");
    }
    let answer = bench.decide(&asks(1)).await;
    assert!(matches!(answer.verdict, Verdict::Refuse { .. }));
    let said = answer.decisions[1].unwrap();
    assert_eq!(said, Decision { outcome: Outcome::Allow, remaining: 1 }, "another refuses too");
    assert_eq!(bench.left(tried).await, 1);
    assert_eq!(
        bench.left(ask(&other, &key, 2)).await,
        1,
        "whoever is refused costs others nothing"
    );
}

async fn every_key_and_limit_has_a_bucket_of_its_own(bench: &Bench) {
    let (one, two) = (limit("one"), limit("two"));
    let (a, b, c) = (key("a"), key("b"), Key::of([Some(&b"a"[..]), None]));
    for (spec, key) in [(&one, &a), (&one, &b), (&one, &c), (&two, &a)] {
        assert_eq!(bench.take(ask(spec, key, 3)).await, Some(2), "{} {key}", spec.name);
    }
    assert_eq!(bench.take(ask(&one, &a, 3)).await, Some(1));
}

async fn a_limit_without_a_key_has_one_bucket(bench: &Bench) {
    let (mut spec, key) = (limit("global"), Key::empty());
    spec.key.sources.clear();
    assert_eq!(bench.take(ask(&spec, &key, 3)).await, Some(2));
    assert_eq!(bench.take(ask(&spec, &key, 3)).await, Some(1));
}

async fn changed_figures_go_on_from_what_was_used(bench: &Bench) {
    let (spec, key) = (limit("per-client"), key("192.0.2.1"));
    for _ in 0..4 {
        bench.take(ask(&spec, &key, 10)).await;
    }
    assert_eq!(bench.left(ask(&spec, &key, 100)).await, 96, "a larger burst");
    assert_eq!(bench.left(ask(&spec, &key, 5)).await, 1, "a smaller burst");
    assert_eq!(bench.left(ask(&spec, &key, 2)).await, 0, "a burst below what was used");
    let mut slower = ask(&spec, &key, 10);
    slower.ask.algorithm = bucket("1/d", 10);
    assert_eq!(bench.take(slower).await, Some(5), "another rate");
}

async fn what_is_given_back_can_be_taken_again(bench: &Bench) {
    let (spec, key) = (limit("per-client"), key("192.0.2.1"));
    let one = ask(&spec, &key, 2);
    bench.take(one).await;
    bench.take(one).await;
    assert_eq!(bench.take(one).await, None);
    for left in [1, 2, 2] {
        bench.store.settle(&one, Difference::Less(1), Bench::now()).await.unwrap();
        assert_eq!(bench.left(one).await, left);
    }
}

async fn a_forgotten_bucket_is_new(bench: &Bench) {
    let (spec, key) = (limit("per-client"), key("192.0.2.1"));
    let one = ask(&spec, &key, 1);
    bench.take(one).await;
    assert_eq!(bench.take(one).await, None);
    bench.store.forget(&one).await.unwrap();
    assert_eq!(bench.take(one).await, Some(0));
}

async fn a_look_takes_nothing(bench: &Bench) {
    let (spec, key) = (limit("per-client"), key("192.0.2.1"));
    let one = ask(&spec, &key, 1);
    for _ in 0..3 {
        let look = bench.store.peek(&one, Bench::now()).await.unwrap();
        assert_eq!(look, Decision { outcome: Outcome::Allow, remaining: 1 });
    }
    bench.take(one).await;
    let look = bench.store.peek(&one, Bench::now()).await.unwrap();
    let Outcome::Reject { retry_after } = look.outcome else { panic!("{look:?}") };
    bench.assert_wait(retry_after, HOUR);
}

async fn two_workers_share_their_buckets(bench: &Bench) {
    let other = Store::new(Arc::clone(&bench.shared), &bench.spec, KeyDisplay::Plain);
    let (spec, key) = (limit("per-client"), key("192.0.2.1"));
    let asks = [ask(&spec, &key, 50)];
    let mut passed = 0;
    for _ in 0..40 {
        let (here, there) = tokio::join!(
            bench.store.decide(&asks, Bench::now()),
            other.decide(&asks, Bench::now())
        );
        for answer in [here.unwrap(), there.unwrap()] {
            passed += usize::from(answer.verdict == Verdict::PASS);
        }
    }
    assert_eq!(passed, 50);
}

/// The ask of a limit that lets so many pass in an hour, whenever it begins.
fn log<'r>(spec: &'r LimitSpec, key: &'r Key, count: u64) -> BucketAsk<'r> {
    let mut ask = ask(spec, key, 1);
    let rate = Rate::new(count, 3_600_000_000).unwrap();
    ask.ask.algorithm = Algorithm::SlidingLog(sliding_log::Params::new(rate).unwrap());
    ask
}

async fn a_sliding_log_holds_its_count(bench: &Bench) {
    let (spec, key) = (limit("log"), key("192.0.2.1"));
    for left in [4, 3, 2] {
        assert_eq!(bench.take(log(&spec, &key, 5)).await, Some(left));
    }
    let mut two = log(&spec, &key, 5);
    two.ask.cost = Cost::new(2).unwrap();
    assert_eq!(bench.take(two).await, Some(0));
    let answer = bench.decide(&[two]).await;
    let Verdict::Refuse { retry_after, .. } = answer.verdict else { panic!("{answer:?}") };
    bench.assert_wait(retry_after, HOUR);
    assert_eq!(bench.left(two).await, 0);
    assert_eq!(bench.take(log(&spec, &key, 7)).await, Some(1), "other figures go on");
    two.ask.cost = Cost::new(8).unwrap();
    let answer = bench.decide(&[two]).await;
    assert_eq!(answer.verdict, Verdict::Refuse { by: 0, retry_after: None });
    bench.store.forget(&two).await.unwrap();
    assert_eq!(bench.left(log(&spec, &key, 5)).await, 5);
}

async fn a_sliding_log_is_decided_with_the_others(bench: &Bench) {
    let (spec, tokens, key) = (limit("log"), limit("tokens"), key("192.0.2.1"));
    let asks = [log(&spec, &key, 3), ask(&tokens, &key, 2)];
    for left in [[2, 1], [1, 0]] {
        let answer = bench.decide(&asks).await;
        let remaining: Vec<_> = answer.decisions.iter().map(|d| d.unwrap().remaining).collect();
        assert_eq!((answer.verdict, remaining), (Verdict::PASS, left.to_vec()));
    }
    for _ in 0..3 {
        let answer = bench.decide(&asks).await;
        assert!(matches!(answer.verdict, Verdict::Refuse { by: 1, .. }), "{answer:?}");
        let untouched = Decision { outcome: Outcome::Allow, remaining: 1 };
        assert_eq!(answer.decisions[0], Some(untouched));
    }
    assert_eq!(bench.take(asks[0]).await, Some(0), "what was refused took nothing");
}

async fn a_sliding_log_reserves_places(bench: &Bench) {
    let (spec, key) = (limit("log"), key("192.0.2.1"));
    let (mut one, interval) = (log(&spec, &key, 1), Duration::from_secs(600));
    let rate: Rate = "1/10m".parse().unwrap();
    one.ask.algorithm = Algorithm::SlidingLog(sliding_log::Params::new(rate).unwrap());
    assert_eq!(bench.take(one).await, Some(0));
    one.ask.patience = Patience::ENDLESS;
    for turn in [1, 2] {
        let answer = bench.decide(&[one]).await;
        let Some(Decision { outcome: Outcome::Delay(wait), remaining: 0 }) = answer.decisions[0]
        else {
            panic!("{answer:?}");
        };
        bench.assert_wait(Some(wait), turn * interval);
    }
    one.ask.patience = Patience::NONE;
    let answer = bench.decide(&[one]).await;
    let Verdict::Refuse { retry_after, .. } = answer.verdict else { panic!("{answer:?}") };
    bench.assert_wait(retry_after, 3 * interval);
    // Who does not wait any more gives the place back.
    bench.store.settle(&one, Difference::Less(1), Bench::now()).await.unwrap();
    let look = bench.store.peek(&one, Bench::now()).await.unwrap();
    let Outcome::Reject { retry_after } = look.outcome else { panic!("{look:?}") };
    bench.assert_wait(retry_after, 2 * interval);
}

async fn a_sliding_log_is_told_what_was_used(bench: &Bench) {
    let (spec, key) = (limit("log"), key("192.0.2.1"));
    let one = log(&spec, &key, 5);
    let settle = async |used| {
        bench.store.settle(&one, used, Bench::now()).await.unwrap();
        bench.left(one).await
    };
    assert_eq!(settle(Difference::Less(1)).await, 5, "of nothing");
    assert_eq!(bench.take(one).await, Some(4));
    assert_eq!(settle(Difference::More(2)).await, 2);
    assert_eq!(settle(Difference::Less(1)).await, 3);
    assert_eq!(settle(Difference::More(5)).await, 0);
    assert_eq!(settle(Difference::Less(2)).await, 0, "seven were used, of five");
    assert_eq!(settle(Difference::Less(1)).await, 1);
    assert_eq!(settle(Difference::Less(9)).await, 5);
}

/// Many in one microsecond: in Redis, whose clock stands still within a call, in one call.
async fn a_sliding_log_takes_many_at_once(bench: &Bench) {
    let (spec, tokens, key) = (limit("log"), limit("tokens"), key("192.0.2.1"));
    let asks = [log(&spec, &key, 50), ask(&tokens, &key, 90)];
    let all = (0..100).map(|n| bench.store.decide(&asks[..1 + n % 2], Bench::now()));
    let answers = futures_join(all).await;
    let passed = answers.iter().filter(|answer| answer.verdict == Verdict::PASS).count();
    assert_eq!(passed, 50);
}

async fn a_sliding_log_is_tried_as_a_candidate(bench: &Bench) {
    let (own, key) = (limit("own"), key("192.0.2.1"));
    let mut candidate = limit("own");
    candidate.name = candidate.name.of_candidate();
    let mut tried = log(&candidate, &key, 3);
    tried.ask.mode = Mode::Candidate;
    for (passes, left) in [(true, 2), (false, 1), (false, 0), (false, 0)] {
        let answer = bench.decide(&[log(&own, &key, 1), tried]).await;
        assert_eq!(answer.verdict.passes(), passes);
        assert_eq!(bench.left(tried).await, left, "its own limit alone refuses");
    }
    bench.store.forget(&tried).await.unwrap();
    let (other, one) = (limit("other"), ask(&limit("own"), &key, 1).ask);
    bench.take(BucketAsk { ask: one, spec: &other, key: &key }).await;
    let asks = [log(&own, &key, 1), tried, BucketAsk { ask: one, spec: &other, key: &key }];
    assert!(!bench.decide(&asks).await.verdict.passes());
    assert_eq!(bench.left(tried).await, 3, "another refuses too");
}

async fn futures_join<E: std::fmt::Debug>(
    all: impl Iterator<Item = impl Future<Output = Result<Answer, E>>>,
) -> Vec<Answer> {
    let mut waiting: Vec<_> = all.map(Box::pin).collect();
    let mut answers = Vec::new();
    std::future::poll_fn(|cx| {
        waiting.retain_mut(|one| match one.as_mut().poll(cx) {
            std::task::Poll::Ready(answer) => {
                answers.push(answer.unwrap());
                false
            }
            std::task::Poll::Pending => true,
        });
        match waiting.is_empty() {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    answers
}

/// The ask of a limit that lets so many be under way at once.
fn slots<'r>(spec: &'r LimitSpec, key: &'r Key, limit: u64) -> BucketAsk<'r> {
    let mut ask = ask(spec, key, 1);
    let lease = Duration::from_secs(3_600);
    let params = concurrency::Params::new(Burst::new(limit).unwrap(), lease);
    ask.ask.algorithm = Algorithm::Concurrency(params);
    ask
}

impl Bench {
    /// What is given back on the side is told in the order in which it was given.
    async fn left_soon(&self, ask: BucketAsk<'_>, expected: u64) {
        while self.left(ask).await != expected {
            assert!(self.began.elapsed() < crate::support::PATIENCE, "never {expected}");
            tokio::task::yield_now().await;
        }
    }
}

async fn a_slot_is_held_until_it_is_dropped(bench: &Bench) {
    let (spec, key) = (limit("slots"), key("192.0.2.1"));
    let two = slots(&spec, &key, 2);
    let first = bench.decide(&[two]).await;
    let second = bench.decide(&[two]).await;
    assert_eq!(second.decisions[0], Some(Decision { outcome: Outcome::Allow, remaining: 0 }));
    let retry_after = Some(Duration::from_secs(1));
    let third = bench.decide(&[two]).await;
    assert_eq!(third.verdict, Verdict::Refuse { by: 0, retry_after });
    assert!(third.slots.is_empty());
    drop(third);
    assert_eq!(bench.left(two).await, 0, "a refusal gives nothing back");
    assert_eq!(
        bench.left(slots(&spec, &key, 5)).await,
        3,
        "another limit goes on from what is held"
    );
    assert_eq!(bench.left(slots(&spec, &key, 1)).await, 0);
    drop(first);
    bench.left_soon(two, 1).await;
    drop(second);
    bench.left_soon(two, 2).await;
}

async fn slots_are_decided_with_the_others(bench: &Bench) {
    let (held, tokens, logged) = (limit("slots"), limit("tokens"), limit("log"));
    let key = key("192.0.2.1");
    let asks = [slots(&held, &key, 9), ask(&tokens, &key, 2), log(&logged, &key, 9)];
    let answers = [bench.decide(&asks).await, bench.decide(&asks).await];
    let refused = bench.decide(&asks).await;
    assert!(matches!(refused.verdict, Verdict::Refuse { by: 1, .. }), "{refused:?}");
    let left: Vec<_> = refused.decisions.iter().map(|d| d.unwrap().remaining).collect();
    assert_eq!(left, [7, 0, 7], "what was refused took nothing");
    assert_eq!(bench.left(asks[0]).await, 7);
    let full = [slots(&held, &key, 2), log(&logged, &key, 9)];
    assert!(matches!(bench.decide(&full).await.verdict, Verdict::Refuse { by: 0, .. }));
    assert_eq!(bench.left(full[1]).await, 7);
    drop(answers);
    bench.left_soon(asks[0], 9).await;
    assert_eq!(bench.left(asks[1]).await, 0, "tokens do not come back");
}

async fn a_request_that_is_dropped_holds_no_slot(bench: &Bench) {
    let (spec, key) = (limit("slots"), key("192.0.2.1"));
    let one = slots(&spec, &key, 3);
    assert_eq!(bench.left(one).await, 3, "the store is there");
    for turns in 0..3 {
        let mut asking = Box::pin(bench.store.decide(std::slice::from_ref(&one), Bench::now()));
        for _ in 0..turns {
            if futures_poll(&mut asking).await {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(asking);
    }
    bench.left_soon(one, 3).await;
}

async fn futures_poll<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(cx).is_ready())
    })
    .await
}
