//! Hits that Envoy reports at a stream's end: they are used already.

use serde_json::json;

use super::*;
use crate::process::decide::check::{check, settle};
use crate::process::decide::{asked_at, deciding};
use crate::support::client::get;
use crate::support::redis::{RedisServer, in_both_stores};
use crate::support::wait_until;

fn file(algorithm: &str, reported: &str) -> String {
    format!(
        "[limits.tokens]\nkey = []\nrate = \"1000/h\"\nalgorithm = \"{algorithm}\"\n{reported}\
         [limits.other]\nkey = []\nrate = \"1/h\"\n\
         [limits.closed]\nkey = []\nrate = \"0/s\"\n\
         [[routes]]\npath = \"/{{*rest}}\"\nlimits = [\"tokens\", \"other\"]\n"
    )
}

const REPORTED: &str = "reported = true\n";

fn hits(name: &str, hits: u64) -> Descriptor {
    with_hits(hits, &[("limit", name)])
}

/// A regression: an answer of more tokens than remained was never counted.
#[test]
fn what_was_used_counts_whatever_remains() {
    for algorithm in ["token-bucket", "fixed-window", "sliding-window"] {
        in_both_stores(|store| {
            let file = file(algorithm, REPORTED).replace("1000/h", "1000/365d");
            let proxy = deciding("", &format!("[store]\n{store}{file}"));
            let mut envoy = open(&proxy);
            let mut ask = |hits: &[Descriptor]| ask(&mut envoy, hits);
            assert_eq!(ask(&[hits("tokens", 0)]).said(), [(OK, 1_000)], "{store} {algorithm}");
            assert_eq!(ask(&[hits("tokens", 900)]).said(), [(OK, 100)], "{store} {algorithm}");
            assert_eq!(ask(&[hits("tokens", 0)]).said(), [(OK, 100)], "{store} {algorithm}");
            assert_eq!(ask(&[hits("tokens", 1_200)]).said(), [(OK, 0)], "{store} {algorithm}");
            assert_eq!(ask(&[hits("tokens", 0)]).said(), [(OVER_LIMIT, 0)], "{store} {algorithm}");
            let over = ask(&[hits("tokens", 300)]);
            assert_eq!(over.said(), [(OVER_LIMIT, 0)], "{store} {algorithm}");
            assert!(over.reset(0) > 0.0, "{store} {algorithm}");
        });
    }
}

/// At zero it is not below zero. A regression: a sliding window did not tell the two apart.
#[test]
fn a_report_is_allowed_until_the_bucket_is_below_zero() {
    for algorithm in ["token-bucket", "fixed-window", "sliding-window", "sliding-log"] {
        in_both_stores(|store| {
            let file = file(algorithm, REPORTED).replace("1000/h", "1000/365d");
            let proxy = deciding("", &format!("[store]\n{store}{file}"));
            let mut envoy = open(&proxy);
            let said = [1_000, 1, 1].map(|n| ask(&mut envoy, &[hits("tokens", n)]).overall_code);
            assert_eq!(said, [OK, OK, OVER_LIMIT], "{store} {algorithm}");
        });
    }
}

/// The call gives and takes as ever, but what is used is used: a log holds no more than its limit.
#[test]
fn a_sliding_log_takes_a_report_that_fills_it() {
    in_both_stores(|store| {
        let proxy = deciding("", &format!("[store]\n{store}{}", file("sliding-log", REPORTED)));
        let mut envoy = open(&proxy);
        let mut ask = |n| ask(&mut envoy, &[hits("tokens", n)]).said()[0];
        assert_eq!(
            [ask(900), ask(0), ask(300), ask(0)],
            [(OK, 100), (OK, 100), (OK, 0), (OVER_LIMIT, 0)],
            "{store}"
        );
    });
}

/// A window or a bucket below zero owes what was reported, down to 100 bursts.
#[test]
fn a_bucket_owes_what_was_reported_within_bounds() {
    in_both_stores(|store| {
        let proxy = deciding("", &format!("[store]\n{store}{}", file("token-bucket", REPORTED)));
        let mut envoy = open(&proxy);
        ask(&mut envoy, &[hits("tokens", 1_000)]);
        let owes = ask(&mut envoy, &[hits("tokens", 2_000)]).reset(0);
        assert!((3_600.0..=3_700.0).contains(&owes) || owes > 7_000.0, "{store}: {owes}");
        for _ in 0..3 {
            ask(&mut envoy, &[hits("tokens", 1_000_000_000)]);
        }
        let most = ask(&mut envoy, &[hits("tokens", 0)]).reset(0);
        assert!((359_000.0..361_000.0).contains(&most), "{store}: {most}");
    });
}

#[test]
fn it_counts_where_another_limit_refuses_and_the_default_of_a_call_is_a_report() {
    in_both_stores(|store| {
        let slow = file("token-bucket", REPORTED).replace("1000/h", "1000/365d");
        let proxy = deciding("", &format!("[store]\n{store}{slow}"));
        let mut envoy = open(&proxy);
        let one = descriptor(&[("limit", "tokens, other")]);
        assert_eq!(ask(&mut envoy, std::slice::from_ref(&one)).overall_code, OK, "{store}");
        assert_eq!(ask(&mut envoy, &[one]).overall_code, OVER_LIMIT, "{store}");
        assert_eq!(ask(&mut envoy, &[hits("tokens", 0)]).said(), [(OK, 998)], "{store}");
        let closed = ask(&mut envoy, &[descriptor(&[("limit", "tokens, closed")])]);
        assert_eq!(closed.overall_code, OVER_LIMIT, "{store}");
        let both = ask(&mut envoy, &[hits("tokens, closed", 7), hits("closed", 1)]);
        assert_eq!(both.overall_code, OVER_LIMIT, "{store}");
        let left = ask(&mut envoy, &[hits("tokens", 0)]).said();
        assert_eq!(
            left,
            [(OK, 990)],
            "{store}: a regression: beside a closed limit it did not count"
        );
        // And a report over the limit keeps the others from taking.
        let proxy = deciding("", &format!("[store]\n{}{}", "", file("token-bucket", REPORTED)));
        let mut envoy = open(&proxy);
        ask(&mut envoy, &[hits("tokens", 2_000)]);
        let both = [hits("tokens", 1), hits("other", 1)];
        assert_eq!(ask(&mut envoy, &both).overall_code, OVER_LIMIT);
        assert_eq!(ask(&mut envoy, &[hits("other", 1)]).overall_code, OK);
    });
}

