//! The admin endpoint.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use crate::support::client::{Connection, get};
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::tidegate::program;
use crate::support::upstream::Upstream;
use crate::support::{PATIENCE, now, wait_until};

fn proxy(api: &Upstream) -> Proxy {
    Proxy::to(api)
        .limit("client", "key = [\"ip\"]\nrate = \"2/h\"")
        .route("name = \"main\"\npath = \"/a/{*rest}\"\nlimits = [\"client\"]")
        .route("path = \"/only-get\"\nmethods = [\"GET\"]\nrespond = { status = 204 }")
}

fn guarded(api: &Upstream, token: &str) -> Proxy {
    proxy(api).admin().section(&format!("token = \"{token}\""))
}

fn ask(admin: SocketAddr, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
    let mut all = vec![("host", "localhost")];
    if headers.iter().any(|(name, _)| *name == "host") {
        all.clear();
    }
    all.extend(headers);
    let reply = get(admin, path, &all);
    (reply.status, reply.text())
}

#[test]
fn it_is_ready_until_it_drains_and_lives_on() {
    let api = Upstream::echoing();
    let mut proxy = proxy(&api).server("shutdown_delay = \"1m\"").admin().start();
    let admin = proxy.admin();
    assert_eq!(ask(admin, "/healthz", &[]), (200, "ok\n".into()));
    assert_eq!(ask(admin, "/readyz", &[]), (200, "ready\n".into()));
    assert_eq!(ask(admin, "/nothing", &[]).0, 404);
    proxy.signal("TERM");
    wait_until("it is not ready any more", || ask(admin, "/readyz", &[]).0 == 503);
    assert_eq!(ask(admin, "/healthz", &[]).0, 200, "it lives");
    assert_eq!(get(proxy.address, "/a/b", &[]).status, 200, "and still takes connections");
    proxy.log.wait("draining", |_| true);
    proxy.signal("TERM");
    assert_eq!(proxy.wait().code(), Some(0), "the second signal ends it at once");
    assert_eq!(proxy.log.count("draining"), 1);
}

/// A regression: a hundred connections without a token kept probes of `/healthz` waiting for ten seconds, which may
/// be too long for the probe.
#[test]
fn strangers_keep_no_probe_out() {
    let api = Upstream::echoing();
    for proxy in [proxy(&api).admin(), guarded(&api, "secret")] {
        let has_token = proxy.text().contains("token");
        let proxy = proxy.start();
        let (admin, host) = (proxy.admin(), [("host", "localhost")]);
        let (right, wrong) = ("Bearer secret", "Bearer guessed");
        let mut operator = Connection::open(admin);
        let shown = [host[0], ("authorization", right)];
        let mut operator_asks = || operator.get("/metrics", &shown).status;
        let strangers: Vec<_> = (0..300)
            .map(|number| {
                // After ten seconds it would be closed because it is idle.
                if number % 10 == 0 {
                    assert_eq!(operator_asks(), 200, "who has shown a token stays");
                }
                let mut client = Connection::open(admin);
                match (number % 3, has_token) {
                    (0, _) => assert_eq!(client.get("/healthz", &host).status, 200),
                    (1, true) => {
                        let guessed = [host[0], ("authorization", wrong)];
                        assert_eq!(client.get("/metrics", &guessed).status, 401);
                    }
                    _ => client.send("GET /metrics HTTP/1.1\r\n"),
                }
                client
            })
            .collect();
        assert_eq!(get(admin, "/healthz", &host).status, 200);
        assert_eq!(operator_asks(), 200, "who has shown a token stays");
        drop(strangers);
    }
}

/// A regression: connections of a flood were accepted in one go, and closed each other and everybody else's before a
/// request was read.
#[test]
fn a_flood_of_connections_closes_no_strangers_before_their_requests() {
    let api = Upstream::echoing();
    let proxy = guarded(&api, "secret").start();
    let admin = proxy.admin();
    // All of them wait to be accepted when the process goes on.
    proxy.pause();
    let ask = |number: usize| {
        let mut client = Connection::open(admin);
        if number.is_multiple_of(10) {
            client.send("GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n");
        }
        client
    };
    let mut all: Vec<_> = (0..120).map(ask).collect();
    proxy.signal("CONT");
    for probe in all.iter_mut().step_by(10) {
        assert_eq!(probe.reply("GET").text(), "ok\n");
    }
}

