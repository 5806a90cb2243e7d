//! Other figures on the same traffic: told, and without effect.

use crate::support::client::{Connection, Reply, get};
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::tidegate::Tidegate;

fn proxy(store: &str, limits: &str) -> Tidegate {
    Proxy::answering().admin().store(store).limits(limits).start()
}

/// Runs a test with buckets in the process, and in Redis, where it gets the server.
fn in_both_stores(test: impl Fn(&str, Option<&RedisServer>)) {
    test("", None);
    let redis = RedisServer::start();
    test(&redis.fields(), Some(&redis));
}

/// How often a limit allowed, rejected, and would have rejected.
fn counts(proxy: &Tidegate, limit: &str) -> [u64; 3] {
    let metrics = Metrics::of(proxy.admin());
    ["allowed", "rejected", "shadow"].map(|decision| {
        let name = format!("tidegate_decisions_total{{limit=\"{limit}\",decision=\"{decision}\"}}");
        let value = metrics.value(&name);
        (0_u32..100).find(|count| f64::from(*count) == value).unwrap().into()
    })
}

fn ask(proxy: &Tidegate, times: usize) -> Vec<Reply> {
    let mut client = Connection::open(proxy.address);
    (0..times).map(|_| client.get("/", &[])).collect()
}

fn passed(replies: &[Reply]) -> usize {
    replies.iter().filter(|reply| reply.status == 200).count()
}

#[test]
fn a_candidate_is_told_and_has_no_effect() {
    in_both_stores(|store, redis| {
        let limits = "[limits.client]\nkey = [\"ip\"]\nrate = \"1/h\"\nburst = 100\n\
                      candidate = { rate = \"1/h\", burst = 2 }\n";
        let mut proxy = proxy(store, limits);
        let replies = ask(&proxy, 5);
        assert_eq!(passed(&replies), 5);
        for reply in &replies {
            let policy = reply.header("ratelimit-policy").unwrap();
            assert_eq!(policy, "\"client\";q=100;w=360000", "the candidate is not shown");
            assert!(!reply.header("ratelimit").unwrap().contains("candidate"));
        }
        assert_eq!(counts(&proxy, "client"), [5, 0, 0]);
        assert_eq!(counts(&proxy, "client:candidate"), [2, 0, 3]);
        if let Some(redis) = redis {
            let mut keys: Vec<String> = redis.run(&["KEYS", "tidegate:{*"]);
            keys.sort();
            let own = "tidegate:{127.0.0.1}:client";
            assert_eq!(keys, [own.to_owned(), format!("{own}:candidate")]);
        }
        assert!(proxy.stop().success());
        let lines = proxy.log.with("throttled");
        let count: u64 = lines.iter().map(|line| line["count"].as_u64().unwrap()).sum();
        assert_eq!(count, 3);
        for line in lines {
            assert_eq!(
                (&*line["limit"].to_string(), &line["decision"]),
                ("\"client:candidate\"", &"shadow".into())
            );
            assert_eq!(line["key"], "127.0.0.1");
            assert!(line["retry_after_ms"].is_u64(), "{line}");
        }
    });
}

#[test]
fn a_candidate_takes_whatever_the_other_limits_say() {
    in_both_stores(|store, _| {
        for scope in ["cluster", "node"] {
            // The user's has one token, and comes before and behind the one with the candidate.
            for (before, behind) in [(true, false), (false, true)] {
                let user = format!(
                    "[limits.user-{scope}-{before}]\nkey = [\"header:x-user\"]\nrate = \"1/h\"\n"
                );
                let client = format!(
                    "[limits.c-{scope}-{before}]\nrate = \"1/h\"\nburst = 2\n\
                     scope = \"{scope}\"\ncandidate = {{ rate = \"1/h\", burst = 3 }}\n"
                );
                let limits = format!(
                    "{}{client}{}",
                    if before { &user } else { "" },
                    if behind { &user } else { "" }
                );
                let proxy = proxy(store, &limits);
                let status = |user| get(proxy.address, "/", &[("x-user", user)]).status;
                // The candidate takes where the user's own limit refuses, too.
                assert_eq!([status("a"), status("a"), status("b")], [200, 429, 200]);
                assert_eq!([status("a"), status("c"), status("d")], [429, 429, 429]);
                let candidate = counts(&proxy, &format!("c-{scope}-{before}:candidate"));
                assert_eq!(candidate, [3, 0, 3], "{scope} {before}");
            }
        }
    });
}

