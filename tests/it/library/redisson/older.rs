//! Limiters of a Redisson before 3.17, whose keys have the same names and other contents.

use std::time::Duration;

use tidegate::limit::algorithm::redisson::{Params, Sharing};
use tidegate::limit::algorithm::{Difference, Receipt};
use tidegate::limit::waiting::MaxWait;
use tidegate::store::{BucketAsk, Unavailable};

use super::{Bench, HOUR_MS, ask, ask_with, limiter, now, permits};
use crate::support::java::Java;
use crate::support::limits::no_key;
use crate::support::redis::RedisServer;

/// What `tryAcquire` of each of these versions has written after it took one permit. KEYS: value, permits.
/// ARGV: rate, interval, the time of the entry.
const ACQUIRED: [(&str, &str); 4] = [
    ("3.13.2", "redis.call('SET', KEYS[1], ARGV[1] - 1, 'PX', ARGV[2])"),
    (
        "3.16.3",
        "redis.call('SET', KEYS[1], ARGV[1] - 1)
        redis.call('ZADD', KEYS[2], ARGV[3], struct.pack('fI', 0.37, 1))",
    ),
    (
        "3.16.3, a float that looks like the length of an id",
        "redis.call('SET', KEYS[1], ARGV[1] - 1)
        redis.call('ZADD', KEYS[2], ARGV[3], '\\3\\2\\1\\62\\1\\0\\0\\0')",
    ),
    (
        "3.16.8",
        "redis.call('SET', KEYS[1], ARGV[1] - 1)
        redis.call('ZADD', KEYS[2], ARGV[3], struct.pack('Lc0I', 8, 'eightbyt', 1))",
    ),
];

/// An older Redisson took a permit of five in an hour, at this time.
fn acquire(server: &RedisServer, script: &str, [value, entries]: [&str; 2], at_ms: u64) {
    let script = redis::Script::new(script);
    let mut call = script.key(value);
    call.key(entries).arg(5).arg(HOUR_MS).arg(at_ms);
    call.invoke::<()>(&mut server.connection()).unwrap();
}

fn set_rate(server: &RedisServer) {
    let interval = HOUR_MS.to_string();
    server.run::<u64>(&["HSET", "orders", "rate", "5", "interval", &interval, "type", "0"]);
}

/// All that the server holds.
fn contents(bench: &Bench) -> Vec<(String, Vec<u8>, bool)> {
    let keys = bench.keys().into_iter();
    let contents = keys.map(|key| {
        let dump = bench.server.run(&["DUMP", &key]);
        let expires = bench.server.run::<i64>(&["PTTL", &key]) > 0;
        (key, dump, expires)
    });
    contents.collect()
}

async fn is_refused(bench: &Bench, ask: BucketAsk<'_>, name: &str) {
    let before = contents(bench);
    let mut waits = ask;
    waits.ask.max_wait = MaxWait::of(Duration::from_secs(36_000));
    for ask in [ask, ask, waits] {
        assert_eq!(bench.try_decide(&[ask]).await, Err(Unavailable { by: 0 }), "{name}");
    }
    assert!(bench.store.look(&ask, now()).await.is_err(), "{name}");
    bench.store.settle(&ask, Difference::More(1), Receipt::NONE, now());
    bench.store.settled().await;
    assert_eq!(contents(bench), before, "{name}: nothing is written");
}

const OF_ALL: [&str; 2] = ["{orders}:value", "{orders}:permits"];

/// Both sides together admitted twice the rate, and nobody was told.
#[tokio::test]
async fn an_older_redisson_on_the_same_keys_is_that_limiters_error() {
    let (spec, none) = (limiter("orders"), no_key());
    let params = Params::new(Some("5/h".parse().unwrap()), Sharing::Overall).unwrap();
    for (version, script) in ACQUIRED {
        for (when, age_ms) in [("just now", 0), ("an interval ago", HOUR_MS + 5)] {
            let bench = Bench::start();
            set_rate(&bench.server);
            let at = Java::new(&bench.server, "orders").redis_ms() - age_ms;
            acquire(&bench.server, script, OF_ALL, at);
            let name = format!("{version}, {when}");
            is_refused(&bench, ask(&spec, &none, 1), &name).await;
            bench.server.run::<()>(&["DEL", "orders"]);
            is_refused(&bench, ask_with(&spec, &none, 1, params), &name).await;
        }
    }
}

