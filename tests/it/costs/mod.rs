//! Costs that the response tells, and responses that do not count: in the process and in Redis.

use std::io::{BufReader, Write as _};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::PATIENCE;
use crate::support::client::{Connection, Reply, get};
use crate::support::redis::RedisServer;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::{Got, Upstream, read_request, section};
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

mod counting;
mod settling;

every_store! {
    a_header_says_what_was_used
    json_says_what_was_used
    a_stream_is_not_held_up
    a_bucket_goes_below_zero_and_comes_back
    ten_at_once_cannot_pass_a_budget_for_one
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