/// More than the endpoint serves at once wait, and are answered as soon as another one has left.
#[test]
fn connections_beyond_the_bound_wait() {
    let api = Upstream::echoing();
    let proxy = proxy(&api).admin().start();
    let (admin, host) = (proxy.admin(), [("host", "localhost")]);
    let began = now();
    let mut open: Vec<_> = (0..100)
        .map(|_| {
            let mut client = Connection::open(admin);
            assert_eq!(client.get("/api/config", &host).status, 200);
            client
        })
        .collect();
    let mut late = Connection::open(admin);
    late.send("GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n");
    late.stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let waited = late.stream.peek(&mut [0]).map_err(|error| error.kind());
    // After ten seconds the first ones are closed because they are idle.
    if began.elapsed() < Duration::from_secs(9) {
        assert_eq!(waited, Err(ErrorKind::WouldBlock));
    }
    late.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    open.pop();
    assert_eq!(late.reply("GET").text(), "ok\n");
}

#[test]
fn only_get_and_head() {
    let api = Upstream::echoing();
    let proxy = proxy(&api).admin().start();
    let host = [("host", "localhost")];
    let mut client = Connection::open(proxy.admin());
    let reply = client.request("HEAD", "/healthz", &host, b"");
    assert_eq!((reply.status, reply.body.len()), (200, 0));
    let reply = client.request("POST", "/metrics", &host, b"x");
    assert_eq!((reply.status, reply.header("allow").unwrap().as_str()), (405, "GET, HEAD"));
}

#[test]
fn metrics_have_the_names_of_the_interface() {
    let api = Upstream::echoing();
    let proxy = proxy(&api).admin().start();
    for (path, status) in
        [("/a/1", 200), ("/a/2", 200), ("/a/3", 429), ("/b", 404), ("/only-get", 204)]
    {
        assert_eq!(get(proxy.address, path, &[]).status, status);
    }
    let post = Connection::open(proxy.address).request("POST", "/only-get", &[], b"");
    assert_eq!(post.status, 405);
    let reply = get(proxy.admin(), "/metrics", &[("host", "127.0.0.1")]);
    assert_eq!(reply.header("content-type").unwrap(), "text/plain; version=0.0.4; charset=utf-8");
    let page = Metrics(reply.text());
    let server = format!("tidegate_upstream_up{{upstream=\"api\",server=\"{}\"}}", api.url());
    for (name, value) in [
        ("tidegate_requests_total{route=\"main\",status=\"200\"}", 2.0),
        ("tidegate_requests_total{route=\"main\",status=\"429\"}", 1.0),
        ("tidegate_requests_total{route=\"none\",status=\"404\"}", 1.0),
        ("tidegate_requests_total{route=\"none\",status=\"405\"}", 1.0),
        ("tidegate_requests_total{route=\"/only-get\",status=\"204\"}", 1.0),
        ("tidegate_decisions_total{limit=\"client\",decision=\"allowed\"}", 2.0),
        ("tidegate_decisions_total{limit=\"client\",decision=\"rejected\"}", 1.0),
        ("tidegate_request_duration_seconds_count{route=\"main\"}", 3.0),
        ("tidegate_request_duration_seconds_count{route=\"none\"}", 2.0),
        ("tidegate_upstream_duration_seconds_count{upstream=\"api\"}", 2.0),
        ("tidegate_limit_burst{limit=\"client\"}", 2.0),
        ("tidegate_store_duration_seconds_count", 3.0),
        ("tidegate_store_up", 1.0),
        (server.as_str(), 1.0),
        ("tidegate_memory_keys", 1.0),
        ("tidegate_config_last_reload_successful", 1.0),
    ] {
        assert_eq!(page.value(name), value, "{name} in\n{}", page.0);
    }
    assert!(page.value("tidegate_config_last_reload_success_timestamp_seconds") > 1.7e9);
    assert!(page.value("tidegate_received_bytes_total") > 100.0);
    assert!(page.value("tidegate_sent_bytes_total") > 100.0);
    assert!(page.value("process_resident_memory_bytes") > 1e6);
    // As Prometheus reads it: each family has its type before its samples.
    let mut known = "";
    for line in page.0.lines().filter(|line| !line.starts_with("# HELP ")) {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            known = family.split(' ').next().unwrap();
            continue;
        }
        let name = line.split(['{', ' ']).next().unwrap();
        let plain = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        assert!(name == known || plain == Some(known), "{line} under {known}");
        assert!(line.rsplit_once(' ').unwrap().1.parse::<f64>().is_ok(), "{line}");
    }
}

