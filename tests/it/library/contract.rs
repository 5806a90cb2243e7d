//! What every store does with its buckets, run against each of them. What it says to requests is in
//! `cases`.

use std::sync::Arc;
use std::time::Duration;

use tidegate::limit::Mode;
use tidegate::limit::algorithm::fixed_window::windows::{Schedule, Unit, Windows};
use tidegate::limit::algorithm::{Difference, Receipt};
use tidegate::limit::decide::Ask;
use tidegate::limit::decision::{Decision, Outcome, Verdict};
use tidegate::limit::key::Key;
use tidegate::limit::rate::{Cost, Interval, MAX_INTERVAL};
use tidegate::limit::time::Timestamp;
use tidegate::limit::waiting::MaxWait;
use tidegate::settings::{KeyDisplay, LimitSpec};
use tidegate::store::{BucketAsk, BucketKey, Store};
use tokio::time::Instant;

use crate::support::algorithms::{self, leaky, log, rolling, sliding, window};
use crate::support::bench::{Answer, Bench, decide};
use crate::support::limits::{ask, bucket, key, limit, no_key, settled};

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
        mod cluster {
            use super::Bench;
            $(#[tokio::test] async fn $behaviour() { super::$behaviour(&Bench::cluster()).await })*
        }
        /// As a user who has only the rights that the manual names.
        mod user {
            use super::Bench;
            $(#[tokio::test] async fn $behaviour() { super::$behaviour(&Bench::user()).await })*
        }
    };
}

every_store! {
    every_key_and_limit_has_a_bucket_of_its_own
    a_limit_without_a_key_has_one_bucket
    what_is_given_back_can_be_taken_again
    a_request_under_way_keeps_its_estimate_under_no_other_figures
    receipts_are_given_where_something_may_come_back
    receipts_are_those_of_each_request
    a_sliding_log_gives_back_its_own_entries
    a_forgotten_bucket_is_new
    a_look_takes_nothing
    two_workers_share_their_buckets
    a_window_holds_its_count
    a_sliding_log_takes_many_at_once
    a_slot_is_held_until_it_is_dropped
    slots_are_decided_with_the_others
    a_request_that_is_dropped_holds_no_slot
}

const HOUR: Duration = Duration::from_secs(3_600);

async fn a_window_holds_its_count(bench: &Bench) {
    // So long that none of the clock's windows ends meanwhile.
    let decade = Interval::from_micros(MAX_INTERVAL).unwrap();
    let (spec, calendar) = (settled("windows"), years().around(Bench::now()));
    for (name, algorithm) in [
        ("rolling", window(10, Windows::Rolling(decade))),
        ("on the clock", window(10, Windows::Clock(decade))),
        ("on the calendar", window(10, calendar)),
        ("sliding", sliding("10/3650d")),
    ] {
        let key = key(name);
        let mut one = ask(&spec, &key, 10);
        one.ask.algorithm = algorithm;
        let mut receipt = Receipt::NONE;
        for left in (0..10).rev() {
            receipt = bench.noted(one).await;
            assert_eq!(bench.left(one).await, left, "{name}");
        }
        assert_eq!(bench.take(one).await, None, "{name}");
        bench.settle(one, Difference::Less(1), Receipt::NONE).await;
        assert_eq!(bench.left(one).await, 0, "{name}: it took long ago");
        bench.settle(one, Difference::Less(1), receipt).await;
        assert_eq!(bench.left(one).await, 1, "{name}");
        bench.take(one).await;
        one.ask.max_wait = MaxWait::ENDLESS;
        let held = bench.decide(&[one]).await.verdict;
        let is_held = matches!(held, Verdict::Pass { wait } if wait > Duration::ZERO);
        assert!(is_held, "{name}: {held:?}");
        bench.settle(one, Difference::More(20), Receipt::NONE).await;
        one.ask.max_wait = MaxWait::NONE;
        assert_eq!(bench.left(one).await, 0, "{name}");
    }
}

/// A calendar whose days are decades.
fn years() -> Schedule {
    let start = |place: u64| Timestamp::from_micros(place * MAX_INTERVAL).unwrap();
    Schedule::new(Unit::Day, "Somewhere".into(), (0..12).map(start).collect()).unwrap()
}

async fn every_key_and_limit_has_a_bucket_of_its_own(bench: &Bench) {
    let (one, two) = (limit("one"), limit("two"));
    let (a, b, c) = (key("a"), key("b"), BucketKey::from(Key::of([Some(&b"a"[..]), None])));
    for (spec, key) in [(&one, &a), (&one, &b), (&one, &c), (&two, &a)] {
        assert_eq!(bench.take(ask(spec, key, 3)).await, Some(2), "{} {key:?}", spec.name);
    }
    assert_eq!(bench.take(ask(&one, &a, 3)).await, Some(1));
}