/// Java reads a proxy's entries as other numbers of permits, and later lets everything pass.
#[tokio::test]
async fn an_older_redisson_that_comes_later_is_found_too() {
    let (spec, none) = (limiter("orders"), no_key());
    for (version, script) in &ACQUIRED[1..] {
        for (when, age_ms) in [("newer", 0), ("older, by a clock that is behind", HOUR_MS / 2)] {
            let bench = Bench::start();
            set_rate(&bench.server);
            assert_eq!(bench.take(&spec, 1).await, Ok(4));
            let at = Java::new(&bench.server, "orders").redis_ms() - age_ms;
            acquire(&bench.server, script, OF_ALL, at);
            is_refused(&bench, ask(&spec, &none, 1), &format!("{version}, {when}")).await;
        }
    }
}

#[tokio::test]
async fn a_window_of_an_older_redisson_is_known_whatever_the_figures_are() {
    let (spec, none) = (limiter("orders"), no_key());
    for (name, change) in [
        ("a lower rate", &["HSET", "orders", "rate", "3"][..]),
        ("a higher rate", &["HSET", "orders", "rate", "30"]),
        ("a field of newer versions", &["HSET", "orders", "keepAliveTime", "0"]),
        ("a hash that expires, but later", &["PEXPIRE", "orders", "5000000"]),
    ] {
        let bench = Bench::start();
        set_rate(&bench.server);
        acquire(&bench.server, ACQUIRED[0].1, OF_ALL, 0);
        bench.server.run::<i64>(change);
        is_refused(&bench, ask(&spec, &none, 1), name).await;
    }
}

#[tokio::test]
async fn when_the_older_redisson_has_gone_the_limiter_works() {
    let spec = limiter("orders");
    for (version, script) in ACQUIRED {
        let bench = Bench::start();
        set_rate(&bench.server);
        let at = Java::new(&bench.server, "orders").redis_ms();
        acquire(&bench.server, script, OF_ALL, at);
        assert!(bench.try_decide(&[ask(&spec, &no_key(), 1)]).await.is_err(), "{version}");
        // What `setRate` of a newer version does, and `tidegate redisson set`.
        Java::new(&bench.server, "orders").set_rate(5, HOUR_MS);
        assert_eq!(bench.take(&spec, 1).await, Ok(4), "{version}");
    }
}

#[tokio::test]
async fn a_process_of_its_own_keys_knows_an_older_redisson_too() {
    let params = Params::new(Some("5/h".parse().unwrap()), Sharing::PerClient).unwrap();
    let (spec, none) = (limiter("orders"), no_key());
    for (version, script) in ACQUIRED {
        let bench = Bench::start();
        bench.decide(&[ask_with(&spec, &none, 1, params)]).await.keep();
        let keys = bench.keys();
        let own = |begin: &str| keys.iter().find(|key| key.starts_with(begin)).unwrap().as_str();
        let own = ["{orders}:value:", "{orders}:permits:"].map(own);
        bench.server.run::<u64>(&["DEL", own[0], own[1]]);
        let at = Java::new(&bench.server, "orders").redis_ms();
        acquire(&bench.server, script, own, at);
        is_refused(&bench, ask_with(&spec, &none, 1, params), version).await;
    }
}

/// The keys of a newer Redisson expire together. Its value may stand without entries, because of its own faults.
#[tokio::test]
async fn keys_that_expire_together_are_no_older_redissons() {
    let spec = limiter("orders");
    for (name, keep) in [("keepAliveTime", HOUR_MS.to_string()), ("expire", "0".to_owned())] {
        let bench = Bench::start();
        set_rate(&bench.server);
        bench.server.run::<u64>(&["HSET", "orders", "keepAliveTime", &keep]);
        bench.server.run::<()>(&["SET", "{orders}:value", "0"]);
        for key in ["orders", "{orders}:value"] {
            bench.server.run::<u64>(&["PEXPIRE", key, &HOUR_MS.to_string()]);
        }
        assert_eq!(bench.take(&spec, 1).await, Ok(4), "{name}");
        let used: u64 = bench.entries("orders").iter().map(|(member, _)| permits(member)).sum();
        assert_eq!((used, bench.value("orders")), (1, Some(4)), "{name}");
    }
}
