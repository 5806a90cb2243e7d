//! Redisson limiters in a cluster.

use tidegate::limit::algorithm::redisson::{Params, Sharing};
use tidegate::limit::decision::Verdict;
use tidegate::settings::OnStoreError;
use tidegate::store::Decider;

use super::{ask, ask_with, deciders, limiter, now, store_at};
use crate::support::bench::decide;
use crate::support::cluster::Cluster;
use crate::support::limits::{ask as bucket_ask, key, limit, no_key};
use crate::support::redis::location;

#[tokio::test]
async fn a_limiters_keys_share_a_slot() {
    let cluster = Cluster::of_masters();
    let store = store_at(location(&cluster.url()));
    let figures = Params::new(Some("3/h".parse().unwrap()), Sharing::Overall).unwrap();
    for name in ["orders", "a:{b}:c"] {
        let spec = limiter(name);
        for passes in [true, true, true, false] {
            let answer = decide(&store, &[ask_with(&spec, &no_key(), 1, figures)], now()).await;
            assert_eq!(answer.unwrap().verdict == Verdict::PASS, passes, "{name}");
        }
        let place = cluster.master_of(name);
        let there: usize = cluster.servers[place].run(&["EXISTS", name]);
        assert_eq!(there, 1, "{name}");
    }
}

/// Redisson's names for the keys of such a limiter lie in several slots.
#[tokio::test]
async fn a_name_with_odd_braces_breaks_no_call_but_its_own() {
    let cluster = Cluster::of_masters();
    let store = store_at(location(&cluster.url()));
    let (bucket, key, none) = (limit("bucket"), key("x"), no_key());
    for name in ["x{", "x}", "{}x"] {
        let mut spec = limiter(name);
        spec.on_store_error = OnStoreError::Allow;
        for _ in 0..3 {
            let asks = [ask(&spec, &none, 1), bucket_ask(&bucket, &key, 10)];
            let answer = decide(&store, &asks, now()).await.unwrap();
            assert_eq!(deciders(&answer), [None, Some(Decider::Redis)], "{name}");
        }
    }
    let left = store.look(&bucket_ask(&bucket, &key, 10), now()).await.unwrap();
    assert_eq!(left.remaining, 1);
}
