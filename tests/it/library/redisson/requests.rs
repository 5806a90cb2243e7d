//! A limiter among the other limits of a request, and what becomes of what the request took.

use std::time::Duration;

use tidegate::limit::Mode;
use tidegate::limit::algorithm::redisson::{Params, Sharing};
use tidegate::limit::algorithm::{Difference, Receipt};
use tidegate::limit::decision::Verdict;
use tidegate::limit::name::Name;
use tidegate::limit::rate::Rate;
use tidegate::limit::waiting::MaxWait;
use tidegate::settings::{LimitSpec, OnStoreError, StoreSpec};
use tidegate::store::{Decider, Unavailable};
use tokio::time::Instant;

use super::{Bench, HOUR_MS, ask, ask_with, deciders, limiter, now, permits, store_at};
use crate::support::bench::{decide, store_spec, stores};
use crate::support::java::Java;
use crate::support::limits::{ask as bucket_ask, key, limit, no_key};
use crate::support::redis::{RedisServer, location, own_calls};
use crate::support::until;

#[tokio::test]
async fn a_request_that_leaves_gives_back_what_it_took() {
    let bench = Bench::start();
    let mut java = Java::new(&bench.server, "orders");
    java.try_set_rate(10, HOUR_MS);
    let (shared, bucket) = (limiter("orders"), limit("bucket"));
    let key = key("x");
    // A limit that is decided first, so that the connection is there.
    bench.take(&shared, 1).await.unwrap();
    let asks = [ask(&shared, &key, 2), bucket_ask(&bucket, &key, 2)];
    {
        let leaving = decide(&bench.store, &asks, now());
        tokio::pin!(leaving);
        let max_wait = crate::support::now() + crate::support::PATIENCE;
        // Until its entry is there it has asked nobody else.
        while bench.entries("orders").len() < 2 {
            assert!(crate::support::now() < max_wait, "never asked");
            tokio::select! {
                biased;
                _ = &mut leaving => panic!("it has not asked the limiter first"),
                () = tokio::task::yield_now() => {}
            }
        }
    }
    until("it is given back", async || bench.entries("orders").len() == 1).await;
}

#[tokio::test]
async fn a_shadow_takes_where_it_allows_and_never_refuses() {
    let bench = Bench::start();
    let mut java = Java::new(&bench.server, "orders");
    java.try_set_rate(1, HOUR_MS);
    let mut shadow = limiter("orders");
    shadow.mode = Mode::Shadow;
    let (bucket, key) = (limit("bucket"), key("x"));
    for (remaining, outcome) in [(9, true), (8, false)] {
        let asks = [ask(&shadow, &key, 1), bucket_ask(&bucket, &key, 10)];
        let answer = bench.decide(&asks).await;
        assert_eq!(answer.verdict, Verdict::PASS);
        assert_eq!(answer.remaining(1), remaining);
        assert_eq!(answer.decisions[0].unwrap().outcome.passes(), outcome);
    }
}

#[tokio::test]
async fn what_a_request_used_more_or_less_is_settled() {
    let bench = Bench::start();
    let mut java = Java::new(&bench.server, "orders");
    java.try_set_rate(10, HOUR_MS);
    let (spec, none) = (limiter("orders"), no_key());
    let now_ms = java.redis_ms();
    java.try_acquire_at(4, now_ms - 60_000);
    let settle = async |used| {
        bench.store.settle(&ask(&spec, &none, 1), used, Receipt::NONE, now());
        bench.store.settled().await;
    };
    settle(Difference::More(8)).await;
    assert_eq!(bench.value("orders"), Some(-2));
    settle(Difference::Less(5)).await;
    assert_eq!(bench.value("orders"), Some(3));
    let taken: Vec<_> = bench.entries("orders").iter().map(|(member, _)| permits(member)).collect();
    assert_eq!(taken, [7], "the oldest go first");
    settle(Difference::Less(100)).await;
    assert_eq!((bench.value("orders"), bench.entries("orders").len()), (Some(10), 0));
}

#[tokio::test]
async fn whatever_a_request_used_its_entry_can_be_read() {
    let bench = Bench::start();
    Java::new(&bench.server, "orders").try_set_rate(10, HOUR_MS);
    let (spec, none) = (limiter("orders"), no_key());
    let used = Difference::More(u64::MAX);
    bench.store.settle(&ask(&spec, &none, 1), used, Receipt::NONE, now());
    bench.store.settled().await;
    let entries = bench.entries("orders");
    assert_eq!((entries.len(), permits(&entries[0].0)), (1, u32::MAX.into()));
    assert_eq!(bench.value("orders"), Some(10 - i64::from(u32::MAX)));
}

