//! The forms in which proxies ask, and who may.

use std::net::TcpStream;

use serde_json::json;

use super::{
    PER_CLIENT, as_nginx, as_traefik, asked_at, assert_wait, deciding, file, file_at, on_a_socket,
    trusting,
};
use crate::support::client::{Connection, Reply, get};
use crate::support::http2::Client;
use crate::support::metrics::Metrics;
use crate::support::port::Port;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

#[test]
fn a_refusal_to_nginx_is_403_and_says_what_the_client_is_to_get() {
    let proxy = deciding("", PER_CLIENT);
    let mut nginx = Connection::open(asked_at(&proxy));
    for _ in 0..2 {
        let reply = as_nginx(&mut nginx, "/a/b", "203.0.113.7");
        assert_eq!((reply.status, reply.body.len()), (204, 0));
        assert!(reply.header("ratelimit").is_some() && reply.header("content-type").is_none());
    }
    let refused = as_nginx(&mut nginx, "/a/c", "203.0.113.7");
    assert_eq!((refused.status, refused.body.len()), (403, 0));
    assert_eq!(refused.header("x-tidegate-status").as_deref(), Some("429"));
    assert_wait(refused.header("retry-after").as_deref(), 1_800);
    assert_eq!(as_nginx(&mut nginx, "/a/b", "203.0.113.8").status, 204, "another client");
    let ambiguous = as_nginx(&mut nginx, "/a%2fb", "203.0.113.8");
    assert_eq!(ambiguous.status, 403);
    assert_eq!(ambiguous.header("x-tidegate-status").as_deref(), Some("400"));
    assert_eq!(as_nginx(&mut nginx, "/no/route", "203.0.113.7").status, 204, "not 404");
    let line = proxy.log.wait("request", |line| line["status"] == 429);
    assert_eq!((&line["via"], &line["client"]), (&"auth-request".into(), &"203.0.113.7".into()));
    assert_eq!((&line["path"], &line["limit"]), (&"/a/c".into(), &"ip".into()));
    let page = Metrics::of(proxy.admin());
    let calls = |status: u16| {
        let labels = format!("via=\"auth-request\",status=\"{status}\"");
        page.value(&format!("tidegate_decide_requests_total{{{labels}}}"))
    };
    assert_eq!((calls(204), calls(429), calls(400)), (4.0, 1.0, 1.0));
    assert_eq!(page.samples("tidegate_requests_total"), 0);
    assert_eq!(page.value("tidegate_decisions_total{limit=\"ip\",decision=\"allowed\"}"), 3.0);
}

#[test]
fn traefik_gets_the_clients_answer_as_it_is() {
    let proxy = deciding("", PER_CLIENT);
    let mut traefik = Connection::open(asked_at(&proxy));
    let client = [("x-forwarded-for", "203.0.113.7")];
    for _ in 0..2 {
        let reply = as_traefik(&mut traefik, "/a/b?c", &client);
        assert_eq!((reply.status, reply.body.len()), (200, 0));
        assert!(reply.header("ratelimit-policy").is_some());
    }
    let refused = as_traefik(&mut traefik, "/a/b", &client);
    assert_eq!((refused.status, refused.violated()), (429, vec!["ip".to_owned()]));
    assert_eq!(refused.header("x-tidegate-status"), None);
    assert_eq!(as_traefik(&mut traefik, "/a/../no/route", &client).status, 400);
    // The status of a gRPC refusal would be 200.
    let grpc = [client[0], ("content-type", "application/grpc")];
    assert_eq!(as_traefik(&mut traefik, "/a/b", &grpc).status, 429);
    // The method of the call says whether a body follows, and not that of the request.
    let head = [client[0], ("x-forwarded-method", "HEAD")];
    let fields = [head[0], head[1], ("x-forwarded-uri", "/a/b"), ("x-forwarded-host", "a")];
    let reply = traefik.get("/forward-auth", &fields);
    assert!(reply.status == 429 && !reply.body.is_empty());
    let length = reply.body.len().to_string();
    let reply = traefik.request("HEAD", "/forward-auth", &fields, b"");
    assert_eq!(reply.header("content-length"), Some(length));
    assert_eq!(as_traefik(&mut traefik, "/a/b", &client).status, 429, "still in step");
}