#[test]
fn an_unlimited_or_closed_limit_may_have_a_candidate() {
    in_both_stores(|store, _| {
        for (rate, mode, expected) in [
            ("unlimited", "enforce", 4),
            ("unlimited", "shadow", 4),
            ("0/s", "enforce", 0),
            ("0/s", "shadow", 4),
            ("1/h", "shadow", 4),
        ] {
            let name = format!("{}-{mode}", rate.replace('/', "-"));
            let limits = format!(
                "[limits.{name}]\nrate = \"{rate}\"\nmode = \"{mode}\"\n\
                 candidate = {{ rate = \"3/h\" }}\n"
            );
            let proxy = proxy(store, &limits);
            assert_eq!(passed(&ask(&proxy, 4)), expected, "{name}");
            assert_eq!(counts(&proxy, &format!("{name}:candidate")), [3, 0, 1], "{name}");
        }
    });
}

#[test]
fn a_candidate_may_let_nothing_pass_or_everything() {
    let limits = "[limits.none]\nrate = \"9/h\"\ncandidate = { rate = \"0/s\" }\n\
                  [limits.all]\nrate = \"9/h\"\ncandidate = { rate = \"unlimited\" }\n";
    let proxy = proxy("", limits);
    assert_eq!(passed(&ask(&proxy, 3)), 3);
    assert_eq!(counts(&proxy, "none:candidate"), [0, 0, 3]);
    assert_eq!(counts(&proxy, "all:candidate"), [0, 0, 0]);
}

#[test]
fn a_key_with_an_override_tries_nothing() {
    let limits = "[limits.user]\nkey = [\"header:x-user\"]\nrate = \"9/h\"\n\
                  candidate = { rate = \"1/h\" }\n\
                  overrides = [{ key = [\"partner\"], rate = \"99/h\" }]\n";
    let proxy = proxy("", limits);
    for user in ["partner", "partner", "other", "other"] {
        assert_eq!(get(proxy.address, "/", &[("x-user", user)]).status, 200);
    }
    assert_eq!(counts(&proxy, "user:candidate"), [1, 0, 1]);
}

#[test]
fn a_leaky_candidate_holds_nobody() {
    in_both_stores(|store, redis| {
        let limits = "[limits.client]\nalgorithm = \"leaky-bucket\"\nrate = \"1000000/s\"\n\
                      candidate = { rate = \"1/h\", queue = 1 }\n";
        let proxy = proxy(store, limits);
        assert_eq!(passed(&ask(&proxy, 4)), 4);
        assert_eq!(counts(&proxy, "client:candidate"), [1, 0, 2]);
        let delayed = "tidegate_decisions_total{limit=\"client:candidate\",decision=\"delayed\"}";
        assert_eq!(Metrics::of(proxy.admin()).value(delayed), 1.0);
        if let Some(redis) = redis {
            let keys: Vec<String> = redis.run(&["KEYS", "tidegate:*:candidate"]);
            assert_eq!(keys, ["tidegate:client:leaky-bucket:candidate"]);
        }
    });
}

#[test]
fn without_redis_a_candidate_is_tried_in_the_process() {
    let store = "url = \"redis://127.0.0.1:1\"\n";
    let limits = "[limits.client]\nrate = \"2/h\"\ncandidate = { rate = \"3/h\" }\n";
    let proxy = proxy(store, limits);
    assert_eq!(passed(&ask(&proxy, 5)), 2);
    assert_eq!(counts(&proxy, "client:candidate"), [3, 0, 2]);
}

#[test]
fn a_candidate_is_decided_in_redis_also_if_its_limit_has_an_unusable_key() {
    let redis = RedisServer::start();
    let store = format!("url = \"{}\"\ntimeout = \"10s\"\n", redis.url());
    // The limit's own key cannot be asked, and another's in front of it can.
    let limits = "[limits.other]\nrate = \"9/h\"\n\
                  [limits.client]\nrate = \"2/h\"\ncandidate = { rate = \"3/h\" }\n";
    let _: i64 = redis.run(&["LPUSH", "tidegate:client", "x"]);
    let proxy = proxy(&store, limits);
    assert_eq!(passed(&ask(&proxy, 5)), 2);
    assert_eq!(counts(&proxy, "client:candidate"), [3, 0, 2]);
    let there: i64 = redis.run(&["EXISTS", "tidegate:client:candidate"]);
    assert_eq!(there, 1);
}

#[test]
fn a_candidate_whose_key_is_of_another_type_stops_nobody() {
    let redis = RedisServer::start();
    let store = format!("url = \"{}\"\ntimeout = \"10s\"\n", redis.url());
    let limits = "[limits.client]\nrate = \"2/h\"\ncandidate = { rate = \"1/h\" }\n";
    let _: i64 = redis.run(&["LPUSH", "tidegate:client:candidate", "x"]);
    let proxy = proxy(&store, limits);
    assert_eq!(passed(&ask(&proxy, 4)), 2);
    assert_eq!(counts(&proxy, "client:candidate"), [1, 0, 3], "the process decides on it");
    let left: String = redis.run(&["TYPE", "tidegate:client:candidate"]);
    assert_eq!(left, "list");
}
