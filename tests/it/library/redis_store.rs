//! What stands in Redis, and what is said to it.

use std::sync::Arc;
use std::task::Poll;

use tidegate::limit::decision::Verdict;
use tidegate::limit::key::Key;
use tidegate::limit::rate::Cost;
use tidegate::limit::time::Timestamp;
use tidegate::redis::CallError;
use tidegate::request::key::KeySource;
use tidegate::settings::{KeyDisplay, OnStoreError};
use tidegate::store::{BucketAsk, BucketKey, ProcessStore, Store, Unavailable};
use tokio::time::Instant;

use crate::support::bench::{Answer, decide, store_spec, stores};
use crate::support::limits::{ask, bucket, key, limit, no_key};
use crate::support::redis::{RedisServer, location, own_calls};
use crate::support::wait_until;

struct Bench {
    server: RedisServer,
    store: Arc<Store>,
    shared: Arc<ProcessStore>,
}

impl Bench {
    fn start() -> Self {
        let server = RedisServer::start();
        let (shared, store) = stores(&store_spec(location(&server.url())));
        Self { server, store, shared }
    }

    async fn decide(&self, asks: &[BucketAsk<'_>]) -> Answer {
        self.try_decide(asks).await.unwrap()
    }

    async fn try_decide(&self, asks: &[BucketAsk<'_>]) -> Result<Answer, Unavailable> {
        let now = Timestamp::from_micros(5_000_000_000).unwrap();
        decide(&self.store, asks, now).await
    }
}

#[tokio::test]
async fn keys_are_named_for_people_and_for_clusters() {
    let bench = Bench::start();
    let (per_client, ip) = (limit("per-client"), key("203.0.113.7"));
    let (mut global, none) = (limit("global"), no_key());
    global.key.sources = Vec::new().into();
    let odd = key("a|b{c}");
    bench.decide(&[ask(&per_client, &ip, 10), ask(&global, &none, 10)]).await;
    bench.decide(&[ask(&per_client, &odd, 10)]).await;
    let mut keys: Vec<String> = bench.server.run(&["KEYS", "*"]);
    keys.retain(|key| !key.starts_with("tidegate::"));
    keys.sort();
    assert_eq!(
        keys,
        [
            "tidegate:global",
            "tidegate:{203.0.113.7}:per-client",
            "tidegate:{a%7Cb%7Bc%7D}:per-client",
        ]
    );
}

/// A request that is cut while Redis is asked: the process ended before what it took was given back.
#[tokio::test]
async fn what_a_cut_request_took_is_known_before_all_is_settled() {
    let bench = Bench::start();
    let (spec, ip) = (limit("per-client"), key("203.0.113.7"));
    let one = ask(&spec, &ip, 10);
    bench.decide(&[one]).await;
    let mut asking = Box::pin(bench.decide(std::slice::from_ref(&one)));
    let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(asking.as_mut().poll(cx))).await;
    assert!(polled.is_pending());
    drop(asking);
    bench.store.settled().await;
    let now = Timestamp::from_micros(5_000_000_000).unwrap();
    assert_eq!(bench.store.look(&one, now).await.unwrap().remaining, 9);
}

#[tokio::test]
async fn a_bucket_is_small() {
    let bench = Bench::start();
    let (spec, ip) = (limit("per-client"), key("203.0.113.7"));
    for rate in ["100/s", "7/s", "150/s", "100/m", "30/h", "1/d", "7/w"] {
        let mut one = ask(&spec, &ip, 100);
        one.ask.algorithm = bucket(rate, 100);
        let mut state: Option<Vec<u8>> = None;
        while state.is_none() {
            for _ in 0..5 {
                bench.decide(&[one]).await;
            }
            // Nothing where the bucket is full again by now.
            state = bench.server.run(&["GET", "tidegate:{203.0.113.7}:per-client"]);
        }
        // Redis's smallest block for a string, where no other was at hand.
        let bytes = state.unwrap().len();
        assert!(bytes <= 12, "{rate}: {bytes} bytes");
        bench.store.forget(&one).await.unwrap();
    }
}

#[tokio::test]
async fn a_request_is_one_call() {
    let bench = Bench::start();
    let specs = ["one", "two", "three"].map(limit);
    let key = key("203.0.113.7");
    let asks: Vec<_> = specs.iter().map(|spec| ask(spec, &key, 100)).collect();
    bench.decide(&asks).await;
    let (before, began) = (bench.server.calls("evalsha"), Instant::now());
    for _ in 0..50 {
        bench.decide(&asks).await;
    }
    let calls = bench.server.calls("evalsha") - before;
    let most = 50 + own_calls(began.elapsed());
    assert!((50..=most).contains(&calls), "{calls} calls for 50 requests");
    assert_eq!(bench.server.calls("eval"), 0);
}

#[tokio::test]
async fn a_lost_script_is_loaded_again_within_the_request() {
    let bench = Bench::start();
    let (spec, key) = (limit("per-client"), key("203.0.113.7"));
    for left in (0..5).rev() {
        let () = bench.server.run(&["SCRIPT", "FLUSH"]);
        let answer = bench.decide(&[ask(&spec, &key, 5)]).await;
        assert_eq!(answer.remaining(0), left);
    }
    assert_eq!(bench.shared.counters().decided_without, 0, "this process decided by itself");
}

#[tokio::test]
async fn a_key_of_another_type_is_its_limits_error_alone() {
    let bench = Bench::start();
    let (mut odd, good, ip) = (limit("odd"), limit("good"), key("203.0.113.7"));
    let () = bench.server.run(&["RPUSH", "tidegate:{203.0.113.7}:odd", "x"]);

    for (left_odd, left_good) in [(1, 9), (0, 8)] {
        let answer = bench.decide(&[ask(&odd, &ip, 2), ask(&good, &ip, 10)]).await;
        assert_eq!(answer.remaining(0), left_odd, "decided in the process");
        assert_eq!(answer.remaining(1), left_good, "decided in Redis");
    }
    let answer = bench.decide(&[ask(&odd, &ip, 2), ask(&good, &ip, 10)]).await;
    assert!(matches!(answer.verdict, Verdict::Refuse { by: 0, .. }));
    assert_eq!(answer.remaining(1), 8, "all or none over both");

    odd.on_store_error = OnStoreError::Allow;
    let answer = bench.decide(&[ask(&odd, &ip, 2), ask(&good, &ip, 10)]).await;
    assert_eq!((answer.decisions[0], answer.verdict), (None, Verdict::PASS));

    odd.on_store_error = OnStoreError::Reject;
    let answer = bench.try_decide(&[ask(&odd, &ip, 2), ask(&good, &ip, 10)]).await;
    assert_eq!(answer, Err(Unavailable { by: 0 }));

    let look = bench.store.look(&ask(&odd, &ip, 2), Timestamp::MAX).await;
    assert!(matches!(look, Err(CallError::UnusableKey(_))));
    assert_eq!(bench.shared.counters().redis_up, Some(true));
    assert_eq!(bench.server.run::<String>(&["TYPE", "tidegate:{203.0.113.7}:odd"]), "list");
}

/// What these requests are told when they are all asked in the same turn of the worker's loop.
async fn at_once(bench: &Bench, requests: &[Vec<BucketAsk<'_>>]) -> Vec<Answer> {
    let mut waiting: Vec<_> = requests.iter().map(|asks| Box::pin(bench.decide(asks))).collect();
    let mut answers: Vec<Option<Answer>> = requests.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (request, answer) in waiting.iter_mut().zip(&mut answers) {
            if answer.is_none()
                && let Poll::Ready(told) = request.as_mut().poll(context)
            {
                *answer = Some(told);
            }
        }
        if answers.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    answers.into_iter().flatten().collect()
}

#[tokio::test]
async fn many_requests_at_once_share_one_connection_and_few_calls() {
    let bench = Bench::start();
    let (spec, key) = (limit("per-client"), key("203.0.113.7"));
    bench.decide(&[ask(&spec, &key, 300)]).await;
    let clients = || {
        let info: String = bench.server.run(&["INFO", "clients"]);
        let count = info.lines().find_map(|line| line.strip_prefix("connected_clients:"));
        count.unwrap().trim().parse::<u64>().unwrap()
    };
    let before = clients();
    let (calls, began) = (bench.server.calls("evalsha"), Instant::now());
    let requests = vec![vec![ask(&spec, &key, 300)]; 200];
    let answers = at_once(&bench, &requests).await;
    // So many requests to a call at most.
    let (calls, least) = (bench.server.calls("evalsha") - calls, 200_u64.div_ceil(64));
    assert!((least..=least + own_calls(began.elapsed())).contains(&calls), "{calls} calls");
    // Redis may notice a little later that the test's own client has closed.
    wait_until("there is no further connection", || clients() <= before);
    let left: Vec<_> = answers.iter().map(|a| a.remaining(0)).collect();
    assert_eq!(left, (99..299).rev().collect::<Vec<_>>(), "in their order");
}

#[tokio::test]
async fn requests_of_one_call_are_decided_one_after_the_other() {
    let bench = Bench::start();
    let (wide, narrow) = (limit("wide"), limit("narrow"));
    let (a, b) = (key("a"), key("b"));
    let both = |key| vec![ask(&wide, key, 4), ask(&narrow, key, 2)];
    bench.decide(&both(&b)).await;
    let (calls, began) = (bench.server.calls("evalsha"), Instant::now());
    let requests = [both(&a), both(&b), both(&b), vec![ask(&wide, &b, 4)], both(&a), both(&a)];
    let answers = at_once(&bench, &requests).await;
    assert!(bench.server.calls("evalsha") - calls <= 1 + own_calls(began.elapsed()));
    let told: Vec<(bool, Vec<u64>)> = answers
        .iter()
        .map(|answer| {
            let left = answer.decisions.iter().map(|decision| decision.unwrap().remaining);
            (answer.verdict == Verdict::PASS, left.collect())
        })
        .collect();
    assert_eq!(
        told,
        [
            (true, vec![3, 1]),
            (true, vec![2, 0]),
            // Refused by the narrow one: the wide one keeps what it has.
            (false, vec![2, 0]),
            (true, vec![1]),
            (true, vec![2, 0]),
            (false, vec![2, 0]),
        ]
    );
}

#[tokio::test]
async fn new_buckets_of_one_call_are_each_their_own() {
    let bench = Bench::start();
    let (wide, narrow) = (limit("wide"), limit("narrow"));
    let (a, b, c) = (key("a"), key("b"), key("c"));
    let mut never = ask(&narrow, &c, 2);
    never.ask.cost = Cost::new(3).unwrap();
    let mut dear = ask(&wide, &c, 4);
    dear.ask.cost = Cost::new(2).unwrap();
    let one = |key| vec![ask(&wide, key, 4)];
    let requests = [one(&a), one(&b), vec![ask(&wide, &c, 4), never], vec![dear], one(&a)];
    let answers = at_once(&bench, &requests).await;
    let left: Vec<Vec<u64>> = answers
        .iter()
        .map(|answer| answer.decisions.iter().map(|d| d.unwrap().remaining).collect())
        .collect();
    assert_eq!(left, [vec![3], vec![3], vec![4, 2], vec![2], vec![2]]);
    let expires = |key: &str| bench.server.goes_at(&format!("tidegate:{{{key}}}:wide")).unwrap();
    assert_eq!([expires("a"), expires("c")], [expires("b") + 3_600_000; 2], "a token more");
    assert_eq!(bench.server.run::<u64>(&["EXISTS", "tidegate:{c}:narrow"]), 0);
}

#[tokio::test]
async fn a_key_of_another_type_hurts_no_other_request_of_the_call() {
    let bench = Bench::start();
    let (odd, good, ip) = (limit("odd"), limit("good"), key("203.0.113.7"));
    let () = bench.server.run(&["RPUSH", "tidegate:{203.0.113.7}:odd", "x"]);
    bench.decide(&[ask(&good, &ip, 10)]).await;
    let one = vec![ask(&good, &ip, 10)];
    let requests = [one.clone(), vec![ask(&good, &ip, 10), ask(&odd, &ip, 2)], one];
    let answers = at_once(&bench, &requests).await;
    let left = |place: usize| answers[place].remaining(0);
    // The second is asked again without the odd one, after the others.
    assert_eq!([left(0), left(2), left(1)], [8, 7, 6]);
    assert_eq!(answers[1].remaining(1), 1, "decided in the process");
    assert_eq!(bench.server.run::<String>(&["TYPE", "tidegate:{203.0.113.7}:odd"]), "list");
}

#[tokio::test]
async fn a_request_with_very_many_limits_is_one_call() {
    let bench = Bench::start();
    let specs: Vec<_> = (0..1_000).map(|n| limit(&format!("limit-{n}"))).collect();
    let ip = key("203.0.113.7");
    let asks: Vec<_> = (2..).zip(&specs).map(|(burst, spec)| ask(spec, &ip, burst)).collect();
    for taken in 1..=2 {
        let answer = bench.decide(&asks).await;
        assert_eq!(answer.verdict, Verdict::PASS);
        for (burst, decision) in (2..).zip(&answer.decisions) {
            assert_eq!(decision.unwrap().remaining, burst - taken);
        }
    }
    let answer = bench.decide(&asks).await;
    assert!(matches!(answer.verdict, Verdict::Refuse { by: 0, .. }));
    assert_eq!(answer.remaining(999), 999, "nothing was taken");
    assert_eq!(bench.shared.counters().decided_without, 0, "this process decided by itself");
}

#[tokio::test]
async fn a_clients_secret_stands_in_redis_only_as_its_hash() {
    let bench = Bench::start();
    let (mut spec, header) = (limit("per-token"), "x-api-key".parse().unwrap());
    spec.key.sources = vec![KeySource::Ip, KeySource::Header(header)].into();
    let plain = Key::of([Some(&b"203.0.113.7"[..]), Some(b"secret")]);
    let key = BucketKey::new(&spec, plain, KeyDisplay::Hashed);
    assert_eq!(bench.decide(&[ask(&spec, &key, 10)]).await.verdict, Verdict::PASS);
    let mut keys: Vec<String> = bench.server.run(&["KEYS", "*"]);
    keys.retain(|key| !key.starts_with("tidegate::"));
    // The first 128 bits of the SHA-256 of `secret`, base64url.
    assert_eq!(keys, ["tidegate:{203.0.113.7|K7gNU3sdo-OL0wNhqoVWhg}:per-token"]);
}
