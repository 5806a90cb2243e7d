//! Whose figures count, for how long, and under which name.

use std::time::Duration;

use tidegate::limit::algorithm::redisson::{Params, Sharing};

use super::{Bench, HOUR_MS, ask_with, limiter, now, store};
use crate::support::bench::decide;
use crate::support::java::Java;
use crate::support::limits::no_key;

#[tokio::test]
async fn a_rate_that_java_sets_counts_from_the_next_request_on() {
    let bench = Bench::start();
    let mut java = Java::new(&bench.server, "orders");
    java.try_set_rate(2, HOUR_MS);
    let spec = limiter("orders");
    assert_eq!(bench.take(&spec, 2).await, Ok(0));
    java.set_rate(5, HOUR_MS);
    assert_eq!(bench.take(&spec, 1).await, Ok(4), "it forgets what was used");
    // An update that keeps what was used.
    bench.server.run::<()>(&["HSET", "orders", "rate", "3"]);
    assert_eq!(bench.take(&spec, 1).await, Ok(1));
    bench.server.run::<()>(&["HSET", "orders", "rate", "1"]);
    assert!(bench.take(&spec, 1).await.is_err());
    assert_eq!(
        bench.value("orders"),
        Some(-1),
        "one more than there is, and Java counts on from there"
    );
    assert_eq!(java.try_acquire(1), None);
}

#[tokio::test]
async fn with_a_rate_figures_are_set_only_where_there_are_none() {
    let bench = Bench::start();
    let params = |rate: &str| Params::new(Some(rate.parse().unwrap()), Sharing::Overall).unwrap();
    let (spec, none) = (limiter("orders"), no_key());
    bench.store.look(&ask_with(&spec, &none, 1, params("7/10m")), now()).await.unwrap();
    assert!(bench.keys().is_empty(), "a look writes nothing");
    bench.decide(&[ask_with(&spec, &none, 1, params("7/10m"))]).await;
    bench.decide(&[ask_with(&spec, &none, 1, params("9/s"))]).await;
    let mut hash: Vec<(String, String)> = bench.server.run(&["HGETALL", "orders"]);
    hash.sort();
    let hash: Vec<_> = hash.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(
        hash,
        [("interval", "600000"), ("keepAliveTime", "0"), ("rate", "7"), ("type", "0")]
    );
    assert_eq!(bench.value("orders"), Some(5));
}

/// Each name that a stranger made up left three keys for ever.
#[tokio::test]
async fn a_limiter_that_the_proxy_makes_has_the_keep_alive_time_of_the_file() {
    let bench = Bench::start();
    let (spec, none) = (limiter("orders"), no_key());
    let params = Params::new(Some("7/10m".parse().unwrap()), Sharing::Overall).unwrap();
    let kept = params.with_keep_alive(Duration::from_secs(900));
    let keep = || bench.server.run::<String>(&["HGET", "orders", "keepAliveTime"]);
    // A request that finds no permit makes the limiter too.
    assert!(!bench.decide(&[ask_with(&spec, &none, 8, kept)]).await.verdict.passes());
    bench.decide(&[ask_with(&spec, &none, 1, kept)]).await.keep();
    assert_eq!(keep(), "900000");
    for key in ["orders", "{orders}:value", "{orders}:permits"] {
        let ttl: i64 = bench.server.run(&["PTTL", key]);
        assert!((850_000..=900_000).contains(&ttl), "{key}: {ttl}");
    }
    // Where Redis has figures, they count.
    Java::new(&bench.server, "orders").set_rate(7, 600_000);
    bench.decide(&[ask_with(&spec, &none, 1, kept)]).await.keep();
    assert_eq!(keep(), "0");
}

#[tokio::test]
async fn keys_expire_as_redissons_do() {
    let bench = Bench::start();
    let mut java = Java::new(&bench.server, "orders");
    java.try_set_rate(10, 1_000);
    let spec = limiter("orders");
    let ttl = |key: &str| bench.server.run::<i64>(&["PTTL", key]);
    let all = ["orders", "{orders}:value", "{orders}:permits"];
    // `expire`: value and permits end with the hash.
    bench.server.run::<()>(&["PEXPIRE", "orders", "500000"]);
    bench.take(&spec, 1).await.unwrap();
    for key in all {
        assert!((450_000..=500_000).contains(&ttl(key)), "{key}: {}", ttl(key));
    }
    // `keepAliveTime`: each use begins it anew, a refused one too.
    bench.server.run::<()>(&["HSET", "orders", "keepAliveTime", "900000"]);
    assert!(bench.take(&spec, 11).await.is_err());
    for key in all {
        assert!((850_000..=900_000).contains(&ttl(key)), "{key}: {}", ttl(key));
    }
}

#[tokio::test]
async fn per_client_each_process_has_its_own_permits() {
    let bench = Bench::start();
    let other = store(&bench.server);
    let (spec, none) = (limiter("orders"), no_key());
    let params = Params::new(Some("2/h".parse().unwrap()), Sharing::PerClient).unwrap();
    let ask = ask_with(&spec, &none, 1, params);
    for (store, left) in [(&bench.store, 1), (&bench.store, 0), (&other, 1)] {
        let answer = decide(store, &[ask], now()).await.unwrap();
        assert_eq!(answer.remaining(0), left);
    }
    assert_eq!(bench.server.run::<String>(&["HGET", "orders", "type"]), "1");
    let keys = bench.keys();
    assert_eq!(keys.len(), 5, "{keys:?}");
    for begin in ["{orders}:value:", "{orders}:permits:"] {
        let ids: Vec<_> = keys.iter().filter_map(|key| key.strip_prefix(begin)).collect();
        assert_eq!(ids.len(), 2, "{keys:?}");
        assert!(ids.iter().all(|id| id.len() == 36), "{ids:?}");
    }
}
