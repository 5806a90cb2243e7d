//! Several limits on one route, and several proxies with one limit.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::support::client::{Connection, get, statuses};
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::redis::{RedisServer, in_both_stores};
use crate::support::tidegate::Tidegate;
use crate::support::upstream::{Upstream, nobody};
use crate::support::wait_until;

/// An API that never answers on `/silent`, where it counts who asks, until its client has gone.
fn api() -> (Upstream, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let api = Upstream::raw(move |mut stream| {
        // A request's head without a body comes in one piece.
        while let Ok(read @ 1..) = stream.read(&mut [0; 4096]) {
            assert!(read > 0);
            counter.fetch_add(1, Ordering::SeqCst);
        }
    });
    (api, asked)
}

/// A proxy with these limits, in which each `/ROUTE` named here has its limits and goes to the API, and is
/// answered at once below `/ROUTE/at-once`. With one worker, what is given back reaches Redis before what
/// is asked next.
fn proxy(store: &str, api: &Upstream, limits: &str, routes: &[(&str, &[&str])]) -> Proxy {
    let proxy = Proxy::of_one_worker(api)
        .server("trusted_proxies = [\"127.0.0.0/8\"]")
        .admin()
        .section("[log]\nthrottle = \"each\"\nkeys = \"plain\"")
        .store(store)
        .limits(limits);
    routes.iter().fold(proxy, |proxy, (route, names)| {
        let at_once = "respond = { status = 200 }";
        proxy
            .route(&format!("path = \"/{route}\"\nlimits = {names:?}"))
            .route(&format!("path = \"/{route}/at-once\"\n{at_once}\nlimits = {names:?}"))
    })
}

/// A request that is sent, and perhaps never answered.
fn send(proxy: &Tidegate, path: &str, headers: &[(&str, &str)]) -> Connection {
    let mut client = Connection::open(proxy.address);
    let headers: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n{headers}\r\n"));
    client
}

/// What some proxies together have said.
fn said(proxies: &[Tidegate], limit: &str, decision: &str) -> f64 {
    let name = format!("tidegate_decisions_total{{limit=\"{limit}\",decision=\"{decision}\"}}");
    proxies.iter().map(|proxy| Metrics::of(proxy.admin()).value(&name)).sum()
}

fn waiting(proxies: &[Tidegate]) -> f64 {
    proxies.iter().map(|proxy| Metrics::of(proxy.admin()).value("tidegate_waiting")).sum()
}

/// The line names the limit that takes longest. The other one has rejected its key, too.
#[test]
fn each_limit_that_refuses_a_request_counts_its_key() {
    let limits = "[limits.slow]\nkey = [\"ip\"]\nrate = \"1/h\"\n\
                  [limits.fast]\nkey = [\"header:x-user\"]\nrate = \"2/h\"\nburst = 1\n";
    let log = "[log]\nsummary_interval = \"1s\"";
    let proxy = Proxy::answering().admin().section(log).limits(limits).start();
    let ask = || get(proxy.address, "/", &[("x-user", "a")]).status;
    let keys = |limit: &str| {
        let name = format!("tidegate_throttled_keys{{limit=\"{limit}\"}}");
        Metrics::of(proxy.admin()).value(&name)
    };
    assert_eq!(ask(), 200);
    wait_until("both limits have a key", || {
        assert_eq!(ask(), 429);
        keys("slow") == 1.0 && keys("fast") == 1.0
    });
    assert!(proxy.log.with("throttled").iter().all(|line| line["limit"] == "slow"));
}