/// A request's own buckets never make room for each other, so the second limit finds none.
#[test]
fn decisions_for_which_there_was_no_room_are_counted() {
    let proxy = Proxy::answering()
        .admin()
        .store("max_keys = 1")
        .limit("a", "rate = \"5/h\"")
        .limit("b", "rate = \"5/h\"")
        .start();
    for _ in 0..3 {
        assert_eq!(get(proxy.address, "/", &[]).status, 200);
    }
    let page = Metrics(get(proxy.admin(), "/metrics", &[("host", "127.0.0.1")]).text());
    assert_eq!(page.value("tidegate_shared_decisions_total"), 3.0);
}

/// Where more clients come than there is room for, some get more than their limit: that was told nowhere.
#[test]
fn buckets_that_are_forgotten_in_use_are_told_and_counted() {
    let limit = "key = [\"path\"]\nrate = \"1/h\"";
    let proxy = Proxy::answering().admin().store("max_keys = 1").limit("a", limit).start();
    for path in ["/a", "/b", "/a"] {
        assert_eq!(get(proxy.address, path, &[]).status, 200);
    }
    assert_eq!(Metrics::of(proxy.admin()).value("tidegate_forgotten_total"), 2.0);
    let line = proxy.log.wait("memory store full, buckets in use are forgotten", |_| true);
    assert!(line["help"].as_str().unwrap().contains("max_keys"), "{line}");
}

#[test]
fn an_upstream_that_refuses_is_down() {
    let proxy = Proxy::to("http://127.0.0.1:1").admin().start();
    assert_eq!(get(proxy.address, "/a/1", &[]).status, 502);
    let page = Metrics::of(proxy.admin());
    let server = "tidegate_upstream_up{upstream=\"api\",server=\"http://127.0.0.1:1\"}";
    assert!(page.0.contains(&format!("{server} 0")), "{}", page.0);
}

#[test]
fn labels_do_not_grow_with_what_clients_send() {
    let api = Upstream::echoing();
    let proxy = proxy(&api).server("trusted_proxies = [\"127.0.0.1\"]").admin().start();
    let mut client = Connection::open(proxy.address);
    let mut send = |n: u32| {
        let host = format!("host-{n}.test");
        let from = format!("10.1.{}.{}", n / 250, n % 250);
        let headers = [("host", host.as_str()), ("x-forwarded-for", &from)];
        let method = format!("M{n}");
        client.request(&method, &format!("/a/{n}?{n}"), &headers, b"");
        client.request(&method, &format!("/{n}"), &headers, b"");
        client.request(&method, "/only-get", &headers, b"");
        client.request("GET", &format!("/%zz{n}"), &headers, b"");
    };
    send(0);
    let before = Metrics::of(proxy.admin());
    (1..1_000).for_each(send);
    let after = Metrics::of(proxy.admin());
    assert_eq!(after.value("tidegate_requests_total{route=\"main\",status=\"200\"}"), 1000.0);
    assert_eq!(before.0.lines().count(), after.0.lines().count(), "{}", after.0);
    assert_eq!(after.samples("tidegate_requests_total"), 4);
}