#[test]
fn the_client_is_the_right_most_address_that_is_no_trusted_proxy() {
    let proxy = trusting();
    let mut nginx = Connection::open(asked_at(&proxy));
    for (path, named, client) in [
        ("/one", "203.0.113.7", "203.0.113.7"),
        ("/forged", "6.6.6.6, 203.0.113.7", "203.0.113.7"),
        ("/behind", "203.0.113.7, 198.51.100.3", "203.0.113.7"),
        ("/unreadable", "nobody", "127.0.0.1"),
    ] {
        assert_eq!(as_nginx(&mut nginx, path, named).status, 204);
        let line = proxy.log.wait("request", |line| line["path"] == path);
        assert_eq!(line["client"], client, "{path}");
    }
}

/// No cache between may keep a decision. The client of an allowed request gets the answer of the API, about which
/// tidegate says nothing.
#[test]
fn a_decision_is_not_kept_and_says_nothing_about_the_apis_answer() {
    let proxy = deciding("", PER_CLIENT);
    let address = asked_at(&proxy);
    let mut caller = Connection::open(address);
    let none = Some("no-store");
    let of = |reply: &Reply| reply.header("cache-control");
    for status in [204, 204, 403] {
        let reply = as_nginx(&mut caller, "/a/b", "203.0.113.7");
        assert_eq!((reply.status, of(&reply).as_deref()), (status, none));
    }
    for status in [200, 200, 429] {
        let client = [("x-forwarded-for", "203.0.113.8"), ("content-type", "application/grpc")];
        let reply = as_traefik(&mut caller, "/a/b", &client);
        assert_eq!((reply.status, of(&reply).as_deref()), (status, none));
    }
    for kept in [json!(null), json!(null), json!("no-store")] {
        let asked = json!({ "path": "/a/b", "ip": "203.0.113.9" }).to_string();
        let reply = caller.request("POST", "/check", &[], asked.as_bytes());
        assert_eq!(
            (of(&reply).as_deref(), &reply.json()["headers"]["cache-control"]),
            (none, &kept)
        );
    }
    let odd = caller.request("POST", "/settle", &[], b"{}");
    assert_eq!((odd.status, of(&odd).as_deref()), (400, none));
    // The status of a gRPC refusal would be a permission.
    let head = ("x-large", "x".repeat(40_000));
    let call = [("content-type", "application/grpc"), (head.0, head.1.as_str())];
    assert_eq!(Client::open(address).post("/auth-request", &call, b"").status, 431);
}

/// Servers take targets that the proxy's own reader of HTTP does not. A client must not fail by them.
#[test]
fn a_target_with_odd_bytes_is_read_as_by_the_proxy() {
    let proxy = deciding("", PER_CLIENT);
    let mut nginx = Connection::open(asked_at(&proxy));
    for (path, status) in [("/a/<b>", 204), ("/a/`?q={\"a\":<1>}", 204), ("/a/\u{e9}?\"", 403)] {
        assert_eq!(as_nginx(&mut nginx, path, "203.0.113.7").status, status, "{path}");
    }
}

/// A regression: it was cut, and nginx, Caddy and others forward what stands behind it.
#[test]
fn a_target_with_a_number_sign_is_refused_as_an_ambiguous_path_is() {
    let proxy = deciding("", PER_CLIENT);
    let mut caller = Connection::open(asked_at(&proxy));
    for path in ["/a#/../login", "/a/b?a=1#&api_key=KEY", "http://a.test/#a", "#"] {
        let refused = as_nginx(&mut caller, path, "203.0.113.7");
        assert_eq!(refused.status, 403, "{path}");
        assert_eq!(refused.header("x-tidegate-status").as_deref(), Some("400"), "{path}");
        let refused = as_traefik(&mut caller, path, &[("x-forwarded-for", "203.0.113.7")]);
        assert_eq!((refused.status, refused.json()["status"].as_u64()), (400, Some(400)), "{path}");
        let asked = format!("{{\"method\": \"GET\", \"path\": {path:?}, \"ip\": \"203.0.113.7\"}}");
        let checked = caller.request("POST", "/check", &[], asked.as_bytes()).json();
        assert_eq!(checked["allowed"], false, "{path}: {checked}");
    }
}

