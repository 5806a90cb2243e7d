//! Slots of `concurrency` are held until a stream has ended, and no longer.

use std::sync::mpsc::Receiver;

use super::logged;
use crate::support::http2::{Client, Exchange};
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;
use crate::support::{PATIENCE, wait_until};

const SLOTS: &str = "[limits.slots]\nkey = []\nalgorithm = \"concurrency\"\nlimit = 1\n\
                     lease = \"1h\"\n";

/// A state in which a request holds a slot.
type Hold = fn(&mut Client, &Receiver<()>) -> Exchange;

const STATES: [(&str, Hold); 3] = [
    ("waiting for the API", |client, told| {
        let exchange = client.begin("GET", "/silent", &[]);
        told.recv_timeout(PATIENCE).unwrap();
        exchange
    }),
    ("in mid-response", |client, told| {
        let mut exchange = client.begin("GET", "/half", &[]);
        told.recv_timeout(PATIENCE).unwrap();
        assert_eq!(exchange.head().unwrap().status(), 200);
        assert_eq!(exchange.piece().unwrap().unwrap(), "half.");
        exchange
    }),
    ("in mid-upload", |client, told| {
        let mut exchange = client.upload("POST", "/silent", &[("content-length", "10")]);
        exchange.send(b"half.");
        told.recv_timeout(PATIENCE).unwrap();
        exchange
    }),
];

fn is_free(proxy: &Tidegate) -> bool {
    Client::open(proxy.address).get("/", &[]).status == 200
}

#[test]
fn a_slot_is_free_when_the_client_resets_its_stream() {
    let (api, told) = Upstream::holding();
    let proxy = logged(&api).limits(SLOTS).start();
    let mut client = Client::open(proxy.address);
    for (state, hold) in STATES {
        let exchange = hold(&mut client, &told);
        assert!(!is_free(&proxy), "{state}");
        assert_eq!(client.get("/", &[]).status, 429, "{state}");
        exchange.reset();
        wait_until(state, || client.get("/", &[]).status == 200);
    }
}

#[test]
fn a_slot_is_free_when_the_client_drops_its_connection() {
    let (api, told) = Upstream::holding();
    let proxy = logged(&api).limits(SLOTS).start();
    for (state, hold) in STATES {
        let mut client = Client::open(proxy.address);
        let exchange = hold(&mut client, &told);
        assert!(!is_free(&proxy), "{state}");
        drop((exchange, client));
        wait_until(state, || is_free(&proxy));
    }
}

#[test]
fn a_held_stream_that_is_given_up_frees_its_slot() {
    let (api, _told) = Upstream::holding();
    let limits =
        format!("{SLOTS}[limits.user]\nkey = [\"header:x-user\"]\nrate = \"1/h\"\nwait = \"2h\"\n");
    let proxy = logged(&api).limits(&limits).start();
    let mut client = Client::open(proxy.address);
    let is_free =
        |client: &mut Client, user: &str| client.get("/", &[("x-user", user)]).status == 200;
    assert!(is_free(&mut client, "a"));
    let mut delayed = 0;
    let mut hold = |client: &mut Client| {
        let exchange = client.begin("GET", "/", &[("x-user", "a")]);
        delayed += 1;
        let is_held = |line: &serde_json::Value| line["decision"] == "delayed";
        wait_until("a stream is held", || {
            proxy.log.with("throttled").iter().filter(|line| is_held(line)).count() == delayed
        });
        exchange
    };
    let held = hold(&mut client);
    assert!(!is_free(&mut client, "b"), "who waits holds its slot");
    held.reset();
    wait_until("the stream is reset", || is_free(&mut client, "b"));
    let mut other = Client::open(proxy.address);
    let held = hold(&mut other);
    assert!(!is_free(&mut client, "c"));
    drop((held, other));
    wait_until("the connection is gone", || is_free(&mut client, "c"));
}

#[test]
fn each_stream_of_a_connection_has_a_slot_of_its_own() {
    let (api, told) = Upstream::holding();
    let proxy = logged(&api).limits(&SLOTS.replace("limit = 1", "limit = 3")).start();
    let mut client = Client::open(proxy.address);
    let held: Vec<_> = STATES.iter().map(|(_, hold)| hold(&mut client, &told)).collect();
    let reply = client.get("/", &[]);
    assert_eq!((reply.status, reply.violated()), (429, vec!["slots".to_owned()]));
    drop((held, client));
    wait_until("all are back", || {
        let mut client = Client::open(proxy.address);
        let reply = client.get("/", &[]);
        reply.header("ratelimit").as_deref() == Some("\"slots\";r=2")
    });
}