#[tokio::test]
async fn what_is_not_a_limiter_is_that_limits_error_alone() {
    for (name, set_up) in [
        ("not configured", &[][..]),
        ("another type", &["SET", "orders", "x"][..]),
        ("half a configuration", &["HSET", "orders", "rate", "5"][..]),
        ("nonsense", &["HSET", "orders", "rate", "x", "interval", "1", "type", "0"][..]),
        ("below zero", &["HSET", "orders", "rate", "-5", "interval", "1", "type", "0"][..]),
    ] {
        let bench = Bench::start();
        if !set_up.is_empty() {
            bench.server.run::<redis::Value>(set_up);
        }
        let mut spec = limiter("orders");
        let (bucket, key) = (limit("bucket"), key("x"));
        for _ in 0..10 {
            let asks = [bucket_ask(&bucket, &key, 10), ask(&spec, &key, 1)];
            assert_eq!(bench.try_decide(&asks).await, Err(Unavailable { by: 1 }), "{name}");
        }
        spec.on_store_error = OnStoreError::Allow;
        let asks = [bucket_ask(&bucket, &key, 10), ask(&spec, &key, 1)];
        let answer = bench.decide(&asks).await;
        assert_eq!((answer.verdict, answer.decisions[1]), (Verdict::PASS, None), "{name}");
        assert_eq!(answer.remaining(0), 9, "{name}: the others go on, in Redis");
    }
}

/// Once both were found out nobody was left to ask Redis about the others.
#[tokio::test]
async fn redis_decides_beside_what_cannot_decide() {
    let bench = Bench::start();
    bench.server.run::<()>(&["RPUSH", "tidegate:{x}:odd", "no bucket"]);
    let (mut unset, odd, good) = (limiter("unset"), limit("odd"), limit("good"));
    unset.on_store_error = OnStoreError::Allow;
    let (none, key) = (no_key(), key("x"));
    let asks = [ask(&unset, &none, 1), bucket_ask(&odd, &key, 10), bucket_ask(&good, &key, 10)];
    let answer = bench.decide(&asks).await;
    assert_eq!(deciders(&answer), [None, Some(Decider::Process), Some(Decider::Redis)]);
}

#[tokio::test]
async fn a_request_never_meets_permits_of_its_own() {
    let (orders, bucket, mut unset) = (limiter("orders"), limit("bucket"), limiter("unset"));
    unset.on_store_error = OnStoreError::Allow;
    let (none, key) = (no_key(), key("x"));
    for (name, other, by) in [
        ("a bucket of another type", bucket_ask(&bucket, &key, 1), Some(Decider::Process)),
        ("a limiter without figures", ask(&unset, &none, 1), None),
    ] {
        for max_wait in [MaxWait::NONE, MaxWait::of(Duration::from_secs(32_400))] {
            let bench = Bench::start();
            Java::new(&bench.server, "orders").try_set_rate(1, HOUR_MS);
            bench.server.run::<()>(&["RPUSH", "tidegate:{x}:bucket", "no bucket"]);
            let mut first = ask(&orders, &none, 1);
            first.ask.max_wait = max_wait;
            let answer = bench.decide(&[first, other]).await;
            let [Some(Decider::Limiter(_)), other] = deciders(&answer)[..] else {
                panic!("{name}")
            };
            assert_eq!(other, by, "{name}");
            assert_eq!(answer.verdict, Verdict::PASS, "{name}, {max_wait:?}");
            bench.store.settled().await;
            let entries = bench.entries("orders").len();
            assert_eq!((entries, bench.value("orders")), (1, Some(0)), "{name}, {max_wait:?}");
        }
    }
}

#[tokio::test]
async fn a_silent_redis_is_waited_for_once() {
    let server = RedisServer::start();
    let timeout = Duration::from_secs(2);
    let (_, store) = stores(&StoreSpec { timeout, ..store_spec(location(&server.url())) });
    let (mut orders, bucket) = (limiter("orders"), limit("bucket"));
    orders.on_store_error = OnStoreError::Allow;
    let (none, key) = (no_key(), key("x"));
    let asks = [ask(&orders, &none, 1), bucket_ask(&bucket, &key, 10)];
    decide(&store, &asks, now()).await.unwrap();
    server.pause();
    tokio::time::pause();
    let began = Instant::now();
    decide(&store, &asks, now()).await.unwrap();
    // Timers end on whole milliseconds.
    assert!(began.elapsed() <= timeout + Duration::from_millis(2), "{:?}", began.elapsed());
}

#[tokio::test]
async fn one_limiter_alone_is_one_call() {
    let bench = Bench::start();
    let mut java = Java::new(&bench.server, "orders");
    java.try_set_rate(1_000, HOUR_MS);
    let calls = || bench.server.calls("evalsha");
    bench.take(&limiter("orders"), 1).await.unwrap();
    let (before, began) = (calls(), Instant::now());
    for _ in 0..50 {
        bench.take(&limiter("orders"), 1).await.unwrap();
    }
    let calls = calls() - before;
    let most = 50 + own_calls(began.elapsed());
    assert!((50..=most).contains(&calls), "{calls} calls for 50 requests");
}

