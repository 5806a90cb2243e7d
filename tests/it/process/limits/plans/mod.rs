//! Figures by the plan that a request says it has, or that a file gives to who asks.

mod file;

use crate::support::client::{Connection, Reply, get};
use crate::support::proxy::Proxy;
use crate::support::redis::{RedisServer, in_both_stores};
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const BY_HEADER: &str = "[plans]\nby = \"header:x-plan\"\n";

/// Two tokens; by plan five, a burst of twenty, everything and nothing.
const USER: &str = "key = [\"header:x-user\"]\nrate = \"2/h\"\n\
                    plans = { pro = \"5/h\", team = { rate = \"9/h\", burst = 20 }, \
                    internal = \"unlimited\", ended = \"0/s\" }";

fn proxy(limit: &str, store: &str) -> Proxy {
    Proxy::answering().admin().store(store).section(BY_HEADER).limit("user", limit)
}

/// The answer to a request of this user with this plan; with an empty plan, without one.
fn ask(proxy: &Tidegate, user: &str, plan: &str) -> Reply {
    let headers = [("x-user", user), ("x-plan", plan)];
    let headers = if plan.is_empty() { &headers[..1] } else { &headers };
    get(proxy.address, "/", headers)
}

/// The burst and the whole tokens that are left, as the client is told.
fn told(reply: &Reply) -> Option<(u64, u64)> {
    let number = |header: &str, begin: &str| -> Option<u64> {
        let text = reply.header(header)?;
        let (_, rest) = text.split_once(begin)?;
        rest.split(';').next()?.parse().ok()
    };
    Some((number("ratelimit-policy", ";q=")?, number("ratelimit", ";r=")?))
}

#[test]
fn each_plan_has_its_own_figures() {
    in_both_stores(|store| {
        let proxy = proxy(USER, store).start();
        for (user, plan, burst) in [
            ("a", "", 2),
            ("b", "pro", 5),
            ("c", "team", 20),
            ("d", "gold", 2),
            ("e", "Pro", 2),
            ("f", " pro ", 5),
        ] {
            let reply = ask(&proxy, user, plan);
            assert_eq!((reply.status, told(&reply)), (200, Some((burst, burst - 1))), "{plan}");
        }
        let free = ask(&proxy, "g", "internal");
        assert_eq!((free.status, free.header("ratelimit")), (200, None));
        let closed = ask(&proxy, "h", "ended");
        assert_eq!((closed.status, told(&closed)), (429, Some((0, 0))));
        assert_eq!(closed.header("retry-after"), None);
    });
}

#[test]
fn a_plan_that_changes_holds_at_once_and_the_bucket_keeps_what_was_used() {
    in_both_stores(|store| {
        // One worker knows all refusals of a bucket.
        let proxy = proxy(USER, store).server("workers = 1").start();
        let left = |plan: &str| {
            let reply = ask(&proxy, "a", plan);
            (reply.status, told(&reply).map(|(_, left)| left))
        };
        assert!((0..4).all(|_| ask(&proxy, "a", "pro").status == 200));
        for _ in 0..3 {
            assert_eq!(left(""), (429, Some(0)), "four are used, and the limit's own are two");
        }
        assert_eq!(left("pro"), (200, Some(0)), "the fifth");
        assert_eq!(left("pro"), (429, Some(0)));
        assert_eq!(left("team"), (200, Some(14)), "twenty, and six are used");
        assert_eq!(left("internal"), (200, None), "counts nothing");
        assert_eq!(left("pro"), (429, Some(0)));
        let wait = ask(&proxy, "a", "pro").header("retry-after").unwrap().parse::<u64>().unwrap();
        assert!((1_430..=1_440).contains(&wait), "two tokens at five an hour: {wait}");
    });
}

