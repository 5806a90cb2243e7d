//! `on_abort = "finish"`: a request whose client has left goes on to its end.

use std::io::{BufReader, Write as _};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use crate::support::PATIENCE;
use crate::support::client::{Connection, get};
use crate::support::collector::{Collector, said};
use crate::support::http2::Client;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::{Upstream, ok, read_head};
use crate::support::wait_until;

const REST: usize = 2 << 20;

/// An API that goes on working when its caller hangs up.
struct Stubborn {
    api: Upstream,
    /// Hears of each request that waits, and whether its whole answer was taken.
    told: Receiver<bool>,
    /// Lets one of them go on.
    go: Sender<()>,
}

impl Stubborn {
    fn start() -> Self {
        let ((tell, told), (go, gone)) = (channel(), channel::<()>());
        let gone = Arc::new(Mutex::new(gone));
        let api = Upstream::raw(move |mut stream| {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            while let Some(got) = read_head(&mut reader) {
                let body = format!("{}{{\"used\": 7}}", " ".repeat(REST));
                let breaks_off = got.path() == "/broken";
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                    body.len() + usize::from(breaks_off)
                );
                if got.path() == "/" {
                    let _ = stream.write_all(&ok("at once"));
                    continue;
                }
                if got.path() == "/half" {
                    let _ = stream.write_all(format!("{head}{}", &body[..1]).as_bytes());
                }
                let _ = tell.send(false);
                let _ = gone.lock().unwrap().recv();
                let rest = if got.path() == "/half" { body[1..].to_owned() } else { head + &body };
                let _ = tell.send(stream.write_all(rest.as_bytes()).is_ok());
                if breaks_off {
                    return;
                }
            }
        });
        Self { api, told, go }
    }

    fn proxy(&self, limit: &str, upstream: &str) -> Tidegate {
        Proxy::of_one_worker(&self.api)
            .admin()
            .section("[log]\naccess = true")
            .limit("held", limit)
            .upstream(&format!("on_abort = \"finish\"\n{upstream}"))
            .start()
    }

    fn hears(&self) -> bool {
        self.told.recv_timeout(PATIENCE).unwrap()
    }
}

/// What is left in the bucket of the limit.
fn remaining(proxy: &Tidegate) -> Option<u64> {
    let bucket = get(proxy.admin(), "/api/limits/held/keys/", &[("host", "localhost")]);
    bucket.json()["remaining"].as_u64()
}

const SLOTS: &str = "algorithm = \"concurrency\"\nlimit = 2\nkey = []";

/// A regression: clients that hung up at once had 200 requests running in an API with a limit of two.
#[test]
fn its_slots_stay_taken_until_the_api_has_answered() {
    for path in ["/slow", "/half"] {
        let stubborn = Stubborn::start();
        let proxy = stubborn.proxy(SLOTS, "");
        for round in 1..=3 {
            let mut client = Connection::open(proxy.address);
            client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
            assert!(!stubborn.hears(), "it has begun");
            let mut other = Client::open(proxy.address);
            let request = other.begin("GET", path, &[]);
            assert!(!stubborn.hears());
            drop((client, request, other));
            wait_until("both clients have left", || {
                proxy.log.with("request").iter().filter(|it| it["path"] == path).count()
                    == 2 * round
            });
            assert_eq!(get(proxy.address, "/", &[]).status, 429, "{path}: both slots are held");
            stubborn.go.send(()).unwrap();
            assert!(stubborn.hears(), "{path}: the whole answer is taken");
            wait_until("one slot is free", || get(proxy.address, "/", &[]).status == 200);
            stubborn.go.send(()).unwrap();
            assert!(stubborn.hears(), "{path}");
            wait_until("both slots are free", || remaining(&proxy) == Some(2));
        }
    }
}

#[test]
fn its_place_among_max_requests_stays_taken() {
    let stubborn = Stubborn::start();
    let proxy = stubborn.proxy(SLOTS, "max_requests = 1\nqueue_timeout = \"1ms\"");
    let mut client = Connection::open(proxy.address);
    client.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
    stubborn.hears();
    drop(client);
    proxy.log.wait("request", |line| line["status"] == 499);
    assert_eq!(get(proxy.address, "/", &[]).status, 503);
    stubborn.go.send(()).unwrap();
    wait_until("the place is free", || get(proxy.address, "/", &[]).status == 200);
}

