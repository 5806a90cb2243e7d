//! Costs that the response tells, and responses that do not count: in the process and in Redis.

use std::io::{BufReader, Write as _};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::client::{Connection, Reply, get};
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::upstream::{Got, Upstream, read_request};
use crate::support::{PATIENCE, wait_until};

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

mod by_request;
mod called_off;
mod counting;
mod estimate;
mod model_apis;
mod of_routes;
mod said;
mod settling;

every_store! {
    a_bucket_goes_below_zero_and_comes_back
    ten_at_once_cannot_pass_a_budget_for_one
    a_client_that_leaves_gets_nothing_back
    a_reload_in_between_changes_nothing
    a_bucket_does_not_refill_by_figures_that_are_over
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

    /// A proxy in front of `api`. On one worker what a client asks on one connection comes one after the
    /// other, settled in between.
    fn before(&self, api: impl Into<String>) -> Proxy {
        let store = self.server.as_ref().map_or("memory:".to_owned(), RedisServer::url);
        Proxy::of_one_worker(api)
            .admin()
            .section("[log]\naccess = true")
            .store(&format!("url = \"{store}\"\ntimeout = \"20s\""))
    }
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

/// This many clients ask the same at once. Returns the statuses as they come.
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

fn a_bucket_goes_below_zero_and_comes_back(place: &Place) {
    let api =
        Upstream::answering(|got| answer(200, &format!("x-used: {}\r\n", &got.path()[1..]), b""));
    // A token comes every six minutes.
    let slow = "rate = \"10/h\"\ncost = { response_header = \"x-used\", estimate = 1, max = 30 }";
    let proxy = place.before(&api).limit("slow", slow).start();
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
    // This many bursts are the most by default.
    let by_default = slow.replace(", max = 30", "").replace("10/h", "10/s");
    let proxy = place.before(&api).limit("quick", &by_default).start();
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.get("/1000000", &[]).status, 200);
    assert!((90..=100).contains(&wait(&mut client)), "100 bursts");
    // It comes back by itself.
    let proxy = place.before(&api).limit("quicker", &by_default.replace("10/s", "100/s")).start();
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.get("/150", &[]).status, 200);
    wait_until("the bucket is filled again", || client.get("/0", &[]).status == 200);
}

fn ten_at_once_cannot_pass_a_budget_for_one(place: &Place) {
    let slow = Slow::answering(|_| answer(200, "x-used: 0\r\n", b""));
    let budget = "rate = \"100/h\"\ncost = { response_header = \"x-used\", estimate = 100 }";
    let proxy = place.before(&slow.api).limit("budget", budget).start();
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
    let proxy = place
        .before(&api)
        .limit("logins", "rate = \"100/h\"\ncount_when = { status = [\"401\"] }")
        .limit("used", JSON)
        .start();
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
    let proxy = place.before(&slow.api).limit("used", HEADER).start();
    let mut client = Connection::open(proxy.address);
    client.send("GET /30 HTTP/1.1\r\nhost: a\r\n\r\n");
    slow.wait_for(1);
    let other = HEADER.replace("100/h", "50/h").replace("estimate = 2", "estimate = 5");
    proxy.reload(&place.before(&slow.api).limit("used", &other).text());
    slow.go.send(()).unwrap();
    assert_eq!(remaining(&client.reply("GET")), 98, "as it was reserved");
    slow.go.send(()).unwrap();
    assert_eq!(remaining(&client.get("/0", &[])), 50 - 30 - 5);
}

/// What a request of a faster time used was counted by the figures of that time: whatever others had used
/// under the new ones was back at once.
fn a_bucket_does_not_refill_by_figures_that_are_over(place: &Place) {
    let (tell, came) = channel();
    let (go, gone) = channel::<()>();
    let gone = Mutex::new(gone);
    let api = Upstream::answering(move |got| {
        if got.path() == "/1" {
            let _ = tell.send(());
            let _ = gone.lock().unwrap().recv();
        }
        answer(200, &format!("x-used: {}\r\n", &got.path()[1..]), b"")
    });
    for algorithm in ["token-bucket", "fixed-window", "sliding-window", "sliding-log"] {
        let config = |rate: &str| {
            let other = HEADER.replace("100/h", rate);
            let limit = format!("algorithm = \"{algorithm}\"\n{other}");
            place.before(&api).limit("used", &limit)
        };
        let proxy = config("100/1ms").start();
        let mut slow = Connection::open(proxy.address);
        slow.send("GET /1 HTTP/1.1\r\nhost: a\r\n\r\n");
        came.recv_timeout(PATIENCE).unwrap();
        proxy.reload(&config("100/h").text());
        let mut client = Connection::open(proxy.address);
        client.get("/30", &[]);
        let before = remaining(&client.get("/2", &[]));
        assert!(before <= 68, "{algorithm}: {before}");
        go.send(()).unwrap();
        assert_eq!(slow.reply("GET").status, 200);
        let after = remaining(&client.get("/2", &[]));
        assert!((before - 2..before).contains(&after), "{algorithm}: {before}, then {after}");
    }
}

fn a_limit_of_one_node_settles_there(place: &Place) {
    let api = Upstream::answering(|_| answer(200, "x-used: 7\r\n", b""));
    let proxy = place
        .before(&api)
        .limit("here", &format!("{HEADER}\nscope = \"node\""))
        .limit("there", &HEADER.replace("estimate = 2", "estimate = 3"))
        .start();
    let mut client = Connection::open(proxy.address);
    client.get("/", &[]);
    let field = client.get("/", &[]).header("ratelimit").unwrap();
    assert!(field.contains("\"here\";r=91;") && field.contains("\"there\";r=90;"), "{field}");
}