#[test]
fn a_call_that_asks_nothing_says_what_is_missing() {
    let proxy = deciding("", PER_CLIENT);
    let mut nginx = Connection::open(asked_at(&proxy));
    let (method, uri) = (("x-original-method", "GET"), ("x-original-uri", "/a/b"));
    for (fields, missing) in [
        (&[method][..], "`x-original-uri` is missing"),
        (&[uri], "`x-original-method` is missing"),
        (&[method, uri, uri], "`x-original-uri` comes twice"),
        (&[("x-original-method", "G T"), uri], "`x-original-method` cannot be read"),
        (&[method, ("x-original-uri", "a.test:80")], "`x-original-uri` cannot be read"),
        (&[method, ("x-original-uri", "/a b")], "`x-original-uri` cannot be read"),
    ] {
        let reply = nginx.get("/auth-request", fields);
        assert_eq!(reply.status, 400, "{missing}");
        let detail = reply.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.starts_with(missing), "{detail}");
    }
    let fields = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/")];
    let reply = nginx.get("/forward-auth", &fields);
    assert!(reply.status == 400 && reply.text().contains("`x-forwarded-host` is missing"));
    for path in ["/", "/auth-request/", "/auth-requests", "/a/b"] {
        assert_eq!(nginx.get(path, &[method, uri]).status, 404, "{path}");
    }
    let page = Metrics::of(proxy.admin());
    assert_eq!(page.value("tidegate_decide_requests_total{via=\"none\",status=\"404\"}"), 4.0);
    assert_eq!(page.value("tidegate_decisions_total{limit=\"ip\",decision=\"allowed\"}"), 0.0);
}

#[test]
fn whoever_asks_shows_the_token_and_no_limit_sees_it() {
    let limit = "[limits.token]\nkey = [\"header:x-tidegate-token\"]\nmissing = \"reject\"\nrate = \"9/h\"\n\
                 [[routes]]\npath = \"/counted\"\nlimits = [\"token\"]\n[[routes]]\npath = \"/free\"\n";
    let proxy = deciding("token = \"se+cret\"", limit);
    let address = asked_at(&proxy);
    let ask = |target: &str, path: &str, token: Option<&str>| {
        let mut fields = vec![("x-original-method", "GET"), ("x-original-uri", path)];
        fields.extend(token.map(|token| ("x-tidegate-token", token)));
        get(address, target, &fields)
    };
    for (target, token, status) in [
        ("/auth-request", Some("se+cret"), 204),
        ("/auth-request?token=se+cret", None, 204),
        ("/auth-request?a=b&token=se%2bcret", Some("wrong"), 204),
        ("/auth-request", None, 401),
        ("/auth-request", Some("se+cre"), 401),
        ("/auth-request?token=", None, 401),
        ("/nowhere", None, 401),
        ("/nowhere", Some("se+cret"), 404),
    ] {
        assert_eq!(ask(target, "/free", token).status, status, "{target} {token:?}");
    }
    let refused = ask("/auth-request", "/free?token=se+cret", None);
    assert_eq!(refused.status, 401, "that is the client's");
    assert_eq!(refused.header("www-authenticate").as_deref(), Some("Bearer"));
    let counted = ask("/auth-request", "/counted", Some("se+cret"));
    assert_eq!(counted.header("x-tidegate-status").as_deref(), Some("400"), "the key is missing");
    proxy.reload(&file("token = \"other\"", limit));
    assert_eq!(ask("/auth-request", "/free", Some("se+cret")).status, 401);
    assert_eq!(ask("/auth-request", "/free", Some("other")).status, 204);
}