#[test]
fn every_algorithm_with_overrides_has_plans() {
    in_both_stores(|store| {
        for (name, limit, own, of_plan) in [
            ("token", "rate = \"2/h\"\nplans = { pro = \"4/h\" }", 2, 4),
            (
                "leaky",
                "algorithm = \"leaky-bucket\"\nrate = \"2/h\"\nwait = \"0s\"\n\
                 plans = { pro = { rate = \"4/h\", queue = 9 } }",
                1,
                1,
            ),
            (
                "window",
                "algorithm = \"fixed-window\"\nrate = \"2/h\"\nplans = { pro = \"4/h\" }",
                2,
                4,
            ),
            (
                "month",
                "algorithm = \"fixed-window\"\nalign = \"clock\"\nrate = \"2/month\"\n\
                 plans = { pro = \"4/month\" }",
                2,
                4,
            ),
            (
                "sliding",
                "algorithm = \"sliding-window\"\nrate = \"2/h\"\nplans = { pro = \"4/h\" }",
                2,
                4,
            ),
            ("log", "algorithm = \"sliding-log\"\nrate = \"2/h\"\nplans = { pro = \"4/h\" }", 2, 4),
        ] {
            let proxy = Proxy::answering().store(store).section(BY_HEADER);
            let proxy = proxy.limit(name, &format!("key = [\"header:x-user\"]\n{limit}")).start();
            let passed = |user: &str, plan: &str| {
                (0..6).filter(|_| ask(&proxy, user, plan).status == 200).count()
            };
            assert_eq!([passed("a", ""), passed("b", "pro")], [own, of_plan], "{name}");
            assert_eq!([passed("a", "pro"), passed("b", "")], [of_plan - own, 0], "{name}");
        }
    });
}

#[test]
fn a_plan_says_how_many_may_be_under_way() {
    in_both_stores(|store| {
        let (upstream, asked, go) = Upstream::slow();
        let limit = "algorithm = \"concurrency\"\nlimit = 1\nplans = { pro = { limit = 2 } }";
        let proxy = Proxy::to(upstream.url()).store(store).section(BY_HEADER);
        let proxy = proxy.limit("slots", &format!("key = [\"header:x-user\"]\n{limit}")).start();
        let held: Vec<_> = (0..2)
            .map(|_| {
                let mut client = Connection::open(proxy.address);
                client.send("GET /slow HTTP/1.1\r\nhost: a\r\nx-user: a\r\nx-plan: pro\r\n\r\n");
                asked.recv().unwrap();
                client
            })
            .collect();
        for (plan, slots) in [("pro", 2), ("", 1)] {
            let reply = ask(&proxy, "a", plan);
            assert_eq!((reply.status, told(&reply)), (429, Some((slots, 0))), "{plan}");
        }
        drop(go);
        for mut client in held {
            assert_eq!(client.reply("GET").status, 200);
        }
    });
}

#[test]
fn two_proxies_that_share_redis_know_one_bucket_of_all_plans() {
    let redis = RedisServer::start();
    let [one, other] = [(); 2].map(|()| proxy(USER, &redis.fields()).start());
    assert!((0..4).all(|_| ask(&one, "a", "pro").status == 200));
    assert_eq!(ask(&other, "a", "").status, 429);
    assert_eq!(told(&ask(&other, "a", "pro")), Some((5, 0)));
    assert_eq!(told(&ask(&one, "a", "team")), Some((20, 14)));
    let buckets: Vec<String> = redis.run(&["KEYS", "tidegate:{*"]);
    assert_eq!(buckets.len(), 1, "{buckets:?}");
}

#[test]
fn overrides_win_over_plans() {
    in_both_stores(|store| {
        let limit = format!("{USER}\noverrides = [{{ key = [\"a\"], rate = \"7/h\" }}]");
        let proxy = proxy(&limit, store).start();
        assert_eq!(told(&ask(&proxy, "a", "pro")), Some((7, 6)));
        assert_eq!(told(&ask(&proxy, "b", "pro")), Some((5, 4)));
        let set = |method: &str, user: &str, rate: &str| {
            let path = format!("/api/limits/user/keys/{user}/override?plain");
            let headers = [("host", "localhost"), ("content-type", "application/json")];
            let body = format!("{{\"rate\":\"{rate}\"}}");
            let mut admin = Connection::open(proxy.admin());
            assert!(admin.request(method, &path, &headers, body.as_bytes()).status < 300);
        };
        for user in ["a", "b"] {
            set("PUT", user, "50/h");
            assert_eq!(told(&ask(&proxy, user, "pro")).unwrap().0, 50);
        }
        for (user, burst) in [("a", 7), ("b", 5)] {
            set("DELETE", user, "");
            wait_until("the override has ended", || {
                told(&ask(&proxy, user, "pro")).unwrap().0 == burst
            });
        }
    });
}

