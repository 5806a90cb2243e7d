//! Requests that a limiter holds: their places are entries of a time to come, which Java finds taken.

use std::time::Duration;

use tidegate::limit::algorithm::redisson::{Params, Sharing};
use tidegate::limit::algorithm::{Difference, Receipt};
use tidegate::limit::decision::{Outcome, Verdict};
use tidegate::limit::waiting::MaxWait;
use tidegate::settings::LimitSpec;
use tidegate::store::{BucketAsk, BucketKey};

use super::{Bench, HOUR_MS, ask, ask_with, limiter, now, permits, store};
use crate::support::bench::{Answer, decide};
use crate::support::java::Java;
use crate::support::limits::{ask as bucket_ask, key, limit, no_key};
use crate::support::until;

/// A request that may be held for so many hours.
fn patient<'r>(spec: &'r LimitSpec, key: &'r BucketKey, cost: u64, hours: u64) -> BucketAsk<'r> {
    let mut ask = ask(spec, key, cost);
    ask.ask.max_wait = MaxWait::of(Duration::from_secs(3_600 * hours));
    ask
}

impl Bench {
    /// A request that may be held for so many hours, and for how long it is.
    async fn hold(&self, cost: u64, hours: u64) -> (Answer, Option<Duration>) {
        let (spec, none) = (limiter("orders"), no_key());
        let answer = self.decide(&[patient(&spec, &none, cost, hours)]).await;
        let held = match answer.decisions[0].unwrap().outcome {
            Outcome::Delay(wait) => Some(wait),
            Outcome::Allow | Outcome::Reject { .. } => None,
        };
        (answer, held)
    }
}

/// Whether the time is so many hours, less what a test takes.
fn is_hours(time: Duration, hours: u64) -> bool {
    let exact = Duration::from_secs(3_600 * hours);
    time <= exact && exact - time < Duration::from_secs(600)
}

#[tokio::test]
async fn a_place_is_an_entry_at_the_time_of_going() {
    let bench = Bench::start();
    let mut java = Java::new(&bench.server, "orders");
    java.try_set_rate(3, HOUR_MS);
    let first = java.redis_ms();
    java.try_acquire_at(2, first);
    java.try_acquire_at(1, first + 1);
    let before = java.redis_ms() * 1_000;
    let (one, wait) = bench.hold(3, 2).await;
    let (wait, after) = (wait.unwrap(), java.redis_ms() * 1_000 + 1_000);
    assert_eq!(one.verdict, Verdict::Pass { wait });
    assert_eq!(one.remaining(0), 0);
    assert_eq!(bench.value("orders"), Some(-3));
    let entries = bench.entries("orders");
    let (member, at) = &entries[2];
    assert_eq!((entries.len(), member.len(), permits(member)), (3, 21, 3));
    assert_eq!(*at, first + 1 + HOUR_MS, "when the last of them has left, to the millisecond");
    let wait = u64::try_from(wait.as_micros()).unwrap();
    assert!((before..=after).contains(&(at * 1_000 - wait)), "the wait ends then");

    // Whoever comes later finds it taken.
    assert_eq!(java.try_acquire(1), None);
    let (two, wait) = bench.hold(1, 9).await;
    assert!(is_hours(wait.unwrap(), 2), "{wait:?}");
    let (three, wait) = bench.hold(3, 9).await;
    assert!(is_hours(wait.unwrap(), 3), "{wait:?}: behind the one before");
    let retry = bench.take(&limiter("orders"), 1).await.unwrap_err().unwrap();
    assert!(is_hours(retry, 4), "{retry:?}: and who does not wait is told when nobody does");
    let (_, wait) = bench.hold(1, 3).await;
    assert_eq!(wait, None, "four hours are more than it may be held");
    assert_eq!(bench.value("orders"), Some(-7));
    for answer in [one, two, three] {
        answer.keep();
    }
    assert_eq!(java.try_acquire_at(1, first + 2 * HOUR_MS), None);
    assert_eq!(java.try_acquire_at(2, first + 1 + 2 * HOUR_MS), None, "one of them is held");
    assert_eq!(bench.value("orders"), Some(-1));
}

#[tokio::test]
async fn who_leaves_gives_its_own_place_back_and_nobody_overtakes() {
    let bench = Bench::start();
    let mut java = Java::new(&bench.server, "orders");
    java.try_set_rate(2, HOUR_MS);
    java.try_acquire(2);
    let (first, _) = bench.hold(1, 9).await;
    let (second, _) = bench.hold(2, 9).await;
    let (third, wait) = bench.hold(1, 9).await;
    assert!(is_hours(wait.unwrap(), 3), "{wait:?}");
    let places = bench.entries("orders");
    drop(second);
    // What a process waits for before it ends.
    bench.store.settled().await;
    assert_eq!(bench.value("orders"), Some(-2));
    assert_eq!(bench.entries("orders"), [places[0].clone(), places[1].clone(), places[3].clone()]);
    let (_fourth, wait) = bench.hold(1, 9).await;
    assert!(is_hours(wait.unwrap(), 3), "{wait:?}: together with the last, and not before");
    first.give_back(&bench.store).await;
    assert_eq!((bench.value("orders"), bench.entries("orders").len()), (Some(-2), 3));
    bench.server.run::<()>(&["DEL", "{orders}:value", "{orders}:permits"]);
    third.give_back(&bench.store).await;
    assert_eq!(bench.keys(), ["orders"], "of what Java forgot nothing comes back");
}

