//! Costs that the response tells, and responses that do not count: in the process and in Redis.

use std::io::{BufReader, Write as _};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::support::PATIENCE;
use crate::support::client::{Connection, Reply, get};
use crate::support::metrics::Metrics;
use crate::support::redis::RedisServer;
use crate::support::tidegate::{Tidegate, program};
use crate::support::upstream::{Got, Upstream, nobody, read_request, section};
use crate::support::wait_until;

macro_rules! every_store {
    ($($behaviour:ident)*) => {
        mod memory {
            use super::Place;
            $(#[test] fn $behaviour() { super::$behaviour(&Place::memory()) })*
        }
        mod redis {
            use super::Place;
            $(#[test] fn $behaviour() { super::$behaviour(&Place::redis()) })*
        }
    };
}

every_store! {
    a_header_says_what_was_used
    json_says_what_was_used
    a_stream_is_not_held_up
    a_bucket_goes_below_zero_and_comes_back
    ten_at_once_cannot_pass_a_budget_for_one
    failed_logins_alone_count
    ten_guesses_at_once_are_not_free
    every_limit_of_a_route_settles_its_own
    a_status_of_the_proxy_itself_counts
    a_client_that_leaves_gets_nothing_back
    a_reload_in_between_changes_nothing
    a_limit_of_one_node_settles_there
}

/// Where the buckets are.
struct Place {
    server: Option<RedisServer>,
}

impl Place {
    fn memory() -> Self {
        Self { server: None }
    }

    fn redis() -> Self {
        Self { server: Some(RedisServer::start()) }
    }

    /// A file with these limits, all of them on one route to `api`. On one worker what a client asks on
    /// one connection comes one after the other, settled in between.
    fn config(&self, api: &str, limits: &str) -> String {
        let store = self.server.as_ref().map_or("memory:".to_owned(), RedisServer::url);
        let names: Vec<_> = limits
            .lines()
            .filter_map(|line| line.strip_prefix("[limits.")?.strip_suffix(']'))
            .collect();
        format!(
            "[server]\nlisten = \"LISTEN\"\nworkers = 1\n[admin]\nlisten = \"LISTEN\"\n\
             [log]\naccess = true\n[store]\nurl = \"{store}\"\ntimeout = \"20s\"\n{api}{limits}\n\
             [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\nlimits = {names:?}\n"
        )
    }

    fn before(&self, api: &Upstream, limits: &str) -> Tidegate {
        Tidegate::start(&self.config(&section(&[api]), limits))
    }
}

fn limit(name: &str, lines: &str) -> String {
    format!("[limits.{name}]\n{lines}\n")
}

const HEADER: &str = "rate = \"100/h\"\ncost = { response_header = \"x-used\", estimate = 2 }";
const JSON: &str =
    "rate = \"100/h\"\ncost = { response_json = \"usage.total_tokens\", estimate = 2 }";

/// What remains of the first limit after what this request reserves.
fn remaining(reply: &Reply) -> u64 {
    let field = reply.header("ratelimit").unwrap_or_else(|| panic!("no ratelimit: {reply:?}"));
    let (_, rest) = field.split_once(";r=").unwrap();
    rest.split([';', ',']).next().unwrap().parse().unwrap()
}

/// An answer with these fields and this body.
fn answer(status: u16, fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n{fields}\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// An API whose answers wait, each until it is let go; it says how many wait.
struct Slow {
    api: Upstream,
    came: Receiver<Got>,
    go: Sender<()>,
}

impl Slow {
    fn answering(answer: impl Fn(&Got) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let (came, coming) = channel();
        let (go, gone) = channel::<()>();
        let gone = Arc::new(Mutex::new(gone));
        let api = Upstream::answering(move |got| {
            let _ = came.send(got.clone());
            // One after the other is let go.
            let _ = gone.lock().unwrap().recv();
            answer(got)
        });
        Self { api, came: coming, go }
    }

    fn wait_for(&self, requests: usize) {
        for _ in 0..requests {
            self.came.recv_timeout(PATIENCE).expect("a request reaches the API");
        }
    }
}

/// So many clients ask the same at once. Returns the statuses as they come.
fn at_once(address: SocketAddr, clients: usize, path: &'static str) -> Receiver<u16> {
    let (tell, told) = channel();
    for _ in 0..clients {
        let tell = tell.clone();
        thread::spawn(move || {
            let _ = tell.send(get(address, path, &[]).status);
        });
    }
    told
}

fn a_header_says_what_was_used(place: &Place) {
    let api = Upstream::answering(|got| {
        let used = match got.path() {
            "/none" => String::new(),
            "/twice" => "x-used: 7\r\nx-used: 7\r\n".to_owned(),
            path => format!("x-used: {}\r\n", &path[1..]),
        };
        answer(200, &used, b"")
    });
    let proxy = place.before(&api, &limit("used", HEADER));
    let mut client = Connection::open(proxy.address);
    let mut left = 100;
    for (path, used) in [
        ("/7", 7),
        ("/none", 2),
        ("/0", 0),
        ("/2", 2),
        ("/x", 2),
        ("/-3", 2),
        ("/twice", 2),
        ("/1.5", 2),
    ] {
        let reply = client.get(path, &[]);
        assert_eq!(remaining(&reply), left - 2, "the estimate is reserved at {path}");
        if path == "/7" {
            assert_eq!(reply.header("x-used").as_deref(), Some("7"), "the client sees it");
        }
        left -= used;
    }
    assert_eq!(remaining(&client.get("/0", &[])), left - 2);
    // A route may keep it to itself.
    let hidden = format!(
        "{}response_headers = {{ remove = [\"x-used\"] }}\n",
        place.config(&section(&[&api]), &limit("used", HEADER))
    );
    proxy.reload(&hidden);
    let reply = client.get("/3", &[]);
    assert_eq!(reply.header("x-used"), None);
    assert_eq!(remaining(&client.get("/0", &[])), left - 3 - 2);
}

fn json_says_what_was_used(place: &Place) {
    const BODY: &str = r#"{"choices":[{"usage":{"total_tokens":99}}],"usage":{"total_tokens":9}}"#;
    let api = Upstream::answering(|got| {
        let (kind, more, body) = match got.path() {
            "/problem" => ("application/problem+json", "", BODY),
            "/html" => ("text/html", "", BODY),
            // What is announced as compressed is not read, whatever it looks like.
            "/gzip" => ("application/json", "content-encoding: gzip\r\n", BODY),
            "/text" => ("application/json", "", r#"{"usage":{"total_tokens":"9"}}"#),
            "/broken" => ("application/json", "", r#"{"usage":{"total_tokens""#),
            "/garbage" => ("application/json", "", "\u{0}}}]\\\""),
            _ => ("application/json; charset=utf-8", "", BODY),
        };
        let body = if got.line.starts_with("HEAD") { "" } else { body };
        answer(200, &format!("content-type: {kind}\r\n{more}"), body.as_bytes())
    });
    let proxy = place.before(&api, &limit("used", JSON));
    let mut client = Connection::open(proxy.address);
    let mut left = 100;
    for (method, path, used) in [
        ("GET", "/", 9),
        ("GET", "/problem", 9),
        ("GET", "/html", 2),
        ("GET", "/gzip", 2),
        ("GET", "/text", 2),
        ("GET", "/broken", 2),
        ("GET", "/garbage", 2),
        ("HEAD", "/", 2),
    ] {
        let reply = client.request(method, path, &[], b"");
        assert_eq!(remaining(&reply), left - 2, "{method} {path}");
        left -= used;
    }
    assert_eq!(remaining(&client.get("/", &[])), left - 2);
}

fn a_stream_is_not_held_up(place: &Place) {
    let (go, gone) = channel::<()>();
    let gone = Mutex::new(gone);
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let api = Upstream::raw(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let gone = gone.lock().unwrap();
        while read_request(&mut reader).is_some() {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                        transfer-encoding: chunked\r\n\r\n";
            let first = chunk("data: {\"choices\":[],\"usage\":null}\n\n");
            stream.write_all(format!("{head}{first}").as_bytes()).unwrap();
            // What follows is cut where a reader could lose it.
            for piece in
                ["data: {\"usage\":{\"total_", "tokens\":5", "7}}\n", "\ndata: [DONE]\n\n", ""]
            {
                gone.recv().unwrap();
                stream.write_all(chunk(piece).as_bytes()).unwrap();
            }
        }
    });
    let proxy = place.before(&api, &limit("used", JSON));
    let mut client = Connection::open(proxy.address);
    let mut stream = |left: u64| {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let head = String::from_utf8(client.until(b"\r\n\r\n")).unwrap();
        assert!(head.contains(&format!(";r={left};")), "{left}: {head}");
        for piece in ["null}\n\n", "total_", "\":5", "7}}\n", "[DONE]\n\n"] {
            client.until(piece.as_bytes());
            go.send(()).unwrap();
        }
        client.until(b"0\r\n\r\n");
    };
    stream(98);
    stream(100 - 57 - 2);
}

fn a_bucket_goes_below_zero_and_comes_back(place: &Place) {
    let api =
        Upstream::answering(|got| answer(200, &format!("x-used: {}\r\n", &got.path()[1..]), b""));
    // A token comes every six minutes.
    let slow = "rate = \"10/h\"\ncost = { response_header = \"x-used\", estimate = 1, max = 30 }";
    let proxy = place.before(&api, &limit("slow", slow));
    let mut client = Connection::open(proxy.address);
    let wait = |client: &mut Connection| {
        let reply = client.get("/1", &[]);
        assert_eq!(reply.status, 429);
        reply.header("retry-after").unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(client.get("/1000000", &[]).status, 200);
    // Of 10 tokens 30 are gone, and one is needed.
    let most = 21 * 360;
    assert!((most - 60..=most).contains(&wait(&mut client)), "no more than `max` at once");
    // So many bursts are the most by default.
    let by_default = slow.replace(", max = 30", "").replace("10/h", "10/s");
    let proxy = place.before(&api, &limit("quick", &by_default));
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.get("/1000000", &[]).status, 200);
    assert!((90..=100).contains(&wait(&mut client)), "100 bursts");
    // It comes back by itself.
    let proxy = place.before(&api, &limit("quicker", &by_default.replace("10/s", "100/s")));
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.get("/150", &[]).status, 200);
    wait_until("the bucket is filled again", || client.get("/0", &[]).status == 200);
}

fn ten_at_once_cannot_pass_a_budget_for_one(place: &Place) {
    let slow = Slow::answering(|_| answer(200, "x-used: 0\r\n", b""));
    let budget = "rate = \"100/h\"\ncost = { response_header = \"x-used\", estimate = 100 }";
    let proxy = place.before(&slow.api, &limit("budget", budget));
    let told = at_once(proxy.address, 10, "/");
    for _ in 0..9 {
        assert_eq!(told.recv_timeout(PATIENCE), Ok(429), "the estimate is reserved");
    }
    slow.wait_for(1);
    slow.go.send(()).unwrap();
    assert_eq!(told.recv_timeout(PATIENCE), Ok(200));
    // It used nothing.
    slow.go.send(()).unwrap();
    wait_until("the estimate is back", || get(proxy.address, "/", &[]).status == 200);
}

const LOGINS: &str = "key = [\"ip\", \"query:user\"]\nrate = \"5/h\"\n\
                      count_when = { status = [\"401\", \"403\"] }";

/// An API that answers with the status that its path says.
fn statuses() -> Upstream {
    Upstream::answering(|got| answer(got.path()[1..4].parse().unwrap(), "", b""))
}

fn failed_logins_alone_count(place: &Place) {
    let api = statuses();
    let proxy = place.before(&api, &limit("logins", LOGINS));
    let mut client = Connection::open(proxy.address);
    let mut asked = |paths: &[&str]| -> Vec<u16> {
        paths.iter().map(|path| client.get(path, &[]).status).collect()
    };
    for _ in 0..10 {
        assert_eq!(asked(&["/200?user=a", "/500?user=a"]), [200, 500]);
    }
    assert_eq!(asked(&["/401?user=a"; 3]), [401; 3]);
    assert_eq!(asked(&["/200?user=a"; 3]), [200; 3]);
    assert_eq!(asked(&["/403?user=a"; 2]), [403; 2]);
    assert_eq!(asked(&["/200?user=a", "/401?user=a"]), [429; 2], "five have failed");
    assert_eq!(asked(&["/401?user=b"]), [401], "another user");
}

fn ten_guesses_at_once_are_not_free(place: &Place) {
    let slow = Slow::answering(|_| answer(401, "", b""));
    let proxy = place.before(&slow.api, &limit("logins", LOGINS));
    let told = at_once(proxy.address, 10, "/login?user=a");
    for _ in 0..5 {
        assert_eq!(told.recv_timeout(PATIENCE), Ok(429));
    }
    for _ in 0..5 {
        slow.go.send(()).unwrap();
    }
    for _ in 0..5 {
        assert_eq!(told.recv_timeout(PATIENCE), Ok(401));
    }
    slow.wait_for(5);
    assert_eq!(get(proxy.address, "/login?user=a", &[]).status, 429);
}

fn every_limit_of_a_route_settles_its_own(place: &Place) {
    let api =
        Upstream::answering(|got| answer(got.path()[1..4].parse().unwrap(), "x-used: 10\r\n", b""));
    let limits = [
        // Uses and failures in one: only what failed counts, with what it used.
        limit("both", &format!("{HEADER}\ncount_when = {{ status = [\"4xx\"] }}")),
        limit("plain", "rate = \"100/h\""),
        limit(
            "asked",
            "rate = \"100/h\"\ncost = { header = \"x-cost\", max = 9 }\n\
                        count_when = { status = [\"2xx\"] }",
        ),
        limit("try", "rate = \"2/h\"\nmode = \"shadow\"\ncount_when = { status = [\"404\"] }"),
    ]
    .concat();
    let proxy = place.before(&api, &limits);
    let mut client = Connection::open(proxy.address);
    let mut left = |path: &str| {
        let reply = client.get(path, &[("x-cost", "5")]);
        let field = reply.header("ratelimit").unwrap();
        field
            .split(";r=")
            .skip(1)
            .map(|rest| rest.split(';').next().unwrap().to_owned())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(left("/200"), "98 99 95");
    assert_eq!(left("/404"), "98 98 90", "what was used counts with the one that failed");
    assert_eq!(left("/404"), "88 97 90");
    assert_eq!(left("/200"), "78 96 90");
    assert_eq!(left("/200"), "78 95 85");
    let page = Metrics::of(proxy.admin());
    let shadow = |decision: &str| {
        page.value(&format!("tidegate_decisions_total{{limit=\"try\",decision=\"{decision}\"}}"))
    };
    assert_eq!((shadow("allowed"), shadow("shadow")), (3.0, 2.0), "{}", page.0);
}

fn a_status_of_the_proxy_itself_counts(place: &Place) {
    let upstream = format!("[upstreams.api]\nservers = [\"{}\"]\n", nobody());
    let limits = [
        limit("broken", "rate = \"100/h\"\ncount_when = { status = [\"502\"] }"),
        limit("failed", "rate = \"100/h\"\ncount_when = { status = [\"401\"] }"),
        // Nothing was said of its use.
        limit("used", HEADER),
    ]
    .concat();
    let proxy = Tidegate::start(&place.config(&upstream, &limits));
    let mut client = Connection::open(proxy.address);
    for _ in 0..3 {
        assert_eq!(client.get("/", &[]).status, 502);
    }
    let api = statuses();
    proxy.reload(&place.config(&section(&[&api]), &limits));
    let reply = client.get("/200", &[]);
    let field = reply.header("ratelimit").unwrap();
    assert!(field.contains("\"broken\";r=96;"), "{field}");
    assert!(field.contains("\"failed\";r=99;"), "{field}");
    assert!(field.contains("\"used\";r=92;"), "{field}");
}

fn a_client_that_leaves_gets_nothing_back(place: &Place) {
    let limits = [
        limit("logins", "rate = \"100/h\"\ncount_when = { status = [\"401\"] }"),
        limit("used", JSON),
    ]
    .concat();
    let (tell, stuck) = channel();
    let api = Upstream::raw(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(got) = read_request(&mut reader) {
            let json = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
            let begun = match got.path() {
                "/done" => format!("{json}content-length: 2\r\n\r\n{{}}"),
                "/before" => String::new(),
                "/said" => format!(
                    "{json}content-length: 99\r\n\r\n{{\"usage\":{{\"total_tokens\":9}},\"text\":"
                ),
                _ => format!("{json}content-length: 99\r\n\r\n{{\"text\":"),
            };
            stream.write_all(begun.as_bytes()).unwrap();
            let _ = tell.send(stream.try_clone().unwrap());
        }
    });
    let proxy = place.before(&api, &limits);
    let left = || {
        let reply = get(proxy.address, "/done", &[]);
        let field = reply.header("ratelimit").unwrap();
        field
            .split(";r=")
            .skip(1)
            .map(|rest| rest.split(';').next().unwrap().parse::<u64>().unwrap())
            .collect::<Vec<_>>()
    };
    // Each look costs nothing of `logins` and two of `used`.
    assert_eq!(left(), [99, 98]);
    let leave = |path: &str, until: &str| {
        let mut client = Connection::open(proxy.address);
        client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
        stuck.recv_timeout(PATIENCE).unwrap();
        if !until.is_empty() {
            client.until(until.as_bytes());
        }
        drop(client);
        proxy.log.wait("request", |line| line["path"] == path);
    };
    stuck.recv_timeout(PATIENCE).unwrap();
    leave("/before", "");
    assert_eq!(left(), [98, 94], "before the answer: both stay reserved");
    stuck.recv_timeout(PATIENCE).unwrap();
    leave("/said", "\"text\":");
    assert_eq!(left(), [98, 83], "the status was known, and the use");
    stuck.recv_timeout(PATIENCE).unwrap();
    leave("/unsaid", "\"text\":");
    assert_eq!(left(), [98, 79], "the status was known; the use is the estimate");
}

fn a_reload_in_between_changes_nothing(place: &Place) {
    let slow =
        Slow::answering(|got| answer(200, &format!("x-used: {}\r\n", &got.path()[1..]), b""));
    let proxy = place.before(&slow.api, &limit("used", HEADER));
    let mut client = Connection::open(proxy.address);
    client.send("GET /30 HTTP/1.1\r\nhost: a\r\n\r\n");
    slow.wait_for(1);
    let other = HEADER.replace("100/h", "50/h").replace("estimate = 2", "estimate = 5");
    proxy.reload(&place.config(&section(&[&slow.api]), &limit("used", &other)));
    slow.go.send(()).unwrap();
    assert_eq!(remaining(&client.reply("GET")), 98, "as it was reserved");
    slow.go.send(()).unwrap();
    assert_eq!(remaining(&client.get("/0", &[])), 50 - 30 - 5);
}

fn a_limit_of_one_node_settles_there(place: &Place) {
    let api = Upstream::answering(|_| answer(200, "x-used: 7\r\n", b""));
    let limits = [
        limit("here", &format!("{HEADER}\nscope = \"node\"")),
        limit("there", &HEADER.replace("estimate = 2", "estimate = 3")),
    ]
    .concat();
    let proxy = place.before(&api, &limits);
    let mut client = Connection::open(proxy.address);
    client.get("/", &[]);
    let field = client.get("/", &[]).header("ratelimit").unwrap();
    assert!(field.contains("\"here\";r=91;") && field.contains("\"there\";r=90;"), "{field}");
}

#[test]
fn a_huge_body_is_not_collected() {
    const SIZE: usize = 64 << 20;
    let api = Upstream::raw(|mut stream| {
        let _ = read_request(&mut BufReader::new(stream.try_clone().unwrap()));
        let (begin, end) = ("{\"text\":\"", "\",\"usage\":{\"total_tokens\":9}}");
        let length = begin.len() + SIZE + end.len();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
        write!(stream, "{head}content-length: {length}\r\n\r\n{begin}").unwrap();
        for _ in 0..SIZE >> 16 {
            stream.write_all(&[b'x'; 1 << 16]).unwrap();
        }
        stream.write_all(end.as_bytes()).unwrap();
    });
    let proxy = Place::memory().before(&api, &limit("used", JSON));
    let before = proxy.memory();
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    client.until(b"\r\n\r\n");
    let mut most = 0;
    for _ in 0..SIZE >> 20 {
        client.exactly(1 << 20);
        most = most.max(proxy.memory());
    }
    client.until(b"}}");
    assert!(most < before + (16 << 10), "{before} KiB before, {most} KiB at most");
    assert_eq!(remaining(&client.get("/", &[])), 100 - 9 - 2);
}

/// What does not reach Redis holds up nobody, and is told once.
#[test]
fn redis_is_gone_when_there_is_something_to_settle() {
    for (name, gone) in [
        ("killed", (|server: &mut RedisServer| server.kill()) as fn(&mut RedisServer)),
        ("silent", |server| server.pause()),
    ] {
        let slow = Slow::answering(|_| answer(200, "x-used: 9\r\n", b"done"));
        let mut place = Place::redis();
        let config = place.config(&section(&[&slow.api]), &limit("used", HEADER));
        let mut proxy = Tidegate::start(&config.replace("\"20s\"", "\"500ms\""));
        let told = at_once(proxy.address, 5, "/");
        slow.wait_for(5);
        gone(place.server.as_mut().unwrap());
        for _ in 0..5 {
            slow.go.send(()).unwrap();
            assert_eq!(told.recv_timeout(PATIENCE), Ok(200), "{name}");
        }
        let lost = || Metrics::of(proxy.admin()).value("tidegate_unsettled_total");
        wait_until("all of them are counted", || lost() == 5.0);
        let line = proxy.log.wait("costs not settled", |_| true);
        assert_eq!((&line["count"], &line["level"]), (&1.into(), &"WARN".into()), "{line}");
        assert!(proxy.stop().success());
        assert_eq!(proxy.log.count("costs not settled"), 1, "{name}");
    }
}

/// Decided here since Redis was away, settled here though it is back.
#[test]
fn what_this_process_decided_is_settled_here() {
    let slow = Slow::answering(|_| answer(200, "x-used: 9\r\n", b""));
    let mut place = Place { server: Some(RedisServer::absent()) };
    let proxy = place.before(&slow.api, &limit("used", HEADER));
    proxy.log.wait("store unavailable", |_| true);
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    slow.wait_for(1);
    place.server.as_mut().unwrap().restart();
    proxy.log.wait("store recovered", |_| true);
    slow.go.send(()).unwrap();
    assert_eq!(remaining(&client.reply("GET")), 98);
    slow.go.send(()).unwrap();
    assert_eq!(remaining(&client.get("/", &[])), 98, "Redis's own bucket was not touched");
}

#[test]
fn what_the_last_response_used_is_settled_before_the_end() {
    let slow = Slow::answering(|_| answer(200, "x-used: 0\r\n", b""));
    let place = Place::redis();
    let mut proxy = place.before(&slow.api, &limit("used", HEADER));
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    slow.wait_for(1);
    let server = place.server.as_ref().unwrap();
    assert!(server.run::<bool>(&["EXISTS", "tidegate:used"]), "reserved");
    proxy.signal("TERM");
    proxy.log.wait("draining", |_| true);
    slow.go.send(()).unwrap();
    assert_eq!(client.reply("GET").status, 200);
    assert!(proxy.wait().success());
    assert!(!server.run::<bool>(&["EXISTS", "tidegate:used"]), "all was given back");
}

#[test]
fn a_process_that_ends_waits_for_what_it_settles() {
    let slow = Slow::answering(|_| answer(200, "x-used: 0\r\n", b""));
    let place = Place::redis();
    let config = place.config(&section(&[&slow.api]), &limit("used", HEADER));
    let mut proxy = Tidegate::start(&config.replace("\"20s\"", "\"500ms\""));
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    slow.wait_for(1);
    place.server.as_ref().unwrap().pause();
    slow.go.send(()).unwrap();
    assert_eq!(client.reply("GET").status, 200);
    drop(client);
    assert!(proxy.stop().success());
    assert_eq!(proxy.log.count("costs not settled"), 1, "it was waited for");
}

#[test]
fn all_limits_of_a_request_are_settled_in_one_call() {
    let api = Upstream::answering(|_| answer(200, "x-used: 9\r\n", b""));
    let place = Place::redis();
    let three: String = ["a", "b", "c"].map(|name| limit(name, HEADER)).concat();
    let proxy = place.before(&api, &three);
    let mut client = Connection::open(proxy.address);
    let server = place.server.as_ref().unwrap();
    let calls = || {
        let text: String = server.run(&["INFO", "commandstats"]);
        let line = text.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
        let calls = line.split("calls=").nth(1).unwrap();
        calls.split(',').next().unwrap().parse::<u64>().unwrap()
    };
    client.get("/", &[]);
    client.get("/", &[]);
    // The last settlement is there once its tokens are gone.
    let settled = |times: u64| {
        let left = Duration::from_millis(server.run::<u64>(&["PTTL", "tidegate:a"]));
        let used = Duration::from_secs(9 * times * 36);
        left > used - Duration::from_secs(30)
    };
    wait_until("two are settled", || settled(2));
    let before = calls();
    client.get("/", &[]);
    wait_until("three are settled", || settled(3));
    let asked = calls() - before;
    // Now and then it is asked whether it still decides.
    assert!((2..=3).contains(&asked), "{asked} calls for a decision and its settlement");
}

#[test]
fn explain_says_what_is_settled() {
    let limits = [
        limit("used", JSON),
        limit("bounded", &HEADER.replace("estimate = 2", "estimate = 2, max = 50")),
        limit("logins", LOGINS),
    ]
    .concat();
    let proxy = Place::memory().before(&statuses(), &limits);
    let output = program().args(["explain", "/"]).current_dir(proxy.folder()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for said in [
        "takes 2 before, and in the end what usage.total_tokens in the response's JSON says, up to 10000",
        "takes 2 before, and in the end what the response's header x-used says, up to 50",
        "given back unless the response's status is 401, 403",
    ] {
        assert!(text.contains(said), "{said} in:\n{text}");
    }
}