#[test]
fn a_default_is_for_who_has_no_plan_that_a_limit_names() {
    let plans = "[plans]\nby = \"header:x-plan | cookie:plan\"\ndefault = \"free\"\n";
    let limits = "[limits.a]\nkey = [\"header:x-user\"]\nrate = \"2/h\"\n\
                  plans = { free = \"3/h\", pro = \"5/h\" }\n\
                  [limits.b]\nkey = [\"header:x-user\"]\nrate = \"6/h\"\nplans = { team = \"7/h\" }\n";
    let proxy = Proxy::answering().section(plans).limits(limits).start();
    let bursts = |headers: &[(&str, &str)]| {
        let reply = get(proxy.address, "/", headers);
        let policy = reply.header("ratelimit-policy").unwrap();
        let bursts = policy.split(", ").map(|member| member.split(';').nth(1).unwrap().to_owned());
        bursts.collect::<Vec<_>>()
    };
    assert_eq!(bursts(&[("x-user", "a")]), ["q=3", "q=6"]);
    assert_eq!(bursts(&[("x-user", "b"), ("x-plan", "gold")]), ["q=3", "q=6"]);
    assert_eq!(bursts(&[("x-user", "c"), ("x-plan", "pro")]), ["q=5", "q=6"]);
    assert_eq!(bursts(&[("x-user", "d"), ("x-plan", "team")]), ["q=2", "q=7"], "not the default");
    assert_eq!(bursts(&[("x-user", "e"), ("cookie", "plan=pro")]), ["q=5", "q=6"]);
    assert_eq!(bursts(&[("x-user", "f"), ("x-plan", "team"), ("cookie", "plan=pro")])[1], "q=7");
}

#[test]
fn a_plan_that_comes_twice_is_a_bad_request() {
    let proxy = proxy(USER, "").start();
    for plans in [["x-plan", "x-plan"], ["x-plan", "x_plan"]] {
        let headers = [("x-user", "a"), (plans[0], "pro"), (plans[1], "team")];
        let reply = get(proxy.address, "/", &headers);
        assert_eq!(reply.status, 400, "{}", reply.text());
        assert!(reply.text().contains("header `x-plan`"), "{}", reply.text());
    }
    assert_eq!(told(&ask(&proxy, "a", "pro")), Some((5, 4)), "nothing was taken");
    // A limit in shadow stops nobody, and a limit without plans does not look.
    let shadow = format!("{USER}\nmode = \"shadow\"");
    for limit in [&*shadow, "key = [\"header:x-user\"]\nrate = \"2/h\""] {
        let other = "[limits.other]\nrate = \"9/h\"\nmode = \"shadow\"\nplans = { pro = \"1/h\" }";
        let proxy = Proxy::answering().section(BY_HEADER).limit("user", limit).limits(other);
        let twice = [("x-user", "a"), ("x-plan", "pro"), ("x-plan", "team")];
        assert_eq!(get(proxy.start().address, "/", &twice).status, 200, "{limit}");
    }
}

#[test]
fn a_throttle_line_names_the_plan_that_decided() {
    let limit = format!("{USER}\noverrides = [{{ key = [\"o\"], rate = \"1/h\" }}]");
    let proxy = proxy(&limit, "").start();
    for (user, plan, burst) in [("a", "pro", 5), ("b", "", 2), ("c", "gold", 2), ("o", "pro", 1)] {
        assert!((0..burst).all(|_| ask(&proxy, user, plan).status == 200), "{user}");
        assert_eq!(ask(&proxy, user, plan).status, 429);
    }
    proxy.log.wait("throttled", |_| proxy.log.count("throttled") == 4);
    let lines = proxy.log.with("throttled");
    let said: Vec<_> = lines.iter().map(|line| (line["plan"].as_str(), &line["rate"])).collect();
    let rates = ["5/h", "2/h", "2/h", "1/h"].map(serde_json::Value::from);
    assert_eq!(
        said,
        [(Some("pro"), &rates[0]), (None, &rates[1]), (None, &rates[2]), (None, &rates[3])]
    );
}

