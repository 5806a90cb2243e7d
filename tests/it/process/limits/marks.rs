//! Limits with `mode = "mark"`: the API is told which would refuse, and clients notice nothing.

use crate::support::client::{Connection, get};
use crate::support::http2::Client;
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::redis::in_both_stores;
use crate::support::upstream::{Upstream, nobody, ok};

const OVER: &str = "tidegate-over";

/// A limit that marks the second request of a user.
const USER: &str = "key = [\"header:x-user\"]\nrate = \"1/h\"\nmode = \"mark\"";

/// A limit that marks the third request of all.
const ALL: &str = "key = []\nrate = \"2/h\"\nmode = \"mark\"";

#[test]
fn the_api_is_told_which_limits_would_refuse_and_clients_are_told_nothing() {
    in_both_stores(|store| {
        let api = Upstream::echoing();
        let mut proxy = Proxy::to(&api)
            .admin()
            .limit("user", USER)
            .limit("own", "key = []\nrate = \"100/h\"")
            .limit("all", ALL)
            .limit("tried", "key = []\nrate = \"1/h\"\nmode = \"shadow\"")
            .store(store)
            .start();
        for (user, expected) in [
            ("a", None),
            ("a", Some("user")),
            ("b", Some("all")),
            ("c", Some("all")),
            ("c", Some("user,all")),
        ] {
            let reply = get(proxy.address, "/", &[("x-user", user)]);
            assert_eq!(reply.status, 200);
            assert_eq!(api.last().header(OVER).as_deref(), expected, "{user}");
            assert_eq!(reply.header("ratelimit-policy").unwrap(), "\"own\";q=100;w=3600");
            assert_eq!(reply.header(OVER), None);
        }
        let metrics = Metrics::of(proxy.admin());
        let said = |limit: &str, decision: &str| {
            let labels = format!("{{limit=\"{limit}\",decision=\"{decision}\"}}");
            metrics.value(&format!("tidegate_decisions_total{labels}"))
        };
        assert_eq!((said("user", "allowed"), said("user", "marked")), (3.0, 2.0));
        assert_eq!((said("all", "allowed"), said("all", "marked")), (2.0, 3.0));
        assert_eq!(said("user", "rejected") + said("user", "shadow"), 0.0);
        assert_eq!(said("tried", "shadow"), 4.0);
        let status = get(proxy.admin(), "/api/status", &[("host", "localhost")]).json();
        assert_eq!(status["limits"][0]["mode"], "mark");
        assert_eq!(status["limits"][0]["marked_total"], 2);
        assert_eq!(status["requests"]["marked_total"], 4);
        assert!(proxy.stop().success());
        let lines = proxy.log.with("throttled");
        let mut told: Vec<_> = lines
            .iter()
            .filter(|line| line["limit"] != "tried")
            .map(|line| (line["limit"].as_str().unwrap(), line["decision"].as_str().unwrap()))
            .collect();
        told.sort_unstable();
        told.dedup();
        assert_eq!(told, [("all", "marked"), ("user", "marked")]);
        assert!(lines.iter().all(|line| line["level"] == "INFO"), "{lines:?}");
    });
}

/// A regression for its kind: a client must not tell the API what only tidegate may tell it.
#[test]
fn what_a_client_writes_there_does_not_reach_the_api() {
    let api = Upstream::echoing();
    let proxy = Proxy::to(&api)
        .server("trusted_proxies = [\"127.0.0.1\"]")
        .limit("user", USER)
        .route("path = \"/limited\"\nlimits = [\"user\"]")
        .route("path = \"/{*rest}\"")
        .start();
    let twins = [OVER, "Tidegate-Over", "tidegate_over", "tidegate.over"];
    for path in ["/", "/limited", "/limited"] {
        for twin in twins {
            for connection in ["keep-alive", OVER, "Tidegate_Over, close"] {
                let fields = [(twin, "forged"), ("connection", connection), ("x-user", path)];
                assert_eq!(get(proxy.address, path, &fields).status, 200);
                let got = api.last();
                let said = got.headers.iter().any(|(_, value)| value.contains("forged"));
                assert!(!said, "{path} {twin} {connection}: {got:?}");
            }
        }
        let fields = [(OVER, "forged"), ("tidegate_over", "forged")];
        assert_eq!(Client::open(proxy.address).get(path, &fields).status, 200);
        assert!(!api.last().headers.iter().any(|(_, value)| value.contains("forged")), "{path}");
    }
    let marked = [("x-user", "/limited"), ("connection", OVER)];
    get(proxy.address, "/limited", &marked);
    assert_eq!(api.last().header(OVER).as_deref(), Some("user"), "and what it removes stays");
    let mut client = Connection::open(proxy.address);
    client.send(format!(
        "POST / HTTP/1.1\r\nhost: a\r\ntrailer: {}, x-sum\r\ntransfer-encoding: chunked\r\n\r\n\
         1\r\nx\r\n0\r\n{}x-sum: 1\r\n\r\n",
        twins.join(", "),
        twins.map(|twin| format!("{twin}: forged\r\n")).concat(),
    ));
    assert_eq!(client.reply("POST").status, 200);
    assert_eq!(api.last().trailers, [("x-sum".to_owned(), "1".to_owned())]);
    let mut client = Client::open(proxy.address);
    let mut upload = client.upload("POST", "/", &[("trailer", OVER)]);
    upload.end_with(&[(OVER, "forged")]);
    assert_eq!(upload.reply().status, 200);
    assert!(api.last().trailers.is_empty(), "{:?}", api.last());
}