/// A regression: on loopback, a port whose section had gone took calls without the token until a restart.
#[test]
fn a_reload_without_decide_keeps_the_token_of_the_port() {
    for host in ["0.0.0.0", "127.0.0.1"] {
        let port = Port::hold();
        let open = format!("{host}:{}", port.address.port());
        let config = file_at(&open, "token = \"secret\"", PER_CLIENT);
        let proxy = Tidegate::start(&config);
        let fields = [("x-original-method", "GET"), ("x-original-uri", "/")];
        assert_eq!(get(port.address, "/auth-request", &fields).status, 401);
        let decide = format!("[decide]\nlisten = \"{open}\"\ntoken = \"secret\"\n");
        let without = config.replace(&decide, "").replace("listen = []", "");
        proxy.reload(&without.replace("limits = [\"ip\"]", "limits = [\"ip\"]\nrespond = {}"));
        assert_eq!(get(port.address, "/auth-request", &fields).status, 401, "{host}");
    }
}

/// The address is that of the start, and whoever asks there is answered by the file in force.
#[test]
fn another_address_or_none_needs_a_restart_and_calls_go_on() {
    let (first, other) = (Port::hold(), Port::hold());
    let text = |listen: &str, rate: &str| {
        let decide = format!("[decide]\nlisten = \"{listen}\"\n");
        let decide = if listen.is_empty() { "" } else { &decide };
        let limits = PER_CLIENT.replace("2/h", rate).replace("limits =", "respond = {}\nlimits =");
        format!("[server]\nlisten = \"LISTEN\"\n{decide}{limits}")
    };
    let [first_address, other_address] = [&first, &other].map(|port| port.address.to_string());
    let proxy = Tidegate::start(&text(&first_address, "1/h"));
    let policy = || {
        let reply = as_nginx(&mut Connection::open(first.address), "/a/b", "203.0.113.7");
        reply.header("ratelimit-policy").unwrap()
    };
    assert_eq!(policy(), "\"ip\";q=1;w=3600");
    for (count, listen) in [(2, &*other_address), (3, ""), (4, &first_address)] {
        proxy.reload(&text(listen, &format!("{count}/h")));
        assert_eq!(policy(), format!("\"ip\";q={count};w=3600"));
    }
    let needed = || proxy.log.with("restart needed");
    wait_until("it is told twice", || needed().len() == 2);
    assert!(needed().iter().all(|line| line["fields"] == json!(["decide.listen"])));
    assert!(TcpStream::connect(other.address).is_err());
    let without = Tidegate::start(&text("", "1/h"));
    without.reload(&text(&other_address, "1/h"));
    without.log.wait("restart needed", |line| line["fields"] == json!(["decide.listen"]));
    assert!(TcpStream::connect(other.address).is_err());
}

#[test]
fn what_is_held_answers_when_its_turn_has_come() {
    let limit = "[limits.slow]\nkey = []\nrate = \"10/s\"\nalgorithm = \"leaky-bucket\"\nqueue = 5\n\
                 [[routes]]\npath = \"/\"\nlimits = [\"slow\"]\n";
    let proxy = deciding("", limit);
    let address = asked_at(&proxy);
    let asking: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(move || {
                as_nginx(&mut Connection::open(address), "/", "203.0.113.7").status
            })
        })
        .collect();
    assert!(asking.into_iter().all(|one| one.join().unwrap() == 204));
    let page = Metrics::of(proxy.admin());
    assert!(page.value("tidegate_decisions_total{limit=\"slow\",decision=\"delayed\"}") > 0.0);
}

#[test]
fn the_proxy_and_those_who_ask_share_the_buckets() {
    let api = Upstream::echoing();
    let config = format!(
        "[server]\nlisten = \"LISTEN\"\ntrusted_proxies = [\"127.0.0.1\"]\n[decide]\nlisten = \"LISTEN\"\n\
         [upstreams.api]\nservers = [\"http://{}\"]\n\
         [limits.ip]\nkey = [\"ip\"]\nrate = \"10/h\"\n\
         [limits.slots]\nalgorithm = \"concurrency\"\nkey = []\nlimit = 1\n\
         [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\nlimits = [\"ip\", \"slots\"]\n",
        api.address
    );
    let proxy = Tidegate::start(&config);
    let (mut client, mut nginx) =
        (Connection::open(proxy.address), Connection::open(asked_at(&proxy)));
    let from = [("x-forwarded-for", "203.0.113.7")];
    for _ in 0..5 {
        assert_eq!(client.get("/", &from).status, 200);
        let asked = as_nginx(&mut nginx, "/", "203.0.113.7");
        assert_eq!(asked.status, 204);
        assert!(!asked.header("ratelimit").unwrap().contains("slots"), "nobody would give it back");
    }
    assert_eq!(client.get("/", &from).status, 429);
    assert_eq!(as_nginx(&mut nginx, "/", "203.0.113.7").status, 403);
    assert_eq!(api.requests().len(), 5);
    let warned =
        proxy.log.wait("config warning", |line| line["warning"].to_string().contains("slots"));
    assert!(warned.to_string().contains("leave limits out"), "{warned}");
}

