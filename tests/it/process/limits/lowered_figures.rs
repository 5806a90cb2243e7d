//! Figures that a reload lowers.

use serde_json::json;

use crate::support::client::get;
use crate::support::proxy::Proxy;
use crate::support::redis::in_both_stores;
use crate::support::tidegate::Tidegate;

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

#[test]
fn lowered_figures_hold_at_once_and_what_was_used_stays_used() {
    in_both_stores(|store| {
        let running = proxy(store, "rate = \"1000/h\"").start();
        (0..150).for_each(|_| assert_eq!(told(&running, "a").0, 1000));
        running.reload(&proxy(store, "rate = \"100/h\"").text());
        let line = running.log.wait("config reloaded", |_| true);
        let changed =
            json!(["limits.client rate 1000/h -> 100/h", "limits.client burst 1000 -> 100",]);
        assert_eq!(line["changed"], changed);
        assert_eq!(told(&running, "b"), (100, 99));
        // 51 are to come back, each in 36 seconds.
        let refused = get(running.address, "/", &[("x-user", "a")]);
        assert_eq!(refused.status, 429);
        let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!((1_700..=1_836).contains(&wait), "{wait}");
        let reply = get(running.admin(), "/api/limits", &[("host", "localhost")]);
        let limit = &reply.json()["limits"][0];
        assert_eq!((&limit["rate"], &limit["burst"]), (&json!("100/h"), &json!(100)));
    });
}