#[test]
fn a_token_guards_all_but_the_health_checks() {
    let api = Upstream::echoing();
    let proxy = guarded(&api, "s3cret").start();
    let admin = proxy.admin();
    let bearer = |token: &str| {
        let value = format!("Bearer {token}");
        ask(admin, "/metrics", &[("authorization", &value)]).0
    };
    for path in ["/healthz", "/readyz"] {
        assert_eq!(ask(admin, path, &[]).0, 200);
        assert_eq!(ask(admin, path, &[("host", "admin.example")]).0, 200);
    }
    let refused = get(admin, "/metrics", &[]);
    assert_eq!(refused.status, 401);
    assert_eq!(refused.header("www-authenticate").unwrap(), "Bearer");
    assert_eq!(
        (bearer("wrong"), bearer("s3cre"), bearer(""), bearer("s3cret")),
        (401, 401, 401, 200)
    );
    assert_eq!(ask(admin, "/nothing", &[]).0, 401, "what is there is nobody's business");
    // With a token any name will do: nobody's browser knows it.
    let named = [("authorization", "bearer s3cret"), ("host", "admin.example")];
    assert_eq!(ask(admin, "/metrics", &named).0, 200);
    proxy.reload(&guarded(&api, "0ther").text());
    assert_eq!((bearer("s3cret"), bearer("0ther")), (401, 200), "a leaked one can be changed");
    assert!(!proxy.log.text().contains("0ther"));
}

#[test]
fn without_a_token_it_is_asked_by_address_or_as_localhost() {
    let api = Upstream::echoing();
    let proxy = proxy(&api).admin().start();
    let admin = proxy.admin();
    let port = admin.port();
    for host in ["localhost", "LOCALHOST:1", "127.0.0.1", &format!("127.0.0.1:{port}"), "[::1]"] {
        assert_eq!(ask(admin, "/metrics", &[("host", host)]).0, 200, "{host}");
    }
    for host in ["evil.example", &format!("evil.example:{port}"), "127.0.0.1.evil.example", ""] {
        for path in ["/metrics", "/healthz"] {
            assert_eq!(ask(admin, path, &[("host", host)]).0, 403, "{host}");
        }
    }
    let absolute = "GET http://evil.example/metrics HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut client = Connection::open(admin);
    client.send(absolute);
    assert_eq!(client.reply("GET").status, 403);
}

#[test]
fn the_health_command_asks_it() {
    let api = Upstream::echoing();
    let mut proxy = guarded(&api, "s3cret").start();
    let admin = proxy.admin();
    let health = |arguments: &[&str]| {
        let told = program().arg("health").args(arguments).current_dir("/").output().unwrap();
        assert!(told.stdout.is_empty());
        (told.status.code().unwrap(), String::from_utf8(told.stderr).unwrap())
    };
    for url in [format!("http://{admin}"), format!("http://{admin}/"), admin.to_string()] {
        assert_eq!(health(&[&url]), (0, String::new()), "{url}");
    }
    let written = proxy.folder().join("written.toml");
    let text = guarded(&api, "s3cret").text_with_admin(admin);
    std::fs::write(&written, text).unwrap();
    assert_eq!(health(&["--config", written.to_str().unwrap()]).0, 0, "where the file has it");
    let (code, error) = health(&[&format!("http://{}", api.address)]);
    assert_eq!((code, error.as_str()), (0, ""), "anything that answers 200 there");
    let (code, error) = health(&[&format!("http://{}", proxy.address)]);
    assert_eq!(code, 1);
    assert!(error.contains("404"), "{error}");
    assert!(proxy.stop().success());
    let (code, error) = health(&[&format!("http://{admin}")]);
    assert_eq!(code, 1);
    assert!(error.contains(&admin.to_string()) && error.lines().count() == 1, "{error}");
    for wrong in ["https://127.0.0.1:1", "http://"] {
        assert_eq!(health(&[wrong]).0, 2, "{wrong}");
    }
    assert_eq!(health(&[]).0, 2, "there is no file here");
}