#[tokio::test]
async fn who_comes_later_takes_nothing_from_those_who_wait() {
    let bench = Bench::start();
    let mut java = Java::new(&bench.server, "orders");
    java.try_set_rate(4, HOUR_MS);
    let now_ms = java.redis_ms();
    java.try_acquire_at(1, now_ms - HOUR_MS / 2);
    java.try_acquire_at(2, now_ms);
    let (_large, wait) = bench.hold(4, 1).await;
    assert!(is_hours(wait.unwrap(), 1), "{wait:?}");
    // It goes when the two leave. Java's clock says that they have.
    bench.server.run::<()>(&["ZREMRANGEBYSCORE", "{orders}:permits", "0", &now_ms.to_string()]);
    bench.server.run::<()>(&["SET", "{orders}:value", "0"]);
    let (_small, wait) = bench.hold(1, 9).await;
    assert!(is_hours(wait.unwrap(), 2), "{wait:?}");
    drop(_large);
    bench.until(3, 1).await;
    let refused = bench.decide(&[ask(&limiter("orders"), &no_key(), 1)]).await;
    let decision = refused.decisions[0].unwrap();
    assert!(!decision.outcome.passes() && decision.remaining == 0, "{decision:?}");
    assert_eq!(java.try_acquire(3), Some(0), "for Java it is");
}

#[tokio::test]
async fn a_wrong_value_is_repaired_with_those_who_wait() {
    for value in ["0", "-1", "-9", "2", "many"] {
        let bench = Bench::start();
        let mut java = Java::new(&bench.server, "orders");
        java.try_set_rate(2, HOUR_MS);
        java.try_acquire(2);
        let (_one, _two) = (bench.hold(1, 9).await, bench.hold(2, 9).await);
        assert_eq!(bench.value("orders"), Some(-3));
        // As `updateRate` with its state kept does it: never below zero.
        bench.server.run::<()>(&["SET", "{orders}:value", value]);
        let (_three, wait) = bench.hold(1, 9).await;
        assert!(is_hours(wait.unwrap(), 3), "{value}: {wait:?}");
        assert_eq!(bench.value("orders"), Some(-4), "{value}");
    }
}

#[tokio::test]
async fn giving_back_takes_nothing_from_those_who_wait() {
    let bench = Bench::start();
    let mut java = Java::new(&bench.server, "orders");
    java.try_set_rate(3, HOUR_MS);
    java.try_acquire(3);
    let (_held, _) = bench.hold(2, 9).await;
    let (spec, none, used) = (limiter("orders"), no_key(), Difference::Less(9));
    bench.store.settle(&ask(&spec, &none, 1), used, Receipt::NONE, now());
    bench.store.settled().await;
    assert_eq!((bench.value("orders"), bench.entries("orders").len()), (Some(1), 1));
}

#[tokio::test]
async fn a_deep_queue_is_counted_by_its_places_too() {
    for most in [1, 3] {
        let bench = Bench::start();
        Java::new(&bench.server, "orders").try_set_rate(60, HOUR_MS);
        let mut held = Vec::new();
        let mut used = 0;
        while used < 600 {
            let cost = 1 + used % most;
            let (answer, wait) = bench.hold(cost, 20).await;
            used += cost;
            let hours = (used - 1) / 60;
            let wait = wait.unwrap_or_default();
            // One that does not fit into an hour whole goes with the next.
            let slack = u64::from(most > 1) * (hours / 10 + 1);
            assert!((hours..=hours + slack).any(|hours| is_hours(wait, hours)), "{used}: {wait:?}");
            held.push(answer);
        }
        assert_eq!(bench.value("orders"), Some(60 - used.cast_signed()));
    }
}

