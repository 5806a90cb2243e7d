//! Figures that come down evenly after a reload, and what a reload says of the keys that are over them.

use serde_json::{Value, json};

use crate::support::client::get;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::redis::in_both_stores;
use crate::support::tidegate::Tidegate;
use crate::support::wait_until;

fn proxy(store: &str, limit: &str) -> Proxy {
    let limit = format!("key = [\"header:x-user\"]\n{limit}");
    Proxy::answering().store(store).admin().limit("client", &limit)
}

/// The bucket's size and what is left of it, as this user is told.
fn told(proxy: &Tidegate, user: &str) -> (u64, u64) {
    let reply = get(proxy.address, "/", &[("x-user", user)]);
    let number = |field: &str, name: &str| -> u64 {
        let value = reply.header(field).unwrap();
        let parameter = value.split(';').find_map(|it| it.strip_prefix(name)).unwrap();
        parameter.parse().unwrap()
    };
    (number("ratelimit-policy", "q="), number("ratelimit", "r="))
}

/// The limit as a path of the admin endpoint shows it.
fn limit_at(proxy: &Tidegate, path: &str) -> Value {
    let reply = get(proxy.admin(), path, &[("host", "localhost")]);
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()["limits"][0].take()
}

#[test]
fn lowered_figures_come_down() {
    in_both_stores(|store| {
        let running = proxy(store, "rate = \"1000/h\"").start();
        (0..150).for_each(|_| assert_eq!(told(&running, "a").0, 1000));
        running.reload(&proxy(store, "rate = \"100/h\"\nramp = \"3s\"").text());
        let line = running.log.wait("config reloaded", |_| true);
        let changed = json!([
            "limits.client rate 1000/h -> 100/h over 3s",
            "limits.client burst 1000 -> 100 over 3s",
            "limits.client ramp 0s -> 3s",
        ]);
        assert_eq!(line["changed"], changed);
        let mut sizes = Vec::new();
        wait_until("the figures have come down", || {
            let (size, _) = told(&running, "b");
            sizes.push(size);
            size == 100
        });
        assert!(sizes.iter().all(|size| [1000, 700, 400, 100].contains(size)), "{sizes:?}");
        assert!(sizes.is_sorted_by(|before, after| before >= after), "{sizes:?}");
        assert_eq!(told(&running, "a"), (100, 0), "150 stay used");
        let listed = limit_at(&running, "/api/limits");
        assert_eq!((&listed["rate"], &listed["burst"]), (&json!("100/h"), &json!(100)));
    });
}

/// A regression: the wait was calculated by the figures of the moment, and was a second.
#[test]
fn a_refused_client_is_told_the_wait_by_the_lowest_figures() {
    in_both_stores(|store| {
        let running = proxy(store, "rate = \"30/30s\"").start();
        (0..30).for_each(|_| assert_eq!(told(&running, "a").0, 30));
        running.reload(&proxy(store, "rate = \"1/30s\"\nramp = \"30s\"").text());
        let refused = || {
            let mut replies = (0..60).map(|_| get(running.address, "/", &[("x-user", "a")]));
            replies.find(|reply| reply.status == 429).unwrap()
        };
        // 30 are missing, and each is back in half a minute.
        let told: u64 = refused().header("retry-after").unwrap().parse().unwrap();
        assert!((600..=1_800).contains(&told), "{told}");
    });
}

#[test]
fn the_endpoint_shows_the_figures_of_the_moment_and_the_metrics_those_of_the_file() {
    let running = proxy("", "rate = \"1000/h\"").start();
    running.reload(&proxy("", "rate = \"100/h\"\nramp = \"10d\"").text());
    for path in ["/api/limits", "/api/status"] {
        let limit = limit_at(&running, path);
        assert_eq!((&limit["rate"], &limit["burst"]), (&json!("1000/h"), &json!(1000)), "{path}");
    }
    let metrics = get(running.admin(), "/metrics", &[("host", "localhost")]).text();
    assert!(metrics.contains("tidegate_limit_burst{limit=\"client\"} 100\n"), "{metrics}");
    running.reload(&proxy("", "rate = \"100/h\"").text());
    assert_eq!(told(&running, "a").0, 100);
}

#[test]
fn a_reload_says_how_many_keys_are_over_a_lowered_limit() {
    let running = proxy("", "rate = \"9/h\"").start();
    for (user, requests) in [("a", 8), ("b", 5), ("c", 4), ("d", 1)] {
        (0..requests).for_each(|_| assert_eq!(told(&running, user).0, 9));
    }
    running.reload(&proxy("", "rate = \"5/h\"").text());
    let line = running.log.wait("limit lowered", |_| true);
    assert_eq!((&line["over"], &line["keys"]), (&json!(2), &json!(4)), "{line}");
    assert_eq!(line["limit"], "client");
    running.reload(&proxy("", "rate = \"7/h\"").text());
    running.reload(&proxy("", "rate = \"6/h\"\nramp = \"1h\"").text());
    let line = running.log.wait("limit lowered", |line| line["over"] == 1);
    assert_eq!(line["keys"], 4, "by the figures at the end of the ramp");
    assert_eq!(running.log.count("limit lowered"), 2, "a raised limit has no line");
}

#[test]
fn keys_in_redis_are_not_counted() {
    let redis = RedisServer::start();
    let store = format!("url = \"{}\"", redis.url());
    let running = proxy(&store, "rate = \"9/h\"").start();
    told(&running, "a");
    running.reload(&proxy(&store, "rate = \"5/h\"").text());
    let line = running.log.wait("limit lowered", |_| true);
    assert_eq!((line.get("over"), line.get("keys")), (None, None), "{line}");
    assert_eq!(line["limit"], "client");
    let node = "rate = \"9/h\"\nscope = \"node\"";
    running.reload(&proxy(&store, node).text());
    told(&running, "a");
    running.reload(&proxy(&store, &node.replace('9', "1")).text());
    let line = running.log.wait("limit lowered", |line| line["keys"] == 1);
    assert_eq!(line["over"], 1);
}