#[test]
fn an_answer_that_breaks_off_costs_the_estimate() {
    let stubborn = Stubborn::start();
    let proxy = Proxy::of_one_worker(&stubborn.api)
        .admin()
        .section("[log]\naccess = true")
        .limit(
            "held",
            "algorithm = \"fixed-window\"\nrate = \"100/d\"\nkey = []\n\
                        cost = { response_json = \"used\", estimate = 50 }",
        )
        .limit("slots", "algorithm = \"concurrency\"\nlimit = 1\nkey = []")
        .upstream("on_abort = \"finish\"")
        .start();
    let mut client = Connection::open(proxy.address);
    client.send("GET /broken HTTP/1.1\r\nhost: a\r\n\r\n");
    stubborn.hears();
    drop(client);
    wait_until("the client has left", || proxy.log.count("request") == 1);
    stubborn.go.send(()).unwrap();
    assert!(stubborn.hears());
    // The slot is free as soon as the tokens are settled.
    wait_until("the answer has ended", || {
        let slots = get(proxy.admin(), "/api/limits/slots/keys/", &[("host", "localhost")]);
        slots.json()["remaining"].as_u64() == Some(1)
    });
    assert_eq!(remaining(&proxy), Some(50), "not the 7 of its text");
}

#[test]
fn what_its_answer_costs_is_still_read() {
    let limit = "algorithm = \"fixed-window\"\nrate = \"100/h\"\nkey = []\n\
                 cost = { response_json = \"used\", estimate = 50 }";
    for path in ["/slow", "/half"] {
        let stubborn = Stubborn::start();
        let proxy = stubborn.proxy(limit, "");
        let mut client = Connection::open(proxy.address);
        client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
        stubborn.hears();
        drop(client);
        wait_until("the client has left", || proxy.log.count("request") == 1);
        assert_eq!(remaining(&proxy), Some(50), "{path}: the estimate is reserved");
        stubborn.go.send(()).unwrap();
        wait_until("the answer has settled it", || remaining(&proxy) == Some(93));
    }
}

const CHUNKS: &str = "transfer-encoding: chunked\r\n\r\n5\r\nhello";

/// A regression: sixty requests ran at once in an API with a limit of two. Each of their clients had sent the half of a
/// body, and no more.
#[test]
fn a_request_whose_body_fails_holds_its_slot_until_the_api_has_answered() {
    let stubborn = Stubborn::start();
    let proxy = Proxy::of_one_worker(&stubborn.api)
        .admin()
        .section("[log]\naccess = true")
        .server("body_timeout = \"300ms\"\nmax_body_size = \"1KiB\"")
        .limit("held", "algorithm = \"concurrency\"\nlimit = 1\nkey = []")
        .upstream("on_abort = \"finish\"\nmax_requests = 2")
        .start();
    let holds_on = |name: &str| {
        assert_eq!(get(proxy.address, "/", &[]).status, 429, "{name}: the slot is held");
        stubborn.go.send(()).unwrap();
        assert!(stubborn.hears(), "{name}: the whole answer is taken");
        wait_until("the slot is free", || get(proxy.address, "/", &[]).status == 200);
    };
    for (name, status, head, rest) in [
        ("it stalls", 408, "content-length: 9\r\n\r\nhalf", String::new()),
        ("it is broken", 400, CHUNKS, "\r\nnothing\r\n".to_owned()),
        ("it is too large", 413, CHUNKS, format!("\r\n800\r\n{}", "x".repeat(2048))),
    ] {
        let mut client = Connection::open(proxy.address);
        client.send(format!("POST /slow HTTP/1.1\r\nhost: a\r\n{head}"));
        assert!(!stubborn.hears(), "{name}: it has begun");
        client.send(rest);
        assert_eq!(client.reply("POST").status, status, "{name}");
        holds_on(name);
    }
    let mut client = Connection::open(proxy.address);
    client.send("POST /left HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nhalf");
    assert!(!stubborn.hears());
    drop(client);
    proxy.log.wait("request", |line| line["path"] == "/left" && line["status"] == 499);
    holds_on("its client has left");
    let mut client = Client::open(proxy.address);
    let mut call = client.upload("POST", "/reset", &[]);
    call.send(b"half");
    assert!(!stubborn.hears());
    call.reset();
    proxy.log.wait("request", |line| line["path"] == "/reset" && line["status"] == 499);
    holds_on("its stream was reset");
}

