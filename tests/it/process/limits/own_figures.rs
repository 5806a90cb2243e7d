//! What some keys have in a limit's place: other figures, none at all, or no limit.

use crate::support::client::{Connection, get};
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;

/// One that believes clients who they are.
fn proxy() -> Proxy {
    Proxy::answering().server("trusted_proxies = [\"127.0.0.0/8\"]").admin()
}

#[test]
fn overrides_by_exact_value_then_by_star() {
    let user = "key = [\"header:x-user\", \"header:x-plan\"]\nrate = \"1/h\"\noverrides = [\n\
                { key = [\"*\", \"free\"], rate = \"2/h\" },\n\
                { key = [\"ann\", \"free\"], rate = \"3/h\" },\n\
                { key = [\"bob\", \"*\"], rate = \"unlimited\" },\n\
                { key = [\"eve\", \"*\"], rate = \"0/s\" },\n\
                { key = [\"wide\", \"*\"], rate = \"1/h\", burst = 4 },\n]";
    let proxy = proxy().limit("user", user).start();
    let allowed = |user: &str, plan: &str| {
        let headers = [("x-user", user), ("x-plan", plan)];
        (0..6).take_while(|_| get(proxy.address, "/", &headers).status == 200).count()
    };
    for (user, plan, expected) in [
        ("zoe", "paid", 1),
        ("zoe", "free", 2),
        ("ann", "free", 3),
        ("ann", "paid", 1),
        ("bob", "paid", 6),
        ("eve", "paid", 0),
        ("wide", "paid", 4),
    ] {
        assert_eq!(allowed(user, plan), expected, "{user} {plan}");
    }
    let unlimited = get(proxy.address, "/", &[("x-user", "bob"), ("x-plan", "x")]);
    assert_eq!(unlimited.header("ratelimit-policy"), None);
    let never = get(proxy.address, "/", &[("x-user", "eve"), ("x-plan", "x")]);
    assert_eq!((never.status, never.header("retry-after")), (429, None));
    assert_eq!(never.header("ratelimit-policy").unwrap(), "\"user\";q=0");
    assert_eq!(never.violated(), ["user"]);
}

#[test]
fn what_a_rate_of_zero_refuses_takes_nothing_elsewhere() {
    let closed = "key = [\"path\"]\nrate = \"100/h\"\n\
                  overrides = [{ key = [\"/closed\"], rate = \"0/s\" }]";
    let proxy =
        proxy().limit("client", "key = [\"ip\"]\nrate = \"2/h\"").limit("closed", closed).start();
    for _ in 0..5 {
        assert_eq!(get(proxy.address, "/closed", &[]).status, 429);
    }
    let reply = get(proxy.address, "/open", &[]);
    assert_eq!(reply.status, 200);
    assert!(reply.header("ratelimit").unwrap().starts_with("\"client\";r=1;"));
    let metrics = Metrics::of(proxy.admin());
    let closed = "tidegate_decisions_total{limit=\"closed\",decision=\"rejected\"}";
    assert_eq!(metrics.value(closed), 5.0);
    let errors = "tidegate_decisions_total{limit=\"client\",decision=\"error\"}";
    assert_eq!(metrics.value(errors), 0.0, "a limit that was not asked is no error of the store's");
}

#[test]
fn beside_a_rate_of_zero_the_others_say_what_they_would_have_said() {
    let proxy = proxy()
        .limit("tried", "key = [\"ip\"]\nrate = \"1/h\"\nmode = \"shadow\"")
        .limit("client", "key = [\"ip\"]\nrate = \"1/h\"")
        .limit("closed", "key = [\"path\"]\nrate = \"9/h\"\noverrides = [{ key = [\"/closed\"], rate = \"0/s\" }]")
        .start();
    let closed = || get(proxy.address, "/closed", &[]);
    assert_eq!(closed().violated(), ["closed"]);
    assert_eq!(get(proxy.address, "/open", &[]).status, 200);
    let reply = closed();
    assert_eq!(reply.violated(), ["client", "closed"]);
    let policy = "\"client\";q=1;w=3600, \"closed\";q=0";
    assert_eq!(reply.header("ratelimit-policy").unwrap(), policy);
    let metrics = Metrics::of(proxy.admin());
    let count = |limit: &str, decision: &str| {
        let series =
            format!("tidegate_decisions_total{{limit=\"{limit}\",decision=\"{decision}\"}}");
        metrics.value(&series)
    };
    assert_eq!(count("tried", "shadow"), 1.0);
    assert_eq!((count("client", "rejected"), count("closed", "rejected")), (1.0, 2.0));
}

#[test]
fn exemptions_by_address_path_method_and_header() {
    let client = "rate = \"1/h\"\nexempt = { ip = [\"10.0.0.0/8\"], \
                  path = [\"/healthz\", \"/static/{*rest}\"], method = [\"OPTIONS\", \"PURGE\"], header = { x-internal = \"yes\" } }";
    let proxy = proxy().limit("client", client).limit("both", "rate = \"1000000/s\"").start();
    let status = |path: &str, headers: &[(&str, &str)]| get(proxy.address, path, headers).status;
    assert_eq!((status("/", &[]), status("/", &[])), (200, 429));
    for (path, headers) in [
        ("/", &[("x-forwarded-for", "10.1.2.3")][..]),
        ("/healthz", &[]),
        ("/%68ealthz", &[]),
        ("/static/a/b.css", &[]),
        ("/", &[("x-internal", "yes")]),
    ] {
        for _ in 0..2 {
            let reply = get(proxy.address, path, headers);
            assert_eq!(reply.status, 200, "{path} {headers:?}");
            let policy = reply.header("ratelimit-policy").unwrap();
            assert!(!policy.contains("client"), "the other limit applies all the same: {policy}");
        }
    }
    for (path, headers) in [
        ("/healthz/", &[][..]),
        ("/", &[("x-internal", "no")]),
        ("/", &[("x-forwarded-for", "11.1.2.3")]),
    ] {
        assert_eq!(status(path, headers), 429, "{path} {headers:?}");
    }
    for (method, expected) in [("OPTIONS", 200), ("PURGE", 200), ("HEAD", 429), ("POST", 429)] {
        let reply = Connection::open(proxy.address).request(method, "/", &[], b"");
        assert_eq!(reply.status, expected, "{method}");
    }
}
