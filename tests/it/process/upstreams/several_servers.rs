//! Several servers: how requests are spread, who is set aside, and who waits.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use super::with_servers;
use crate::support::client::{Connection, get};
use crate::support::metrics::Metrics;
use crate::support::port::Port;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

/// An answer without a body.
pub(super) fn bare(status: &str, fields: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n{fields}\r\n").into_bytes()
}

#[test]
fn servers_get_requests_by_their_weights() {
    let servers = [0, 1].map(|_| Upstream::echoing());
    let [one, other] = servers.each_ref().map(Upstream::url);
    let proxy = Tidegate::start(&format!(
        "[server]\nlisten = \"LISTEN\"\nworkers = 1\n[upstreams.api]\nbalance = \"round-robin\"\n\
         servers = [{{ url = \"{one}\", weight = 3 }}, \"{other}\"]\n\
         [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\n",
    ));
    let mut client = Connection::open(proxy.address);
    for _ in 0..40 {
        assert_eq!(client.get("/", &[]).status, 200);
    }
    assert_eq!(servers.map(|server| server.requests().len()), [30, 10]);
}

/// The places of the servers that answered requests with these values of `x-user`.
fn homes(proxy: &Tidegate, users: std::ops::Range<u32>) -> Vec<String> {
    let mut client = Connection::open(proxy.address);
    let mut home = |user: u32| {
        let reply = client.get("/", &[("x-user", &user.to_string())]);
        assert_eq!(reply.status, 200);
        reply.text()
    };
    users.map(&mut home).collect()
}

#[test]
fn requests_with_the_same_hash_key_go_to_the_same_server() {
    let servers = ["a", "b", "c"].map(|name| Upstream::answering(move |_| ok(name)));
    let urls: Vec<_> = servers.iter().map(Upstream::url).collect();
    let hashed = "balance = \"hash\"\nhash_key = [\"header:x-user\"]";
    let proxy = with_servers(&urls, hashed);
    let first = homes(&proxy, 0..60);
    assert_eq!(first, homes(&proxy, 0..60));
    for name in ["a", "b", "c"] {
        assert!(first.iter().any(|home| home == name), "{name} got none of {first:?}");
    }
    // The same on another proxy, and with one server more that takes its share and moves nobody else.
    let more = Upstream::answering(|_| ok("d"));
    let with_more = with_servers(&[urls, vec![more.url()]].concat(), hashed);
    let second = homes(&with_more, 0..60);
    assert!(first.iter().zip(&second).all(|(old, new)| old == new || new == "d"), "{second:?}");
    assert!(second.iter().any(|home| home == "d"));
    // A request without the key is nobody's in particular.
    assert_eq!(get(proxy.address, "/", &[]).status, 200);
}

#[test]
fn a_server_that_fails_its_health_checks_gets_no_requests_until_it_passes_them() {
    let is_well = Arc::new(AtomicBool::new(true));
    let answers = is_well.clone();
    let servers = [
        Upstream::answering(move |got| match (got.path(), answers.load(Ordering::SeqCst)) {
            ("/healthz?deep=1", false) => bare("503 Service Unavailable", ""),
            _ => ok("checked"),
        }),
        Upstream::answering(|_| ok("other")),
    ];
    let urls: Vec<_> = servers.iter().map(Upstream::url).collect();
    let proxy = Proxy::of_one_worker(&urls[0]).and(&urls[1]).admin().upstream(
        "balance = \"round-robin\"\nhealth = { path = \"/healthz?deep=1\", interval = \"10ms\" }",
    );
    let proxy = proxy.start();
    let checks = |server: &Upstream| {
        server.requests().iter().filter(|got| got.path() == "/healthz?deep=1").count()
    };
    wait_until("both are checked", || servers.iter().all(|server| checks(server) > 0));
    is_well.store(false, Ordering::SeqCst);
    let line = proxy.log.wait("server down", |line| line["server"] == urls[0].as_str());
    let error = line["error"].as_str().unwrap();
    assert_eq!(error, "health check: it answered 503 Service Unavailable");
    let up = |place: usize| {
        let sample = format!("tidegate_upstream_up{{upstream=\"api\",server=\"{}\"}}", urls[place]);
        Metrics::of(proxy.admin()).value(&sample)
    };
    assert_eq!((up(0), up(1)), (0.0, 1.0));
    let mut client = Connection::open(proxy.address);
    assert!((0..10).all(|_| client.get("/", &[]).text() == "other"));
    is_well.store(true, Ordering::SeqCst);
    proxy.log.wait("server up", |line| line["server"] == urls[0].as_str());
    wait_until("it gets requests again", || client.get("/", &[]).text() == "checked");
    assert_eq!(proxy.log.count("upstream down"), 0);
}