#[tokio::test]
async fn a_user_with_the_rights_of_the_manual_can_share_a_limiter() {
    let server = RedisServer::start();
    let store = store_at(server.as_user());
    let (spec, key) = (limiter("orders"), no_key());
    let rate = Rate::new(2, HOUR_MS * 1_000);
    let params = Params::new(rate.ok(), Sharing::Overall).unwrap();
    let mut one = ask_with(&spec, &key, 1, params);
    for passes in [true, true, false] {
        let answer = decide(&store, &[one], now()).await.unwrap();
        assert_eq!(answer.verdict.passes(), passes, "{answer:?}");
        answer.keep();
    }
    one.ask.max_wait = MaxWait::of(Duration::from_secs(7_200));
    let waits = decide(&store, &[one], now()).await.unwrap();
    assert!(waits.verdict.passes(), "{waits:?}");
    waits.give_back(&store).await;
}

/// A regression: each refused request of one client took permits and gave them back, and the others found none
/// meanwhile. The client's own limit is asked first, wherever it stands.
#[tokio::test]
async fn a_flood_that_another_limit_refuses_takes_no_permits() {
    let bench = Bench::start();
    Java::new(&bench.server, "all").try_set_rate(100, HOUR_MS);
    Java::new(&bench.server, "one:x").try_set_rate(1, HOUR_MS);
    let (all, bucket) = (limiter("all"), limit("bucket"));
    let one =
        LimitSpec { name: Name::new("one").unwrap(), key: bucket.key.clone(), ..limiter("one") };
    let (none, key) = (no_key(), key("x"));
    // What limiters get back, and nothing else, is removed by ZREM.
    let returned = || bench.server.calls("zrem");
    for (name, other) in
        [("a bucket", bucket_ask(&bucket, &key, 1)), ("a limiter", ask(&one, &key, 1))]
    {
        let asks = [ask(&all, &none, 1), other];
        let passed = bench.decide(&asks).await;
        assert!(passed.verdict.passes(), "{name}");
        passed.keep();
        assert!(!bench.decide(&asks).await.verdict.passes(), "{name}");
        bench.store.settled().await;
        let (before, left) = (returned(), bench.value("all").unwrap());
        for _ in 0..20 {
            let refused = bench.decide(&asks).await;
            assert!(matches!(refused.verdict, Verdict::Refuse { by: 1, .. }), "{name}");
            assert_eq!(refused.remaining(0), left.unsigned_abs(), "{name}");
        }
        bench.store.settled().await;
        assert_eq!(returned(), before, "{name}");
        bench.store.forget(&asks[1]).await.unwrap();
        let passed = bench.decide(&asks).await;
        assert!(passed.verdict.passes(), "{name}: it has a token again");
        passed.keep();
        assert_eq!(bench.value("all"), Some(left - 1), "{name}");
        // What the shared limiter refuses goes back to the client's own limit.
        bench.store.forget(&asks[1]).await.unwrap();
        bench.server.run::<()>(&["HSET", "all", "rate", "1"]);
        for _ in 0..3 {
            let refused = bench.decide(&asks).await;
            assert!(matches!(refused.verdict, Verdict::Refuse { by: 0, .. }), "{name}");
            assert_eq!(refused.remaining(1), 1, "{name}");
            bench.store.settled().await;
        }
        bench.server.run::<()>(&["HSET", "all", "rate", "100"]);
        assert_eq!(bench.store.look(&asks[1], now()).await.unwrap().remaining, 1, "{name}");
    }
}

/// One such limiter took the whole store down, again and again.
#[tokio::test]
async fn an_entry_that_never_leaves_is_its_limiters_own_trouble() {
    for score in ["+inf", "1e300", "9007199254740993"] {
        let bench = Bench::start();
        let mut java = Java::new(&bench.server, "orders");
        java.try_set_rate(2, HOUR_MS);
        let mut entry = redis::cmd("ZADD");
        entry.arg("{orders}:permits").arg(score).arg(&b"\x01x\x01\0\0\0"[..]);
        entry.query::<()>(&mut bench.server.connection()).unwrap();
        let spec = limiter("orders");
        assert_eq!(bench.take(&spec, 1).await, Ok(0), "{score}");
        for _ in 0..5 {
            assert!(bench.take(&spec, 1).await.is_err(), "{score}");
            assert!(bench.take(&spec, 2).await.is_err(), "{score}");
        }
    }
}

#[tokio::test]
async fn a_limiter_without_a_limit_lets_all_pass() {
    let bench = Bench::start();
    let rate = i64::MAX.to_string();
    let figures = ["HSET", "orders", "rate", &rate, "interval", "1000", "type", "0"];
    bench.server.run::<u64>(&figures);
    let spec = limiter("orders");
    for cost in [1, 1_000_000_000, 1] {
        assert!(bench.take(&spec, cost).await.is_ok(), "{cost}");
    }
    // What Java writes for its own permits.
    bench.server.run::<()>(&["SET", "{orders}:value", &(i64::MAX - 3).to_string()]);
    assert!(bench.take(&spec, 1).await.is_ok());
}