#[test]
fn without_reported_hits_are_a_cost() {
    let proxy = deciding("", &file("token-bucket", ""));
    let mut envoy = open(&proxy);
    assert_eq!(ask(&mut envoy, &[hits("tokens", 1_200)]).said(), [(OVER_LIMIT, 1_000)]);
}

/// A regression: they were taken.
#[test]
fn negative_hits_give_back() {
    let algorithms =
        ["token-bucket", "fixed-window", "sliding-window", "leaky-bucket", "sliding-log"];
    for algorithm in algorithms {
        in_both_stores(|store| {
            let file =
                file(algorithm, if algorithm == "leaky-bucket" { "wait = \"1h\"\n" } else { "" });
            let proxy = deciding("", &format!("[store]\n{store}{file}"));
            let mut envoy = open(&proxy);
            let capacity = ask(&mut envoy, &[hits("tokens", 0)]).said()[0].1;
            ask(&mut envoy, &[hits("tokens", 300)]);
            let back = |hits: u64| Descriptor {
                is_negative_hits: true,
                ..with_hits(hits, &[("limit", "tokens")])
            };
            let left = ask(&mut envoy, &[back(200)]).said()[0];
            assert_eq!(left, (OK, capacity - 100), "{store} {algorithm}");
            let left = ask(&mut envoy, &[back(200)]).said()[0];
            assert_eq!(left, (OK, capacity), "{store} {algorithm}: no more than was taken");
        });
    }
}

/// A regression: a report was lost, and those after it in the same call.
#[test]
fn a_report_counts_although_its_caller_leaves_before_a_slow_redis_answers() {
    let redis = RedisServer::start();
    let file = file("token-bucket", REPORTED).replace("1000/h", "1000/365d");
    let second = "[limits.second]\nkey = []\nrate = \"1000/365d\"\nreported = true\n";
    let url = redis.url();
    let store = format!("[store]\nurl = \"{url}\"\ntimeout = \"20s\"\n{second}");
    let proxy = deciding("", &format!("{store}{file}"));
    let mut envoy = open(&proxy);
    let both = |n, m| [hits("tokens", n), hits("second", m)];
    assert_eq!(ask(&mut envoy, &both(0, 0)).said(), [(OK, 1_000); 2]);
    redis.pause();
    let mut leaves = envoy.upload("POST", METHOD, &GRPC);
    leaves.send(&framed(&call(&both(900, 300)).encode_to_vec()));
    leaves.end();
    // This call comes after the first one on the same connection.
    assert_eq!(failed(&envoy.post(METHOD, &GRPC, &[])).0, INVALID_ARGUMENT);
    leaves.reset();
    proxy.log.wait("request", |line| line["status"] == 499);
    redis.resume();
    wait_until("both reports count", || {
        ask(&mut envoy, &both(0, 0)).said() == [(OK, 100), (OK, 700)]
    });
}

/// What `/settle` says is a report too, and other requests take their cost as ever.
#[test]
fn what_settle_says_is_bounded_too_and_requests_take_their_cost() {
    in_both_stores(|store| {
        let limits = "[limits.used]\nkey = []\nrate = \"1000/h\"\nreported = true\n\
                      cost = { response_header = \"x-used\", estimate = 10 }\n\
                      [limits.plain]\nkey = []\nrate = \"2/h\"\nreported = true\n\
                      [[routes]]\npath = \"/used\"\nlimits = [\"used\"]\n\
                      [[routes]]\npath = \"/plain\"\nlimits = [\"plain\"]\n";
        let proxy = deciding("", &format!("[store]\n{store}{limits}"));
        let asked = asked_at(&proxy);
        let one = |path: &str| check(asked, &json!({ "path": path }));
        let leases = [0; 3].map(|_| one("/used")["id"].clone());
        let debt = || {
            let path = "/api/limits/used/keys/";
            get(proxy.admin(), path, &[("host", "localhost")]).json()["retry_after_ms"].as_u64()
        };
        for (id, most) in leases.into_iter().zip([99, 100, 100]) {
            assert_eq!(settle(asked, &json!({ "id": id, "used": 1_000_000_000 })), 204, "{store}");
            // Redis is told after the answer.
            wait_until(&format!("{store}: {most} h are to wait"), || {
                let hours = debt().unwrap_or_default().div_ceil(3_600_000);
                (most - 1..=most + 1).contains(&hours)
            });
        }
        let said = [0; 4].map(|_| one("/plain")["decision"].clone());
        assert_eq!(said, ["allowed", "allowed", "rejected", "rejected"], "{store}");
        let wait = one("/plain")["limits"][0]["retry_after_ms"].as_u64().unwrap();
        assert!(wait <= 1_800_000, "{store}: what is refused takes nothing: {wait}");
    });
}
