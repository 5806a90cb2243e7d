//! What limits of any kind do: together, by whom they count, and what they say.

use crate::support::client::{Connection, Reply, get, statuses};
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::upstream::nobody;
use crate::support::wait_until;

/// One that believes clients who they are.
fn proxy() -> Proxy {
    Proxy::answering().server("trusted_proxies = [\"127.0.0.0/8\"]").admin()
}

fn retry_after(reply: &Reply) -> Option<u64> {
    reply.header("retry-after").map(|value| value.parse().unwrap())
}

const BOTH: &str = "[limits.client]\nkey = [\"ip\"]\nrate = \"3/h\"\n\
                    [limits.user]\nkey = [\"header:x-user\"]\nrate = \"1/h\"\n";

#[test]
fn all_limits_take_or_none_does() {
    let proxy = proxy().limits(BOTH).start();
    let user = |name| [("x-user", name)];
    let (a, b, c, d) = (user("a"), user("b"), user("c"), user("d"));
    // Five rejections by `user` take nothing from `client`, and the last, by `client`, nothing
    // from `user`.
    assert_eq!(
        statuses(proxy.address, &[&a, &a, &a, &a, &a, &a, &b, &c, &d, &d]),
        [200, 429, 429, 429, 429, 429, 200, 200, 429, 429]
    );
    let elsewhere = [("x-user", "d"), ("x-forwarded-for", "203.0.113.1")];
    let reply = get(proxy.address, "/", &elsewhere);
    assert_eq!(reply.status, 200, "`user` kept what it held for d");
    assert_eq!(reply.header("ratelimit").unwrap(), "\"client\";r=2;t=3600, \"user\";r=0;t=3600");
}

#[test]
fn the_rejection_names_the_limit_that_takes_longest() {
    let mut proxy = proxy()
        .limit("quick", "key = [\"ip\"]\nrate = \"1/m\"")
        .limit("slow", "key = [\"ip\"]\nrate = \"1/h\"")
        .limit("wide", "key = [\"ip\"]\nrate = \"100/h\"")
        .start();
    assert_eq!(get(proxy.address, "/", &[]).status, 200);
    let reply = get(proxy.address, "/", &[]);
    assert_eq!(reply.status, 429);
    assert_eq!(reply.violated(), ["quick", "slow"], "all that refuse, in the route's order");
    let wait = retry_after(&reply).unwrap();
    assert!((3_500..=3_600).contains(&wait), "true for all of them together: {wait}");
    assert!(proxy.stop().success());
    let line = proxy.log.find("throttled").unwrap();
    assert_eq!(line["limit"], "slow");
    let wait = line["retry_after_ms"].as_u64().unwrap();
    assert!((3_500_000..=3_600_000).contains(&wait), "{line}");
}

#[test]
fn a_failed_request_that_counted_is_told_what_is_left() {
    let proxy = Proxy::to(nobody())
        .server("max_body_size = \"1KiB\"")
        .limit("client", "key = [\"ip\"]\nrate = \"3/h\"")
        .route("path = \"/api\"\nlimits = [\"client\"]")
        .start();
    let said = |path, length: usize| {
        let reply = Connection::open(proxy.address).request("POST", path, &[], &vec![b'x'; length]);
        (reply.status, reply.header("ratelimit"))
    };
    let left = |left| Some(format!("\"client\";r={left};t=3600"));
    assert_eq!(said("/api", 1), (502, left(2)));
    assert_eq!(said("/api", 2_000), (413, None), "the limits were not asked");
    assert_eq!(said("/other", 1), (404, None));
    assert_eq!(said("/api", 1), (502, left(1)));
}

#[test]
fn a_shadow_limit_only_tells() {
    let mut proxy = proxy()
        .limit("try", "key = [\"ip\"]\nrate = \"1/h\"\nmode = \"shadow\"")
        .limit("client", "key = [\"ip\"]\nrate = \"5/h\"")
        .start();
    let mut client = Connection::open(proxy.address);
    let replies: Vec<_> = (0..7).map(|_| client.get("/", &[])).collect();
    let statuses: Vec<_> = replies.iter().map(|reply| reply.status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429]);
    for reply in &replies {
        let policy = reply.header("ratelimit-policy").unwrap();
        assert_eq!(policy, "\"client\";q=5;w=3600", "a limit in shadow is not shown");
    }
    assert_eq!(replies[6].violated(), ["client"]);
    let metrics = Metrics::of(proxy.admin());
    let said = |limit, decision| {
        metrics.value(&format!(
            "tidegate_decisions_total{{limit=\"{limit}\",decision=\"{decision}\"}}"
        ))
    };
    assert_eq!((said("try", "allowed"), said("try", "shadow")), (1.0, 6.0));
    assert_eq!((said("client", "allowed"), said("client", "rejected")), (5.0, 2.0));
    assert_eq!(said("try", "rejected"), 0.0);
    assert!(proxy.stop().success());
    let count = |decision: &str| -> u64 {
        let lines = proxy.log.with("throttled");
        let of = lines.iter().filter(|line| line["decision"] == decision);
        of.map(|line| line["count"].as_u64().unwrap()).sum()
    };
    assert_eq!((count("shadow"), count("rejected")), (6, 2));
}