#[test]
fn a_reload_ends_health_checks() {
    let api = Upstream::answering(|_| bare("500 Internal Server Error", ""));
    let proxy = Proxy::of_one_worker(&api);
    let health = "health = { path = \"/healthz\", interval = \"10ms\", unhealthy_after = 1 }";
    let running = proxy.clone().upstream(health).start();
    running.log.wait("server down", |_| true);
    running.reload(&proxy.text());
    running.log.wait("server up", |_| true);
}

/// An API that answers each request when it is told to.
fn held() -> (Upstream, Receiver<()>, Sender<()>) {
    let (came, comes) = channel();
    let (go, going) = channel();
    let going = Mutex::new(going);
    let api = Upstream::answering(move |_| {
        came.send(()).unwrap();
        going.lock().unwrap().recv().unwrap();
        ok("served")
    });
    (api, comes, go)
}

#[test]
fn no_more_than_max_requests_are_in_flight_and_the_next_waits_for_its_turn() {
    let (api, comes, go) = held();
    let proxy = Proxy::to(&api).upstream("max_requests = 1\nqueue_timeout = \"1h\"").start();
    let mut clients = [0, 1, 2].map(|_| Connection::open(proxy.address));
    clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n"));
    for served in 1..=3 {
        comes.recv().unwrap();
        assert!(comes.try_recv().is_err(), "two at once");
        go.send(()).unwrap();
        assert_eq!(api.requests().len(), served);
    }
    assert!(clients.iter_mut().all(|client| client.reply("GET").text() == "served"));
}

#[test]
fn a_request_without_its_turn_in_time_is_a_503_that_is_told() {
    let (api, comes, go) = held();
    let proxy = Proxy::to(&api).admin().upstream("max_requests = 1\nqueue_timeout = \"20ms\"");
    let proxy = proxy.start();
    let mut first = Connection::open(proxy.address);
    first.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    comes.recv().unwrap();
    let mut second = Connection::open(proxy.address);
    let reply = second.request("POST", "/", &[], b"hi");
    assert_eq!((reply.status, &reply.json()["status"]), (503, &503.into()));
    let kind = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
    assert_eq!(reply.json()["type"], kind);
    assert_eq!(reply.header("retry-after").as_deref(), Some("30"), "nothing was answered yet");
    assert_eq!(reply.header("tidegate-overload").as_deref(), Some("1"));
    let line = proxy.log.wait("overload", |_| true);
    assert_eq!((&line["upstream"], &line["limit"]), (&"api".into(), &1.into()), "{line}");
    assert_eq!((&line["refused"], &line["refused_normal"]), (&1.into(), &1.into()), "{line}");
    let labels = "upstream=\"api\",priority=\"normal\",reason=\"waited\"";
    let sample = format!("tidegate_upstream_refused_total{{{labels}}}");
    assert_eq!(Metrics::of(proxy.admin()).value(&sample), 1.0);
    let status = get(proxy.admin(), "/api/status", &[("host", "localhost")]).json();
    let alarms = status["alarms"].as_array().unwrap().iter();
    let alarms: Vec<_> = alarms.filter_map(|alarm| alarm["what"].as_str()).collect();
    assert!(alarms.iter().any(|what| what.starts_with("API overloaded")), "{alarms:?}");
    assert!(!alarms.iter().any(|what| what.starts_with("Answers fail")), "{alarms:?}");
    go.send(()).unwrap();
    assert_eq!(first.reply("GET").text(), "served");
    go.send(()).unwrap();
    wait_until("the place is free, and the connection was kept", || {
        second.get("/", &[]).status == 200
    });
}

#[test]
fn a_client_that_leaves_gives_up_its_place_in_flight_and_in_the_queue() {
    let (api, comes, go) = held();
    let proxy = Proxy::to(&api).upstream("max_requests = 1\nqueue_timeout = \"1h\"").start();
    let [mut one, mut two, mut three] = [0, 1, 2].map(|_| Connection::open(proxy.address));
    one.send("GET /1 HTTP/1.1\r\nhost: a\r\n\r\n");
    comes.recv().unwrap();
    two.send("GET /2 HTTP/1.1\r\nhost: a\r\n\r\n");
    three.send("GET /3 HTTP/1.1\r\nhost: a\r\n\r\n");
    drop(two);
    drop(one);
    comes.recv().unwrap();
    (0..2).for_each(|_| go.send(()).unwrap());
    assert_eq!(three.reply("GET").text(), "served");
}

#[test]
fn a_server_that_asks_for_a_pause_gets_it() {
    let busy = Upstream::answering(|_| bare("503 Service Unavailable", "retry-after: 3600\r\n"));
    let free = Upstream::answering(|_| ok("free"));
    let respect = "balance = \"round-robin\"\nrespect_retry_after = true";
    let proxy = with_servers(&[busy.url(), free.url()], respect);
    let mut client = Connection::open(proxy.address);
    let first = client.get("/", &[]);
    assert_eq!((first.status, first.header("retry-after").as_deref()), (503, Some("3600")));
    assert!((0..20).all(|_| client.get("/", &[]).text() == "free"));
    assert_eq!(busy.requests().len(), 1);
    let line = proxy.log.wait("server down", |_| true);
    assert_eq!(line["error"], "it asked for a pause of 60 s (retry-after)");
}