/// A regression: event streams that nobody read any more held `max_requests` for ever.
#[test]
fn what_nobody_reads_ends_after_finish_timeout() {
    let (holding, told) = Upstream::holding();
    let (endless, ended) = Upstream::endless();
    let upstream = "on_abort = \"finish\"\nmax_requests = 1\nqueue_timeout = \"1ms\"\n\
                    finish_timeout = \"200ms\"";
    let proxy = Proxy::of_one_worker(&holding).upstream(upstream).start();
    for (request, length) in [("GET /silent", 0), ("GET /half", 0), ("POST /silent", 9)] {
        let mut client = Connection::open(proxy.address);
        let head = format!("{request} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
        client.send(head);
        told.recv_timeout(PATIENCE).unwrap();
        assert_eq!(get(proxy.address, "/", &[]).status, 503, "{request}");
        drop(client);
        wait_until("the place is free", || get(proxy.address, "/", &[]).status == 200);
    }
    let proxy = Proxy::of_one_worker(&endless).upstream(upstream).start();
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    client.exactly(100);
    drop(client);
    ended.recv_timeout(PATIENCE).expect("the stream ends");
}

/// A regression: an answer that nobody waited for was not looked at, and its second half was the answer to the next
/// client of the connection.
#[test]
fn the_next_client_does_not_get_the_rest_of_an_answer_that_nobody_waited_for() {
    for evil in [
        "204 No Content\r\ncontent-length: 43\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nEVIL!",
        "200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
        "200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "401 Unauthorized\r\nwww-authenticate: NTLM\r\ncontent-length: 0\r\n\r\n",
    ] {
        let ((tell, told), (go, gone)) = (channel(), channel::<()>());
        let gone = Mutex::new(gone);
        let api = Upstream::raw(move |mut stream| {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut words = "fresh";
            while let Some(got) = read_head(&mut reader) {
                let said = match got.path() {
                    "/evil" => {
                        let _ = tell.send(());
                        let _ = gone.lock().unwrap().recv();
                        format!("HTTP/1.1 {evil}").into_bytes()
                    }
                    _ => ok(words),
                };
                if stream.write_all(&said).is_err() {
                    return;
                }
                words = "used";
            }
        });
        let proxy = Proxy::of_one_worker(&api)
            .admin()
            .section("[log]\naccess = true")
            .limit("held", SLOTS)
            .upstream("on_abort = \"finish\"")
            .start();
        let mut client = Connection::open(proxy.address);
        client.send("GET /evil HTTP/1.1\r\nhost: a\r\n\r\n");
        told.recv_timeout(PATIENCE).unwrap();
        drop(client);
        proxy.log.wait("request", |line| line["status"] == 499);
        go.send(()).unwrap();
        wait_until("the answer has ended", || remaining(&proxy) == Some(2));
        assert_eq!(get(proxy.address, "/victim", &[]).text(), "fresh", "{evil}");
    }
}

/// Limits in Redis, of slots and of tokens.
fn in_redis(api: &Upstream, server: &RedisServer, drain_timeout: &str) -> Proxy {
    let tokens = "algorithm = \"fixed-window\"\nrate = \"100/d\"\nkey = []\n\
                  cost = { response_json = \"used\", estimate = 50, max = 60, unknown = \"max\" }";
    Proxy::of_one_worker(api)
        .admin()
        .section("[log]\naccess = true")
        .server(&format!("drain_timeout = \"{drain_timeout}\""))
        .store(&server.fields())
        .limit("slots", "algorithm = \"concurrency\"\nlimit = 1\nlease = \"1h\"\nkey = []")
        .limit("held", tokens)
        .upstream("on_abort = \"finish\"")
}

/// A regression: the process ended, the API's call was cut, and the slot stayed taken in Redis for its whole lease.
#[test]
fn a_process_that_ends_waits_for_them() {
    for path in ["/slow", "/half"] {
        for http2 in [false, true] {
            let (stubborn, server) = (Stubborn::start(), RedisServer::start());
            let file = in_redis(&stubborn.api, &server, "1h");
            let (mut proxy, other) = (file.start(), file.start());
            if http2 {
                let mut client = Client::open(proxy.address);
                let _request = client.begin("GET", path, &[]);
                assert!(!stubborn.hears());
            } else {
                let mut client = Connection::open(proxy.address);
                client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
                assert!(!stubborn.hears());
            }
            proxy.log.wait("request", |line| line["path"] == path);
            proxy.signal("TERM");
            proxy.log.wait("draining", |_| true);
            for _ in 0..20 {
                assert_eq!(get(other.address, "/", &[]).status, 429, "{path}: it is under way");
            }
            assert_eq!(proxy.log.count("stopped"), 0, "{path}");
            stubborn.go.send(()).unwrap();
            assert!(stubborn.hears(), "{path}: the whole answer is taken");
            assert_eq!(proxy.wait().code(), Some(0));
            assert_eq!(remaining(&other), Some(93), "{path}: what it used is known");
            assert_eq!(get(other.address, "/", &[]).status, 200, "{path}: the slot is free");
            assert_eq!(proxy.log.count("connections cut"), 0, "{path}");
        }
    }
}

/// A regression: also the slot of a client that had not left stayed taken.
#[test]
fn what_a_drain_cuts_of_them_gives_its_slots_and_costs_back() {
    for path in ["/silent", "/half"] {
        for (has_left, drain_timeout) in [(true, "100ms"), (true, "0s"), (false, "100ms")] {
            let ((api, told), server) = (Upstream::holding(), RedisServer::start());
            let file = in_redis(&api, &server, drain_timeout);
            let (mut proxy, other) = (file.start(), file.start());
            let mut client = Connection::open(proxy.address);
            client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
            told.recv_timeout(PATIENCE).unwrap();
            if has_left {
                drop(client);
                proxy.log.wait("request", |line| line["path"] == path);
            }
            assert_eq!(get(other.address, "/", &[]).status, 429, "{path}");
            proxy.signal("TERM");
            assert_eq!(proxy.wait().code(), Some(0));
            let slots: u64 = server.run(&["ZCARD", "tidegate:slots:concurrency"]);
            assert_eq!(slots, 0, "{path} {has_left}");
            assert_eq!(remaining(&other), Some(40), "{path} {has_left}: nobody knows what it used");
            let cut = proxy.log.with("connections cut");
            assert!(cut.len() == 1 && cut[0]["count"] == 1, "{path} {has_left}: {cut:?}");
        }
    }
}

/// A regression: these upstreams' lines and spans lacked the server.
#[test]
fn the_access_line_and_the_span_name_the_server_also_if_the_client_leaves() {
    let (stubborn, collector) = (Stubborn::start(), Collector::start());
    let proxy = Proxy::of_one_worker(&stubborn.api)
        .section(&format!("[log]\naccess = true\n{}", collector.section()))
        .upstream("on_abort = \"finish\"")
        .start();
    assert_eq!(get(proxy.address, "/", &[]).status, 200);
    for path in ["/slow", "/half"] {
        let mut client = Connection::open(proxy.address);
        client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
        stubborn.hears();
        drop(client);
    }
    for path in ["/", "/slow", "/half"] {
        let line = proxy.log.wait("request", |line| line["path"] == path);
        assert_eq!(line["upstream"], stubborn.api.url(), "{path}");
        assert_eq!(said(&collector.span(path), "tidegate.server"), stubborn.api.url(), "{path}");
    }
}