#[test]
fn several_proxies_never_let_more_through_than_one_would() {
    let (server, (api, asked)) = (RedisServer::start(), api());
    let limits = "[limits.log]\nalgorithm = \"sliding-log\"\nrate = \"20/h\"\n\
                  [limits.window]\nalgorithm = \"fixed-window\"\nrate = \"20/h\"\n\
                  [limits.leaky]\nalgorithm = \"leaky-bucket\"\nrate = \"1/h\"\nqueue = 5\n\
                  [limits.slots]\nalgorithm = \"concurrency\"\nlimit = 3\n";
    let routes: Vec<(&str, &[&str])> = vec![
        ("log", &["log"]),
        ("window", &["window"]),
        ("leaky", &["leaky"]),
        ("slots", &["slots"]),
    ];
    let proxy = proxy(&server.fields(), &api, limits, &routes);
    let proxies = [(); 3].map(|()| proxy.start());

    for path in ["/log/at-once", "/window/at-once"] {
        let passed = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for n in 0..6 {
                let (address, passed) = (proxies[n % 3].address, &passed);
                scope.spawn(move || {
                    let mut client = Connection::open(address);
                    for _ in 0..20 {
                        let status = client.get(path, &[]).status;
                        assert!(matches!(status, 200 | 429), "{status}");
                        passed.fetch_add(usize::from(status == 200), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(passed.into_inner(), 20, "{path}");
    }

    // One goes at once, five are held, wherever they wait.
    let clients: Vec<_> = (0..30).map(|n| send(&proxies[n % 3], "/leaky/at-once", &[])).collect();
    let all = |limit| ["allowed", "delayed", "rejected"].map(|kind| said(&proxies, limit, kind));
    wait_until("all are decided on", || all("leaky").iter().sum::<f64>() >= 30.0);
    assert_eq!(all("leaky"), [1.0, 5.0, 24.0]);
    assert_eq!(waiting(&proxies), 5.0);
    drop(clients);
    wait_until("nobody waits", || waiting(&proxies) == 0.0);

    // Three are under way for as long as their clients wait.
    let clients: Vec<_> = (0..30).map(|n| send(&proxies[n % 3], "/slots", &[])).collect();
    wait_until("all are decided on", || all("slots").iter().sum::<f64>() >= 30.0);
    assert_eq!(all("slots"), [3.0, 0.0, 27.0]);
    wait_until("they reach the API", || asked.load(Ordering::SeqCst) == 3);
    for proxy in &proxies {
        assert_eq!(get(proxy.address, "/slots/at-once", &[]).status, 429);
    }
    drop(clients);
    wait_until("their slots are free", || {
        get(proxies[0].address, "/slots/at-once", &[]).status == 200
    });
}

/// The fields of a throttle line that do not depend on when it is written.
fn line_of<'l>(lines: &'l [Value], limit: &str, decision: &str) -> &'l Value {
    let mut lines = lines.iter().filter(|l| l["limit"] == limit && l["decision"] == decision);
    lines.next().unwrap_or_else(|| panic!("no line of {limit}, {decision}"))
}

#[test]
fn an_operator_sees_what_a_sliding_log_and_slots_say() {
    in_both_stores(|store| {
        let (api, asked) = api();
        let limits = "[limits.log]\nkey = [\"header:x-user\"]\nalgorithm = \"sliding-log\"\n\
                      rate = \"2/h\"\nwait = \"65m\"\nmax_waiting = 1\n\
                      [limits.slots]\nkey = [\"path\"]\nalgorithm = \"concurrency\"\nlimit = 1\n";
        let routes: Vec<(&str, &[&str])> = vec![("log", &["log"]), ("slots", &["slots"])];
        let proxies = [proxy(store, &api, limits, &routes).start()];
        let [proxy] = &proxies;

        let user = [("x-user", "ann"), ("x-forwarded-for", "203.0.113.7")];
        for _ in 0..2 {
            assert_eq!(get(proxy.address, "/log/at-once", &user).status, 200);
        }
        let held = send(proxy, "/log/at-once?secret=1", &user);
        wait_until("it is held", || waiting(&proxies) == 1.0);
        assert_eq!(get(proxy.address, "/log/at-once", &user).status, 429);
        let client = send(proxy, "/slots", &user);
        wait_until("it has its slot", || asked.load(Ordering::SeqCst) == 1);
        let path = [("x-forwarded-for", "203.0.113.8")];
        assert_eq!(get(proxy.address, "/slots", &path).status, 429);

        let all = |limit| {
            ["allowed", "delayed", "rejected", "shadow", "error"]
                .map(|kind| said(&proxies, limit, kind))
        };
        assert_eq!(all("log"), [2.0, 1.0, 1.0, 0.0, 0.0]);
        assert_eq!(all("slots"), [1.0, 0.0, 1.0, 0.0, 0.0]);
        proxy.log.wait("throttled", |line| line["limit"] == "slots");
        let lines = proxy.log.with("throttled");
        assert_eq!(lines.len(), 3, "{lines:?}");
        // The one that is held goes when the first permit has left, and another could with the second.
        for (limit, decision, route, client, key, wait, about) in [
            ("log", "delayed", "/log/at-once", "203.0.113.7", "ann", "delay_ms", 3_600_000),
            ("log", "rejected", "/log/at-once", "203.0.113.7", "ann", "retry_after_ms", 3_600_000),
            ("slots", "rejected", "/slots", "203.0.113.8", "/slots", "retry_after_ms", 1_000),
        ] {
            let line = line_of(&lines, limit, decision);
            for (field, value) in [
                ("level", if decision == "rejected" { "WARN" } else { "INFO" }),
                ("target", "tidegate::throttle"),
                ("route", route),
                ("path", route),
                ("client", client),
                ("key", key),
                ("method", "GET"),
            ] {
                assert_eq!(line[field], value, "{field} of {line}");
            }
            assert_eq!(line["count"], 1);
            let wait = line[wait].as_u64().unwrap_or_else(|| panic!("{wait} of {line}"));
            assert!((about - about / 10..=about).contains(&wait), "{line}");
        }
        drop((held, client));
        wait_until("nobody waits", || waiting(&proxies) == 0.0);
    });
}

/// The places of a queue in which nobody may wait were told as what is left.
#[test]
fn a_leaky_bucket_that_holds_nobody_promises_nothing() {
    let limit = "algorithm = \"leaky-bucket\"\nrate = \"1/h\"\nqueue = 2\nwait = \"0s\"";
    in_both_stores(|store| {
        let proxy = Proxy::answering().limit("even", limit).store(store).start();
        let mut client = Connection::open(proxy.address);
        assert_eq!(client.get("/", &[]).status, 200);
        for _ in 0..2 {
            let refused = client.get("/", &[]);
            assert_eq!(refused.status, 429);
            let told = refused.header("ratelimit").unwrap();
            assert!(told.starts_with("\"even\";r=0;t="), "{told}");
        }
    });
}

/// One that believes clients who they are.
fn believing() -> Proxy {
    Proxy::answering().server("trusted_proxies = [\"127.0.0.0/8\"]").admin()
}

const BOTH: &str = "[limits.client]\nkey = [\"ip\"]\nrate = \"3/h\"\n\
                    [limits.user]\nkey = [\"header:x-user\"]\nrate = \"1/h\"\n";

#[test]
fn all_limits_take_or_none_does() {
    let proxy = believing().limits(BOTH).start();
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
fn several_workers_share_the_buckets() {
    let proxy = Proxy::answering().server("workers = 4").limit("all", "rate = \"40/h\"").start();
    let allowed = (0..120).filter(|_| get(proxy.address, "/", &[]).status == 200).count();
    assert_eq!(allowed, 40);
}