#[test]
fn the_mark_goes_to_another_server_and_through_an_upgrade_and_a_call() {
    let api = Upstream::answering(|got| match got.header("upgrade") {
        Some(_) => b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
                     upgrade: websocket\r\n\r\n"
            .to_vec(),
        None => ok(got.path()),
    });
    let proxy = Proxy::of_one_worker(nobody())
        .and(&api)
        .upstream("balance = \"round-robin\"")
        .limit("all", "key = []\nrate = \"0/s\"\nmode = \"mark\"")
        .start();
    for _ in 0..4 {
        assert_eq!(get(proxy.address, "/", &[]).status, 200);
        assert_eq!(api.last().header(OVER).as_deref(), Some("all"));
    }
    let call = [("content-type", "application/grpc-web"), ("x-grpc-web", "1")];
    assert_eq!(Connection::open(proxy.address).request("POST", "/a.B/C", &call, b"x").status, 200);
    assert_eq!(api.last().header(OVER).as_deref(), Some("all"));
    let offer = [("connection", "upgrade"), ("upgrade", "websocket")];
    assert_eq!(get(proxy.address, "/chat", &offer).status, 101);
    assert_eq!(api.last().header(OVER).as_deref(), Some("all"));
}

#[test]
fn a_request_that_another_limit_holds_is_marked_all_the_same() {
    let api = Upstream::echoing();
    let proxy = Proxy::to(&api)
        .limit("even", "key = []\nrate = \"1000/s\"\nburst = 1\nwait = \"1h\"")
        .limit("all", ALL)
        .start();
    let client = &mut Connection::open(proxy.address);
    for expected in [None, None, Some("all"), Some("all")] {
        assert_eq!(client.get("/", &[]).status, 200);
        assert_eq!(api.last().header(OVER).as_deref(), expected);
    }
}

/// A limit that cannot read the key or the cost of a request refuses it when it enforces. So it marks.
#[test]
fn a_marking_limit_stops_and_holds_nobody() {
    let api = Upstream::echoing();
    let proxy = Proxy::to(&api)
        .admin()
        .limit(
            "must",
            "key = [\"cookie:sid\"]\nmissing = \"reject\"\nrate = \"1/h\"\nmode = \"mark\"",
        )
        .limit("even", "key = []\nrate = \"1/h\"\nwait = \"90m\"\nmode = \"mark\"")
        .limit("new", "key = []\nrate = \"100/h\"\nmode = \"mark\"\ncandidate = { rate = \"1/h\" }")
        .start();
    for expected in [Some("must"), Some("must"), Some("must,even")] {
        assert_eq!(get(proxy.address, "/", &[]).status, 200);
        assert_eq!(api.last().header(OVER).as_deref(), expected);
    }
    let metrics = Metrics::of(proxy.admin());
    let marked = "tidegate_decisions_total{limit=\"must\",decision=\"marked\"}";
    assert_eq!(metrics.value(marked), 3.0);
    let line = proxy.log.wait("throttled", |it| it["limit"] == "must");
    assert_eq!((&line["decision"], &line["key"]), (&"marked".into(), &"-".into()));
    let candidate = "tidegate_decisions_total{limit=\"new:candidate\",decision=\"shadow\"}";
    assert_eq!(metrics.value(candidate), 2.0);
    for decision in ["shadow", "marked"] {
        proxy.log.wait("throttled", |it| it["limit"] == "even" && it["decision"] == decision);
    }
    let summary = get(proxy.admin(), "/api/status", &[("host", "localhost")]).json();
    assert_eq!(summary["summary"], "Every limit marks or is in shadow: none rejects.");
}

/// What cannot be read passed without a mark: 15 of 15.
#[test]
fn an_unreadable_key_or_cost_is_a_mark() {
    let api = Upstream::echoing();
    let limits = [
        ("key", "key = [\"header:x-user\"]\nrate = \"100/h\"\nmode = \"mark\""),
        (
            "cost",
            "key = []\nrate = \"100/h\"\ncost = { header = \"x-cost\", max = 9 }\nmode = \"mark\"",
        ),
        ("tried", "key = [\"header:x-user\"]\nrate = \"100/h\"\nmode = \"shadow\""),
    ];
    let mut proxy = Proxy::to(&api);
    for (name, limit) in limits {
        proxy = proxy.limit(name, limit);
    }
    let proxy = proxy.start();
    let twice = ("x-user", "a");
    for (fields, expected) in [
        (&[twice][..], None),
        (&[twice, twice], Some("key")),
        (&[("x_user", "a")], Some("key")),
        (&[("x-cost", "0")], Some("cost")),
        (&[("x-cost", "ten")], Some("cost")),
        (&[twice, twice, ("x-cost", "-1")], Some("key,cost")),
    ] {
        assert_eq!(get(proxy.address, "/", fields).status, 200);
        assert_eq!(api.last().header(OVER).as_deref(), expected, "{fields:?}");
        assert_eq!(Client::open(proxy.address).get("/", &fields[..1]).status, 200);
    }
}