#[test]
fn a_mark_is_in_the_answer_for_whoever_passes_it_on() {
    let limit = "[limits.fair]\nkey = []\nrate = \"1/h\"\nmode = \"mark\"\n\
                 [[routes]]\npath = \"/\"\nlimits = [\"fair\"]\n";
    let proxy = deciding("", limit);
    let mut nginx = Connection::open(asked_at(&proxy));
    let over = [0; 2].map(|_| as_nginx(&mut nginx, "/", "203.0.113.7").header("tidegate-over"));
    assert_eq!(over, [None, Some("fair".to_owned())]);
}

#[test]
fn a_drain_ends_the_connections_of_those_who_ask() {
    let mut proxy = deciding("", PER_CLIENT);
    let mut nginx = Connection::open(asked_at(&proxy));
    assert_eq!(as_nginx(&mut nginx, "/", "203.0.113.7").status, 204);
    proxy.signal("TERM");
    assert!(nginx.is_closed());
    assert_eq!(proxy.wait().code(), Some(0));
}

#[test]
fn a_unix_socket_is_asked_without_a_token() {
    let (path, _proxy, _folder) = on_a_socket();
    let mut nginx = Connection::of(std::os::unix::net::UnixStream::connect(&path).unwrap());
    let fields = [("x-original-method", "GET"), ("x-original-uri", "/a/b")];
    let statuses = [0; 3].map(|_| nginx.get("/auth-request", &fields).status);
    assert_eq!(statuses, [204, 204, 403]);
}

/// `/login/../healthz` behind nginx ran `/login`, and counted as `/healthz`.
#[test]
fn a_path_that_the_api_may_resolve_otherwise_is_refused() {
    let limits = "[limits.ip]\nkey = [\"ip\"]\nrate = \"1/h\"\nexempt = { path = [\"/healthz\"] }\n\
                  [[routes]]\npath = \"/{*rest}\"\nlimits = [\"ip\"]\n";
    let proxy = deciding("", limits);
    let address = asked_at(&proxy);
    let mut asking = Connection::open(address);
    let other_paths = [
        "/login/../healthz",
        "/login/%2e%2E/healthz",
        "/login/.%2e/healthz?a=1",
        "/./healthz",
        "/healthz/.",
        "/login/..;x/healthz",
        "/login/..%3bx/healthz",
        "//healthz/../healthz",
        "//healthz/login",
        "///healthz/",
        "/login%2f../healthz",
        "/login\\..\\healthz",
        "http://api.test/login/../healthz",
    ];
    for path in other_paths {
        let reply = as_nginx(&mut asking, path, "203.0.113.7");
        let status = reply.header("x-tidegate-status");
        assert_eq!((reply.status, status.as_deref()), (403, Some("400")), "{path}");
        let client = [("x-forwarded-for", "203.0.113.7")];
        assert_eq!(as_traefik(&mut asking, path, &client).status, 400, "{path}");
        let said = super::check::check(address, &json!({ "path": path, "ip": "203.0.113.7" }));
        assert_eq!((&said["allowed"], &said["status"]), (&json!(false), &json!(400)), "{path}");
    }
    for (path, status) in [
        ("/healthz", 204),
        ("//healthz", 204),
        ("/login;x", 204),
        ("/login;x", 403),
        ("/login;/healthz", 403),
        ("//login", 403),
        ("/a//b", 403),
        ("/...", 403),
        ("/.well-known/..a", 403),
    ] {
        assert_eq!(as_nginx(&mut asking, path, "203.0.113.7").status, status, "{path}");
    }
    let reply = asking.get(
        "/auth-request",
        &[("x-original-method", "GET"), ("x-original-uri", "/healthz#/../login")],
    );
    let told = reply.header("x-tidegate-status");
    assert_eq!((reply.status, told.as_deref()), (403, Some("400")));
}