#[tokio::test]
async fn several_limits_hold_for_the_longest_wait_or_not_at_all() {
    let bench = Bench::start();
    for (name, interval_ms) in [("orders", HOUR_MS), ("slow", 3 * HOUR_MS)] {
        let mut java = Java::new(&bench.server, name);
        java.try_set_rate(1, interval_ms);
        java.try_acquire(1);
    }
    let (orders, slow, bucket) = (limiter("orders"), limiter("slow"), limit("bucket"));
    let (none, key) = (no_key(), key("x"));
    let asks = |hours| {
        let mut bucket = bucket_ask(&bucket, &key, 1);
        bucket.ask.max_wait = MaxWait::of(Duration::from_secs(3_600));
        [patient(&orders, &none, 1, hours), patient(&slow, &none, 1, hours), bucket]
    };
    let held = bench.decide(&asks(4)).await;
    let Verdict::Pass { wait } = held.verdict else { panic!("{:?}", held.verdict) };
    assert!(is_hours(wait, 3), "{wait:?}");
    assert_eq!(held.decisions[2].unwrap().outcome, Outcome::Allow);
    let values = || [bench.value("orders"), bench.value("slow")];
    assert_eq!(values(), [Some(-1), Some(-1)]);
    // The second limiter refuses: the first one's place is given back.
    let refused = bench.decide(&asks(3)).await;
    assert!(matches!(refused.verdict, Verdict::Refuse { by: 1, .. }));
    assert!(matches!(refused.decisions[0].unwrap().outcome, Outcome::Delay(_)));
    bench.until(-1, 2).await;
    // The bucket refuses: both are.
    let more = bench.decide(&[bucket_ask(&bucket, &key, 1)]).await;
    assert!(!more.verdict.passes());
    let mut hard = asks(9);
    hard[2].ask.max_wait = MaxWait::NONE;
    let refused = bench.decide(&hard).await;
    assert!(matches!(refused.verdict, Verdict::Refuse { by: 2, .. }), "{:?}", refused.verdict);
    bench.until(-1, 2).await;
    until("both are given back", async || values() == [Some(-1), Some(-1)]).await;
    drop(held);
    bench.until(0, 1).await;
}

#[tokio::test]
async fn where_each_client_counts_each_has_its_own_queue() {
    let bench = Bench::start();
    let other = store(&bench.server);
    let params = Params::new(Some("1/h".parse().unwrap()), Sharing::PerClient).unwrap();
    let (spec, none) = (limiter("orders"), no_key());
    let mut ask = ask_with(&spec, &none, 1, params);
    ask.ask.max_wait = MaxWait::of(Duration::from_secs(7_200));
    for store in [&bench.store, &other] {
        let first = decide(store, &[ask], now()).await.unwrap();
        assert_eq!(first.verdict, Verdict::PASS);
        let held = decide(store, &[ask], now()).await.unwrap();
        let Verdict::Pass { wait } = held.verdict else { panic!("{:?}", held.verdict) };
        assert!(is_hours(wait, 1), "{wait:?}");
        held.give_back(store).await;
        let again = decide(store, &[ask], now()).await.unwrap();
        let Verdict::Pass { wait } = again.verdict else { panic!("{:?}", again.verdict) };
        assert!(is_hours(wait, 1), "{wait:?}");
        again.keep();
    }
}

#[tokio::test]
async fn keys_end_as_redissons_do_and_nobody_waits_longer() {
    let bench = Bench::start();
    let mut java = Java::new(&bench.server, "orders");
    java.try_set_rate(1, HOUR_MS);
    // Entries stay for two intervals after the last use: an entry a whole one ahead leaves in time.
    let keep = 2 * HOUR_MS;
    bench.server.run::<()>(&["HSET", "orders", "keepAliveTime", &keep.to_string()]);
    java.try_acquire(1);
    let (_one, wait) = bench.hold(1, 9).await;
    assert!(is_hours(wait.unwrap(), 1), "{wait:?}");
    for key in ["orders", "{orders}:value", "{orders}:permits"] {
        let ttl: u64 = bench.server.run(&["PTTL", key]);
        assert!((keep - 60_000..=keep).contains(&ttl), "{key}: {ttl}");
    }
    let (refused, wait) = bench.hold(1, 9).await;
    assert_eq!(wait, None);
    let Outcome::Reject { retry_after } = refused.decisions[0].unwrap().outcome else {
        panic!("{refused:?}")
    };
    assert!(is_hours(retry_after.unwrap(), 2), "{retry_after:?}");
    assert_eq!(bench.value("orders"), Some(-1), "it took nothing");
}

#[tokio::test]
async fn nobody_waits_beyond_the_end_that_expire_gave_the_keys() {
    const MINUTE_MS: u64 = HOUR_MS / 60;
    for (name, minutes, held) in [
        ("no end", None, &[true, true][..]),
        ("before it goes", Some(30), &[false]),
        ("before its interval is over", Some(110), &[false]),
        ("after that, and before the next one's is", Some(130), &[true, false]),
    ] {
        let bench = Bench::start();
        let mut java = Java::new(&bench.server, "orders");
        java.try_set_rate(1, HOUR_MS);
        java.try_acquire(1);
        if let Some(minutes) = minutes {
            let ends = (minutes * MINUTE_MS).to_string();
            bench.server.run::<()>(&["PEXPIRE", "orders", &ends]);
        }
        let mut answers = Vec::new();
        for (place, is_held) in (1..).zip(held) {
            let (answer, wait) = bench.hold(1, 9).await;
            assert_eq!(wait.is_some(), *is_held, "{name}: {place}");
            let time = match answer.decisions[0].unwrap().outcome {
                Outcome::Reject { retry_after } => retry_after,
                Outcome::Allow | Outcome::Delay(_) => wait,
            };
            assert!(is_hours(time.unwrap(), place), "{name}: {time:?}");
            answers.push(answer);
        }
        let places = held.iter().filter(|is_held| **is_held).count();
        assert_eq!(bench.entries("orders").len(), 1 + places, "{name}: the others took nothing");
    }
}