async fn a_limit_without_a_key_has_one_bucket(bench: &Bench) {
    let (mut spec, key) = (limit("global"), no_key());
    spec.key.sources = Vec::new().into();
    assert_eq!(bench.take(ask(&spec, &key, 3)).await, Some(2));
    assert_eq!(bench.take(ask(&spec, &key, 3)).await, Some(1));
}

async fn what_is_given_back_can_be_taken_again(bench: &Bench) {
    let (spec, key) = (settled("per-client"), key("192.0.2.1"));
    let one = ask(&spec, &key, 2);
    let first = bench.noted(one).await;
    let second = bench.noted(one).await;
    assert_eq!(bench.take(one).await, None);
    for (receipt, left) in [(Receipt::NONE, 0), (first, 1), (second, 2), (second, 2)] {
        bench.settle(one, Difference::Less(1), receipt).await;
        assert_eq!(bench.left(one).await, left);
    }
}

/// A receipt's time is read by the figures with which it was written.
async fn a_request_under_way_keeps_its_estimate_under_no_other_figures(bench: &Bench) {
    for (name, before, after) in [
        ("lowered", bucket("100/h", 1_000), bucket("1/h", 1_000)),
        ("raised", bucket("1/h", 1_000), bucket("100/h", 1_000)),
        ("a rate of several tokens", bucket("300/7h", 1_000), bucket("3/7h", 1_000)),
        ("even", leaky("100/h", 999), leaky("1/h", 999)),
        ("even and raised", leaky("1/h", 999), leaky("100/h", 999)),
    ] {
        let (spec, key) = (settled("used"), key(name));
        let under = |algorithm| {
            let mut one = ask(&spec, &key, 1_000);
            (one.ask.algorithm, one.ask.cost) = (algorithm, Cost::new(500).unwrap());
            one
        };
        let receipt = bench.noted(under(before)).await;
        bench.settle(under(after), Difference::Less(490), receipt).await;
        assert_eq!(bench.left(under(after)).await, 990, "{name}");
    }
}

/// Nothing is noted, and nothing more sent by Redis, where nobody will ask for it.
async fn receipts_are_given_where_something_may_come_back(bench: &Bench) {
    let (plain, node, key) = (limit("plain"), limit("node"), key("192.0.2.1"));
    let (response, node) =
        (settled("response"), LimitSpec { scope: tidegate::limit::Scope::Node, ..node });
    let mut held = ask(&node, &key, 1);
    held.ask.max_wait = MaxWait::ENDLESS;
    let (plain, response) = (ask(&plain, &key, 10), ask(&response, &key, 10));
    for (name, asks, noted) in [
        ("none", vec![plain], vec![false]),
        ("what is settled", vec![plain, response], vec![false, true]),
        ("who goes at once does not come back", vec![held, plain], vec![false, false]),
        ("who is held gives back to all", vec![held, plain], vec![true, true]),
    ] {
        let answer = bench.decide(&asks).await;
        let receipts = answer.receipts.iter().map(|it| it.is_some_and(|it| it != Receipt::NONE));
        assert_eq!(receipts.collect::<Vec<_>>(), noted, "{name}");
    }
}

/// What others have taken before and after stays.
async fn a_sliding_log_gives_back_its_own_entries(bench: &Bench) {
    let (spec, key) = (settled("log"), key("192.0.2.1"));
    let mut one = ask(&spec, &key, 3);
    one.ask.algorithm = log("3/m");
    let (mut patient, mut receipts) = (one, Vec::new());
    patient.ask.max_wait = MaxWait::ENDLESS;
    // Three go at once, and two after a minute.
    for _ in 0..5 {
        receipts.push(bench.noted(patient).await);
    }
    let next = async || {
        let look = bench.store.look(&one, Bench::now()).await.unwrap();
        let Outcome::Reject { retry_after } = look.outcome else { panic!("{look:?}") };
        retry_after
    };
    for receipt in [receipts[4], receipts[3]] {
        bench.settle(one, Difference::Less(1), receipt).await;
        bench.assert_wait(next().await, Duration::from_secs(60));
    }
    bench.settle(one, Difference::Less(1), receipts[1]).await;
    assert_eq!(bench.left(one).await, 1);

    // A list that is full may have forgotten some that still count.
    for _ in 0..101 {
        receipts.push(bench.noted(patient).await);
    }
    let wait = next().await.unwrap();
    for receipt in &receipts {
        bench.settle(one, Difference::Less(1), *receipt).await;
    }
    bench.assert_wait(next().await, wait);
}

async fn a_forgotten_bucket_is_new(bench: &Bench) {
    let (spec, key) = (limit("per-client"), key("192.0.2.1"));
    for algorithm in [bucket("1/h", 1), rolling("1/h"), sliding("1/3650d"), log("1/h")] {
        let mut one = ask(&spec, &key, 1);
        one.ask.algorithm = algorithm;
        bench.take(one).await;
        assert_eq!(bench.take(one).await, None);
        bench.store.forget(&one).await.unwrap();
        assert_eq!(bench.take(one).await, Some(0), "{algorithm}");
    }
}