#[test]
fn a_limit_that_is_off_is_not_there() {
    let proxy = proxy().limit("none", "key = [\"ip\"]\nrate = \"1/h\"\nmode = \"off\"").start();
    let reply = get(proxy.address, "/", &[]);
    assert_eq!((reply.status, reply.header("ratelimit")), (200, None));
    assert_eq!(get(proxy.address, "/", &[]).status, 200);
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
    assert_eq!((never.status, retry_after(&never)), (429, None));
    assert_eq!(never.header("ratelimit-policy").unwrap(), "\"user\";q=0");
    assert_eq!(never.violated(), ["user"]);
}

#[test]
fn overrides_by_network() {
    let client = "key = [\"ip\"]\nrate = \"1/h\"\noverrides = [\n\
                  { key = [\"203.0.113.0/24\"], rate = \"2/h\" },\n\
                  { key = [\"203.0.113.128/25\"], rate = \"3/h\" },\n\
                  { key = [\"203.0.113.200\"], rate = \"4/h\" },\n\
                  { key = [\"2001:db8::/32\"], rate = \"2/h\" },\n]";
    let proxy = proxy().limit("client", client).start();
    let allowed = |address: &str| {
        let headers = [("x-forwarded-for", address)];
        (0..6).take_while(|_| get(proxy.address, "/", &headers).status == 200).count()
    };
    for (address, expected) in [
        ("198.51.100.1", 1),
        ("203.0.113.1", 2),
        ("203.0.113.2", 2), // each address has its own bucket
        ("203.0.113.129", 3),
        ("203.0.113.200", 4),
        ("2001:db8:7::1", 2),
        ("2001:db9::1", 1),
    ] {
        assert_eq!(allowed(address), expected, "{address}");
    }
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
fn exemptions_by_address_path_and_header() {
    let client = "rate = \"1/h\"\nexempt = { ip = [\"10.0.0.0/8\"], \
                  path = [\"/healthz\", \"/static/{*rest}\"], header = { x-internal = \"yes\" } }";
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
}

#[test]
fn a_cost_is_taken_whole() {
    let proxy = proxy().limit("client", "key = [\"ip\"]\nrate = \"10/h\"\ncost = 4").start();
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
    let proxy = proxy().limit("client", client).start();
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
    let proxy = proxy().limit("client", client).start();
    let ask = |cost| get(proxy.address, "/", &[("x-user", "small"), ("x-cost", cost)]);
    let reply = ask("4");
    assert_eq!((reply.status, retry_after(&reply)), (429, None));
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
    let proxy = proxy().limit("client", client).start();
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

/// Nothing listens there.
const NO_REDIS: &str = "url = \"redis://127.0.0.1:1\"";

#[test]
fn each_limit_has_its_own_way_without_redis() {
    for (on_error, expected) in
        [("local", [200, 429]), ("allow", [200, 200]), ("reject", [503, 503])]
    {
        let limit = format!("rate = \"1/h\"\nkey = [\"ip\"]\non_store_error = {on_error:?}");
        let limited = Proxy::answering().admin().limit("client", &limit);
        let mut proxy = limited.store(NO_REDIS).start();
        assert_eq!(statuses(proxy.address, &[&[], &[]]), expected, "{on_error}");
        wait_until("Redis counts as away", || {
            Metrics::of(proxy.admin()).value("tidegate_store_up") == 0.0
        });
        let metrics = Metrics::of(proxy.admin());
        let errors = metrics.value("tidegate_decisions_total{limit=\"client\",decision=\"error\"}");
        assert_eq!(errors, if on_error == "local" { 0.0 } else { 2.0 }, "{on_error}");
        let answered =
            |answer| metrics.value(&format!("tidegate_without_redis_total{{answer=\"{answer}\"}}"));
        let refused = if on_error == "reject" { 2.0 } else { 0.0 };
        assert_eq!((answered("decided"), answered("refused")), (2.0 - refused, refused));
        assert!(metrics.value("tidegate_store_errors_total{kind=\"connection\"}") >= 1.0);
        assert!(proxy.stop().success());
        let lines = proxy.log.with("store unavailable");
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_eq!(lines[0]["level"], "WARN");
    }
}

#[test]
fn on_error_is_the_default_and_the_strictest_decides() {
    let open = "[limits.open]\nrate = \"1/h\"\n";
    let strict = "[limits.strict]\nrate = \"1/h\"\non_store_error = \"local\"\n";
    let closed = "[limits.closed]\nrate = \"1/h\"\non_store_error = \"reject\"\n";
    for (limits, expected) in [
        (vec![open], [200, 200]),
        (vec![open, strict], [200, 429]),
        (vec![open, strict, closed], [503, 503]),
    ] {
        let store = format!("{NO_REDIS}\non_error = \"allow\"");
        let proxy = Proxy::answering().store(&store).limits(&limits.concat()).start();
        assert_eq!(statuses(proxy.address, &[&[], &[]]), expected, "{limits:?}");
    }
}

#[test]
fn several_workers_share_the_buckets() {
    let proxy = Proxy::answering().server("workers = 4").limit("all", "rate = \"40/h\"").start();
    let allowed = (0..120).filter(|_| get(proxy.address, "/", &[]).status == 200).count();
    assert_eq!(allowed, 40);
}