/// With `client_ip_header = "cf-connecting-ip"` a client wrote its address itself: nginx passes this field on.
#[test]
fn nginx_and_traefik_name_the_client_in_one_field_whatever_the_servers_is() {
    for header in ["cf-connecting-ip", "forwarded"] {
        let server = format!(
            "listen = []\nclient_ip_header = \"{header}\"\ntrusted_proxies = [\"198.51.100.0/24\"]"
        );
        let proxy = Tidegate::start(&file("", PER_CLIENT).replace("listen = []", &server));
        let mut asking = Connection::open(asked_at(&proxy));
        for (number, status) in [(1, 204), (2, 204), (3, 403)] {
            let forged = format!("192.0.2.{number}");
            let forged = if header == "forwarded" { format!("for={forged}") } else { forged };
            let fields = [
                ("x-original-method", "GET"),
                ("x-original-uri", "/a/b"),
                ("x-forwarded-for", "203.0.113.7, 198.51.100.3"),
                (header, &*forged),
            ];
            assert_eq!(asking.get("/auth-request", &fields).status, status, "{header}");
        }
        let client = [("x-forwarded-for", "203.0.113.7"), (header, "192.0.2.9")];
        assert_eq!(as_traefik(&mut asking, "/a/b", &client).status, 429, "{header}");
    }
}

/// Whoever forwards the request gives this answer to the client, and a browser may be the client.
#[test]
fn a_page_of_another_origin_can_read_the_answer_to_its_request() {
    let proxy = deciding(
        "",
        "[cors]\norigins = [\"https://*.page.test\"]\n[limits.all]\nkey = []\nrate = \"0/s\"\n\
         [[routes]]\npath = \"/a\"\nlimits = [\"all\"]\n[[routes]]\npath = \"/free\"\n",
    );
    let address = asked_at(&proxy);
    let mut caller = Connection::open(address);
    let traefik = |caller: &mut Connection, path: &str, origin| {
        as_traefik(caller, path, &[("origin", origin)])
    };
    let nginx = |path: &str, origin| {
        let fields = [("x-original-method", "GET"), ("x-original-uri", path), ("origin", origin)];
        Connection::open(address).get("/auth-request", &fields)
    };
    let (page, stranger) = ("https://a.page.test", "https://stranger.test");
    for (path, is_refused) in [("/a", true), ("/a%2fb", true), ("/free", false)] {
        for (origin, told) in [(page, Some(page)), (stranger, None)] {
            for reply in [traefik(&mut caller, path, origin), nginx(path, origin)] {
                assert_eq!(reply.status >= 400, is_refused, "{path} {reply:?}");
                let allowed = reply.header("access-control-allow-origin");
                assert_eq!(allowed.as_deref(), told.filter(|_| is_refused), "{path} {reply:?}");
                let vary = is_refused.then_some("origin");
                assert_eq!(reply.header("vary").as_deref(), vary, "{path} {reply:?}");
                let exposed = reply.header("access-control-expose-headers");
                let names =
                    (told.is_some() && path == "/a").then_some("ratelimit-policy, ratelimit");
                assert_eq!(exposed.as_deref(), names, "{path} {reply:?}");
            }
        }
    }
    let asked = json!({ "path": "/a", "headers": { "origin": page } }).to_string();
    let checked = caller.request("POST", "/check", &[], asked.as_bytes()).json();
    assert_eq!(checked["headers"]["access-control-allow-origin"], page, "{checked}");
    let answer =
        super::envoy::answer_to(&mut Client::open(address), &[("path", "/a"), ("origin", page)]);
    let told =
        |name: &str| answer.iter().find(|(field, _)| field == name).map(|(_, it)| it.as_str());
    assert_eq!(told("access-control-allow-origin"), Some(page), "{answer:?}");
    assert_eq!(told("access-control-expose-headers"), Some("ratelimit-policy, ratelimit"));
    assert_eq!(told("vary"), Some("origin"));
}