async fn a_look_takes_nothing(bench: &Bench) {
    let (spec, key) = (limit("per-client"), key("192.0.2.1"));
    let one = ask(&spec, &key, 1);
    for _ in 0..3 {
        let look = bench.store.look(&one, Bench::now()).await.unwrap();
        assert_eq!(look, Decision { outcome: Outcome::Allow, remaining: 1 });
    }
    // A regression: in Redis a limit in shadow took.
    for mode in [Mode::Enforce, Mode::Shadow, Mode::Mark] {
        let look = BucketAsk { ask: Ask { takes: false, mode, ..one.ask }, ..one };
        for _ in 0..2 {
            assert_eq!(bench.decide(&[look]).await.remaining(0), 1, "{mode:?}");
        }
    }
    bench.take(one).await;
    let look = bench.store.look(&one, Bench::now()).await.unwrap();
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
            decide(&bench.store, &asks, Bench::now()),
            decide(&other, &asks, Bench::now())
        );
        for answer in [here.unwrap(), there.unwrap()] {
            passed += usize::from(answer.verdict == Verdict::PASS);
        }
    }
    assert_eq!(passed, 50);
}

/// The ask of a limit that lets so many pass in an hour, whenever it begins.
fn logged<'r>(spec: &'r LimitSpec, key: &'r BucketKey, count: u64) -> BucketAsk<'r> {
    let mut ask = ask(spec, key, 1);
    ask.ask.algorithm = log(&format!("{count}/h"));
    ask
}

/// In Redis requests that come together are one call, and some of them want no receipts.
async fn receipts_are_those_of_each_request(bench: &Bench) {
    let (spec, plain, key) = (settled("settled"), limit("plain"), key("192.0.2.1"));
    let asks = [ask(&spec, &key, 3), ask(&plain, &key, 90)];
    let began = Instant::now();
    // One has both limits, the next the plain one alone; and from the fourth on the first refuses.
    let all = (0..10).map(|n| decide(&bench.store, &asks[n % 2..], Bench::now()));
    let answers = futures_join(all).await;
    let mut before = None;
    for (n, answer) in answers.iter().enumerate() {
        let told = n % 2 == 0 && answer.verdict.passes();
        assert_eq!(answer.receipts[0].is_some(), told, "{n}: {answer:?}");
        // By when its bucket is full again: an hour later for each that took.
        let Some(full) = answer.receipts[0].map(Receipt::time) else { continue };
        if let Some(before) = before.replace(full) {
            let apart = Duration::from_micros(full.micros_since(before));
            assert!(apart >= HOUR && apart < HOUR + began.elapsed(), "{n}: {apart:?}");
        }
    }
    assert_eq!(answers.iter().filter(|answer| answer.verdict.passes()).count(), 3 + 5);
}

/// Many in one microsecond: in Redis, whose clock stands still within a call, in one call.
async fn a_sliding_log_takes_many_at_once(bench: &Bench) {
    let (spec, tokens, key) = (limit("log"), limit("tokens"), key("192.0.2.1"));
    let asks = [logged(&spec, &key, 50), ask(&tokens, &key, 90)];
    let all = (0..100).map(|n| decide(&bench.store, &asks[..1 + n % 2], Bench::now()));
    let answers = futures_join(all).await;
    let passed = answers.iter().filter(|answer| answer.verdict == Verdict::PASS).count();
    assert_eq!(passed, 50);
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
fn slots<'r>(spec: &'r LimitSpec, key: &'r BucketKey, limit: u64) -> BucketAsk<'r> {
    let mut ask = ask(spec, key, 1);
    ask.ask.algorithm = algorithms::slots(limit, HOUR);
    ask
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
    let (held, tokens, other) = (limit("slots"), limit("tokens"), limit("log"));
    let key = key("192.0.2.1");
    let asks = [slots(&held, &key, 9), ask(&tokens, &key, 2), logged(&other, &key, 9)];
    let answers = [bench.decide(&asks).await, bench.decide(&asks).await];
    let refused = bench.decide(&asks).await;
    assert!(matches!(refused.verdict, Verdict::Refuse { by: 1, .. }), "{refused:?}");
    let left: Vec<_> = refused.decisions.iter().map(|d| d.unwrap().remaining).collect();
    assert_eq!(left, [7, 0, 7], "what was refused took nothing");
    assert_eq!(bench.left(asks[0]).await, 7);
    let full = [slots(&held, &key, 2), logged(&other, &key, 9)];
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
        let mut asking = Box::pin(decide(&bench.store, std::slice::from_ref(&one), Bench::now()));
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
