//! Costs that the file or the request tells.

use crate::support::client::{Connection, Reply, get};
use crate::support::proxy::Proxy;

#[test]
fn a_cost_is_taken_whole() {
    let proxy =
        Proxy::answering().limit("client", "key = [\"ip\"]\nrate = \"10/h\"\ncost = 4").start();
    let mut client = Connection::open(proxy.address);
    let left: Vec<_> = (0..3)
        .map(|_| {
            let reply = client.get("/", &[]);
            (reply.status, reply.header("ratelimit").unwrap().split(';').nth(1).unwrap().to_owned())
        })
        .collect();
    let expected = [(200, "r=6"), (200, "r=2"), (429, "r=2")];
    assert_eq!(left, expected.map(|(status, left)| (status, left.to_owned())));
}

#[test]
fn a_header_tells_the_cost() {
    let client = "key = [\"header:x-user\"]\nrate = \"10/h\"\n\
                  cost = { header = \"x-cost\", default = 2, max = 8 }";
    let proxy = Proxy::answering().limit("client", client).start();
    let ask = |user: &str, costs: &[&str]| {
        let mut headers = vec![("x-user", user)];
        headers.extend(costs.iter().map(|cost| ("x-cost", *cost)));
        get(proxy.address, "/", &headers)
    };
    let left = |reply: &Reply| reply.header("ratelimit").unwrap();
    assert!(left(&ask("a", &[])).contains("r=8"), "the default");
    assert!(left(&ask("a", &["8"])).contains("r=0"));
    assert_eq!(ask("a", &["1"]).status, 429);
    for wrong in
        ["", "0", "-1", "+1", "1.0", "1e1", "9", "0x1", "1 1", "99999999999999999999", "one"]
    {
        let reply = ask("b", &[wrong]);
        assert_eq!(reply.status, 400, "{wrong:?}");
        assert!(reply.json()["detail"].as_str().unwrap().contains("`x-cost`"), "{}", reply.text());
    }
    assert_eq!(ask("b", &["1", "1"]).status, 400, "twice");
    assert!(left(&ask("b", &["8"])).contains("r=2"), "what is refused with 400 takes nothing");
}

#[test]
fn a_cost_that_never_fits_is_rejected_without_a_time() {
    let client = "key = [\"header:x-user\"]\nrate = \"10/h\"\ncost = { header = \"x-cost\", max = 10 }\n\
                  overrides = [{ key = [\"small\"], rate = \"1/s\", burst = 3 }]";
    let proxy = Proxy::answering().limit("client", client).start();
    let ask = |cost| get(proxy.address, "/", &[("x-user", "small"), ("x-cost", cost)]);
    let reply = ask("4");
    assert_eq!((reply.status, reply.header("retry-after")), (429, None));
    assert!(reply.json()["detail"].as_str().unwrap().contains("ever"), "{}", reply.text());
    assert_eq!(ask("3").status, 200, "nothing was taken");
    assert_eq!(ask("11").status, 400, "`max` holds for all keys");
}

/// A regression: a key with a larger burst of its own was refused what its burst allows.
#[test]
fn a_header_may_say_what_the_burst_of_the_key_allows() {
    let client = "key = [\"header:x-user\"]\nrate = \"5/h\"\ncost = { header = \"x-cost\" }\n\
                  overrides = [{ key = [\"large\"], rate = \"100/h\" }, { key = [\"small\"], rate = \"3/h\" },\n\
                  { key = [\"free\"], rate = \"unlimited\" }, { key = [\"none\"], rate = \"0/s\" }]";
    let proxy = Proxy::answering().limit("client", client).start();
    for (user, cost, status) in [
        ("other", "5", 200),
        ("other", "6", 400),
        ("large", "50", 200),
        ("large", "101", 400),
        ("small", "4", 429),
        ("small", "6", 400),
        ("small", "3", 200),
        ("free", "1000000", 200),
        ("none", "1000000", 429),
    ] {
        let reply = get(proxy.address, "/", &[("x-user", user), ("x-cost", cost)]);
        assert_eq!(reply.status, status, "{user} {cost}");
    }
}