#[test]
fn where_all_servers_have_asked_for_a_pause_clients_are_told_how_long() {
    let busy = || Upstream::answering(|_| bare("429 Too Many Requests", "retry-after: 3600\r\n"));
    let servers = [busy(), busy()];
    let urls: Vec<_> = servers.iter().map(Upstream::url).collect();
    let proxy = with_servers(&urls, "balance = \"round-robin\"\nrespect_retry_after = true");
    let mut client = Connection::open(proxy.address);
    assert!((0..2).all(|_| client.get("/", &[]).status == 429));
    let reply = client.get("/", &[]);
    let after: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert_eq!(reply.status, 503);
    assert!((1..=60).contains(&after), "{after}");
    assert!(reply.json()["detail"].as_str().unwrap().contains("asked for a pause"));
    assert!(servers.iter().all(|server| server.requests().len() == 1));
}

#[test]
fn a_pause_that_nobody_respects_is_no_pause() {
    let busy = Upstream::answering(|_| bare("503 Service Unavailable", "retry-after: 3600\r\n"));
    let proxy = Proxy::of_one_worker(&busy).start();
    let mut client = Connection::open(proxy.address);
    assert!((0..5).all(|_| client.get("/", &[]).header("retry-after").unwrap() == "3600"));
    assert_eq!(busy.requests().len(), 5);
}

#[test]
fn retries_are_no_more_than_a_tenth_of_the_requests() {
    let broken = [0, 1].map(|_| Upstream::answering(|_| Vec::new()));
    let urls: Vec<_> = broken.iter().map(Upstream::url).collect();
    let proxy = with_servers(&urls, "retries = 5");
    let mut client = Connection::open(proxy.address);
    const REQUESTS: usize = 300;
    assert!((0..REQUESTS).all(|_| client.get("/", &[]).status == 502));
    let sent: usize = broken.iter().map(|server| server.requests().len()).sum();
    assert_eq!(sent, REQUESTS + REQUESTS / 10 + 10, "ten retries are free at the start");
}

#[test]
fn each_retry_goes_to_a_server_that_has_not_failed_yet() {
    for balance in ["\"round-robin\"", "\"least-requests\"", "\"hash\"\nhash_key = [\"path\"]"] {
        let broken = [0, 1].map(|_| Upstream::answering(|_| Vec::new()));
        let well = Upstream::echoing();
        let mut urls: Vec<_> = broken.iter().map(Upstream::url).collect();
        urls.push(well.url());
        for path in ["/a", "/b", "/c", "/d", "/e", "/f"] {
            // In a proxy of its own, where no server is set aside yet.
            let proxy = with_servers(&urls, &format!("balance = {balance}\nretries = 2"));
            let reply = Connection::open(proxy.address).get(path, &[]);
            assert_eq!(reply.status, 200, "{balance} {path}");
        }
    }
}

#[test]
fn clients_do_not_wait_for_the_try_of_a_server_that_was_set_aside() {
    let port = Port::hold();
    let well = Upstream::echoing();
    let urls = [format!("https://{}", port.address), well.url()];
    let proxy = with_servers(&urls, "balance = \"round-robin\"\nconnect_timeout = \"1h\"");
    let mut client = Connection::open(proxy.address);
    let mut ask = || assert_eq!(client.get("/", &[]).status, 200);
    (0..2).for_each(|_| ask());
    proxy.log.wait("server down", |_| true);
    // From now on it takes connections, but says nothing in the handshake.
    let (tell, tried) = channel();
    let listener = TcpListener::bind(port.address).unwrap();
    let _silent = Upstream::on(listener, move |stream| {
        tell.send(stream).unwrap();
    });
    let mut silent = None;
    wait_until("the server is tried", || {
        ask();
        silent = tried.try_recv().ok();
        silent.is_some()
    });
    (0..20).for_each(|_| ask());
    assert_eq!(proxy.log.count("server up"), 0);
}

#[test]
fn a_request_that_cannot_be_sent_again_costs_no_retry() {
    let is_first = AtomicBool::new(true);
    let api = Upstream::answering(move |got| match got.line.starts_with("POST") {
        true => Vec::new(),
        false if is_first.swap(false, Ordering::SeqCst) => Vec::new(),
        false => ok("again"),
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    assert!((0..200).all(|_| client.request("POST", "/", &[], b"hi").status == 502));
    assert_eq!(client.get("/", &[]).text(), "again");
}