#[test]
fn a_candidate_is_not_tried_on_a_plan() {
    let limit = format!("{USER}\ncandidate = {{ rate = \"1/h\" }}");
    let proxy = proxy(&limit, "").start();
    assert!((0..3).all(|_| ask(&proxy, "a", "pro").status == 200));
    assert!((0..2).all(|_| ask(&proxy, "b", "").status == 200));
    let line = proxy.log.wait("throttled", |_| true);
    assert_eq!((&line["limit"], &line["decision"]), (&"user:candidate".into(), &"shadow".into()));
    let counted = crate::support::metrics::Metrics::of(proxy.admin());
    let name = "tidegate_decisions_total{limit=\"user:candidate\",decision=\"allowed\"}";
    assert_eq!(counted.value(name), 1.0, "of the user without a plan");
}

#[test]
fn a_cost_may_be_as_high_as_the_plan_s_burst() {
    let limit = format!("{USER}\ncost = {{ header = \"x-cost\" }}");
    let proxy = proxy(&limit, "").start();
    let status = |user: &str, plan: &str, cost: &str| {
        get(proxy.address, "/", &[("x-user", user), ("x-plan", plan), ("x-cost", cost)]).status
    };
    assert_eq!(status("a", "team", "20"), 200);
    assert_eq!(status("b", "team", "21"), 400);
    assert_eq!(status("c", "pro", "6"), 400);
    assert_eq!(status("d", "none", "3"), 400);
}

#[test]
fn a_response_is_settled_by_the_plan_of_its_request() {
    in_both_stores(|store| {
        let upstream = Upstream::answering(|_| {
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-used: 3\r\n\r\n".to_vec()
        });
        let limit = format!("{USER}\ncost = {{ response_header = \"x-used\", estimate = 1 }}");
        let proxy = Proxy::to(upstream.url()).admin().store(store).section(BY_HEADER);
        let proxy = proxy.limit("user", &limit).server("workers = 1").start();
        // Once there was an override, each settlement looks the figures up again.
        let path = "/api/limits/user/keys/z/override?plain";
        let headers = [("host", "localhost"), ("content-type", "application/json")];
        let mut admin = Connection::open(proxy.admin());
        assert_eq!(admin.request("PUT", path, &headers, b"{\"rate\":\"1/h\"}").status, 200);
        assert_eq!(told(&ask(&proxy, "a", "team")), Some((20, 19)));
        let bucket = "/api/limits/user/keys/a?plain";
        wait_until("three are used", || admin.get(bucket, &headers[..1]).json()["remaining"] == 0);
        assert_eq!(ask(&proxy, "a", "").status, 429, "below zero by the limit's own figures");
        assert_eq!(told(&ask(&proxy, "a", "team")), Some((20, 16)));
    });
}

/// A request of another plan began the window anew: with two plans in turn, 148 of 180 requests passed.
#[test]
fn windows_of_other_lengths_keep_what_was_used() {
    in_both_stores(|store| {
        for algorithm in ["fixed-window", "sliding-window", "sliding-log"] {
            let limit = format!(
                "key = [\"header:x-user\"]\nalgorithm = \"{algorithm}\"\nrate = \"4/h\"\n\
                 plans = {{ pro = \"6/d\", team = \"8/d\", ended = \"0/s\" }}"
            );
            let proxy = proxy(&limit, store).start();
            let left = |plan: &str| {
                let reply = ask(&proxy, "a", plan);
                (reply.status, told(&reply).map(|(_, left)| left))
            };
            for (plan, status, remaining) in [
                ("pro", 200, 5),
                ("pro", 200, 4),
                ("", 200, 1),
                ("pro", 200, 2),
                ("", 429, 0),
                ("ended", 429, 0),
                ("pro", 200, 1),
                ("pro", 200, 0),
                ("", 429, 0),
                ("pro", 429, 0),
                ("team", 200, 1),
                ("team", 200, 0),
                ("team", 429, 0),
                ("", 429, 0),
            ] {
                assert_eq!(left(plan), (status, Some(remaining)), "{algorithm} {plan}");
            }
            assert_eq!(told(&ask(&proxy, "b", "")), Some((4, 3)), "another key");
            let bucket = "/api/limits/user/keys/a?plain";
            let host = [("host", "localhost")];
            let reset = Connection::open(proxy.admin()).request("DELETE", bucket, &host, b"");
            assert_eq!(reset.status, 204, "{}", reset.text());
            assert_eq!((left(""), left("pro")), ((200, Some(3)), (200, Some(4))), "{algorithm}");
        }
    });
}
