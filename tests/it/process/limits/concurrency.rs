//! `algorithm = "concurrency"`: slots are held until a response ends, however it does.

use std::sync::mpsc::Receiver;

use crate::support::client::{Connection, get};
use crate::support::proxy::Proxy;
use crate::support::redis::{RedisServer, in_both_stores, own_calls};
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;
use crate::support::{PATIENCE, now, wait_until};

/// With one worker, what is given back reaches Redis before what is asked next.
fn slots_with(api: &Upstream, lines: &str) -> Proxy {
    let slots = format!("algorithm = \"concurrency\"\n{lines}");
    let proxy = Proxy::of_one_worker(api).limit("slots", &slots);
    proxy.limit("tokens", "rate = \"1000/h\"")
}

fn slots(api: &Upstream, limit: u64) -> Proxy {
    slots_with(api, &format!("limit = {limit}\nlease = \"1h\""))
}

const HALF: &str = "GET /half HTTP/1.1\r\nhost: a\r\n\r\n";

/// A client whose request is under way.
fn holding(proxy: &Tidegate, told: &Receiver<()>, request: &str) -> Connection {
    let mut client = Connection::open(proxy.address);
    client.send(request);
    told.recv_timeout(PATIENCE).expect(request);
    client
}

fn is_free(proxy: &Tidegate) -> bool {
    get(proxy.address, "/", &[]).status == 200
}

#[test]
fn a_slot_is_free_however_a_response_ends() {
    in_both_stores(|store| {
        let (api, told) = Upstream::holding();
        let proxy = slots(&api, 1).store(store).start();
        let upgrade =
            "GET /upgrade HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: chat\r\n\r\n";
        for request in [
            "GET /silent HTTP/1.1\r\nhost: a\r\n\r\n",
            HALF,
            "POST /silent HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nhalf",
            upgrade,
        ] {
            let client = holding(&proxy, &told, request);
            assert_eq!(get(proxy.address, "/", &[]).status, 429, "{request}");
            drop(client);
            wait_until(request, || is_free(&proxy));
        }
        let mut client = Connection::open(proxy.address);
        client.send("GET /broken HTTP/1.1\r\nhost: a\r\n\r\n");
        client.rest();
        wait_until("the API broke off", || is_free(&proxy));
        let mut client = Connection::open(proxy.address);
        for turn in 0..50 {
            assert_eq!(client.get("/", &[]).status, 200, "one after the other: {turn}");
        }
    });
}

/// A regression: what a client had sent behind a slow request hid that it had gone.
#[test]
fn requests_behind_a_slow_one_do_not_hide_that_the_client_has_gone() {
    let (api, told) = Upstream::holding();
    let proxy = slots(&api, 1).start();
    for behind in [1, 100, 1_000, 3_000] {
        let next = "GET / HTTP/1.1\r\nhost: a\r\n\r\n".repeat(behind);
        let first = "GET /silent HTTP/1.1\r\nhost: a\r\n\r\n";
        let client = holding(&proxy, &told, &format!("{first}{next}"));
        assert_eq!(get(proxy.address, "/", &[]).status, 429);
        drop(client);
        wait_until(&format!("the slot is free, with {behind} behind"), || is_free(&proxy));
    }
}

#[test]
fn a_refused_client_is_told() {
    let (api, told) = Upstream::holding();
    // The second is a guess, and is not spread.
    let proxy = slots(&api, 1).section("[reject]\njitter = \"100%\"").start();
    let reply = get(proxy.address, "/", &[]);
    let policy = "\"slots\";q=1;qu=\"concurrent-requests\", \"tokens\";q=1000;w=3600";
    assert_eq!(reply.header("ratelimit-policy").unwrap(), policy);
    assert_eq!(reply.header("ratelimit").unwrap(), "\"slots\";r=0, \"tokens\";r=999;t=3600");
    let client = holding(&proxy, &told, HALF);
    let reply = get(proxy.address, "/", &[]);
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("1".to_owned())));
    let said = reply.header("ratelimit").unwrap();
    assert!(said.starts_with("\"slots\";r=0;t=1, "), "{said}");
    let left = |reply: &crate::support::client::Reply| {
        let said = reply.header("ratelimit").unwrap();
        said.rsplit(";r=").next().unwrap().split(';').next().unwrap().parse::<u64>().unwrap()
    };
    let before = left(&reply);
    let again = get(proxy.address, "/", &[]);
    assert!(left(&again) >= before, "a refusal takes no tokens");
    drop(client);
}

#[test]
fn a_reload_goes_on_from_what_is_held() {
    let (api, told) = Upstream::holding();
    let proxy = slots(&api, 1).start();
    let client = holding(&proxy, &told, HALF);
    proxy.reload(&slots(&api, 2).text());
    wait_until("there are two", || is_free(&proxy));
    let other = holding(&proxy, &told, HALF);
    proxy.reload(&slots(&api, 1).text());
    proxy.log.wait("config reloaded", |line| line.to_string().contains("limit 2 -> 1"));
    drop(other);
    // One is held, of one.
    assert_eq!(get(proxy.address, "/", &[]).status, 429);
    drop(client);
    wait_until("both are free", || is_free(&proxy));
}

#[test]
fn a_killed_proxys_slots_are_free_after_the_lease() {
    let (server, (api, told)) = (RedisServer::start(), Upstream::holding());
    let file = slots_with(&api, "limit = 1\nlease = \"1s\"").store(&server.fields());
    let (mut killed, other) = (file.start(), file.start());
    let _client = holding(&killed, &told, HALF);
    let held = || server.run::<u64>(&["ZCARD", "tidegate:slots:concurrency"]);
    wait_until("its slot is in Redis, again where a slow machine let it end", || held() == 1);
    killed.signal("KILL");
    killed.wait();
    wait_until("its lease has ended", || is_free(&other));
}

#[test]
fn a_download_longer_than_the_lease_keeps_its_slot() {
    let (server, (api, told)) = (RedisServer::start(), Upstream::holding());
    // Renewed every two seconds, which is early enough on any machine.
    let file = slots_with(&api, "limit = 1\nlease = \"6s\"").store(&server.fields());
    let (proxy, other) = (file.start(), file.start());
    let client = holding(&proxy, &told, HALF);
    let ends = || {
        let slot: Vec<(Vec<u8>, f64)> =
            server.run(&["ZRANGE", "tidegate:slots:concurrency", "0", "-1", "WITHSCORES"]);
        assert_eq!(slot.len(), 1, "{slot:?}");
        slot[0].1
    };
    let first = ends();
    wait_until("its lease was renewed until the first one was over", || {
        assert_eq!(get(other.address, "/", &[]).status, 429);
        let (seconds, micros): (f64, f64) = server.run(&["TIME"]);
        ends() > first && seconds * 1_000_000.0 + micros > first
    });
    let expiry: u64 = server.run(&["PTTL", "tidegate:slots:concurrency"]);
    assert!(expiry <= 6_001, "{expiry}");
    drop(client);
    wait_until("it has ended", || is_free(&other));
}

#[test]
fn without_redis_a_process_has_slots_of_its_own() {
    let (mut server, (api, told)) = (RedisServer::start(), Upstream::holding());
    let proxy = slots(&api, 1).store(&server.fields()).start();
    let there = holding(&proxy, &told, HALF);
    server.kill();
    wait_until("the process decides", || is_free(&proxy));
    let here = holding(&proxy, &told, HALF);
    drop(there);
    assert_eq!(get(proxy.address, "/", &[]).status, 429, "given back where it was taken");
    drop(here);
    wait_until("it is free here", || is_free(&proxy));
}

/// A Redis that had lost its data let too many through until the leases were renewed.
#[test]
fn a_redis_that_lost_its_data_hears_at_once_what_is_held() {
    let ((api, under_way), mut server) = (Upstream::holding(), RedisServer::start());
    let proxy = slots(&api, 2).store(&server.fields()).start();
    let holding = [0, 1].map(|_| {
        let mut client = Connection::open(proxy.address);
        client.send("GET /silent HTTP/1.1\r\nhost: a\r\n\r\n");
        under_way.recv_timeout(PATIENCE).unwrap();
        client
    });
    assert_eq!(get(proxy.address, "/", &[]).status, 429);
    server.kill();
    server.restart();
    let held = || server.run::<u64>(&["ZCARD", "tidegate:slots:concurrency"]);
    wait_until("both are announced", || held() == 2);
    assert_eq!(get(proxy.address, "/", &[]).status, 429);
    drop(holding);
    wait_until("they are free", || get(proxy.address, "/", &[]).status == 200);
}

/// A slot that was given back while Redis took no writes stayed taken until its lease ended.
#[test]
fn redis_hears_of_a_slot_in_the_end() {
    let (server, (api, told)) = (RedisServer::start(), Upstream::holding());
    let proxy = slots(&api, 1).store(&server.fields()).section("[log]\naccess = true").start();
    let held = || server.run::<u64>(&["ZCARD", "tidegate:slots:concurrency"]);
    let client = holding(&proxy, &told, HALF);
    assert_eq!(held(), 1);
    // A replica of nobody takes no writes.
    server.run::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    drop(client);
    proxy.log.wait("request", |line| line["path"] == "/half");
    wait_until("the process decides by itself", || is_free(&proxy));
    assert_eq!(held(), 1, "Redis could not hear it");
    server.run::<()>(&["REPLICAOF", "NO", "ONE"]);
    wait_until("Redis has heard it", || held() == 0);
}

#[test]
fn of_scope_node_each_process_has_its_own() {
    let (server, (api, told)) = (RedisServer::start(), Upstream::holding());
    let file = slots_with(&api, "limit = 1\nscope = \"node\"\nlease = \"1h\"");
    let file = file.store(&server.fields());
    let (proxy, other) = (file.start(), file.start());
    let client = holding(&proxy, &told, HALF);
    assert_eq!(get(proxy.address, "/", &[]).status, 429);
    assert_eq!(get(other.address, "/", &[]).status, 200);
    drop(client);
    wait_until("it has ended", || is_free(&proxy));
}

/// A request that waits for another limit holds its slot meanwhile.
#[test]
fn a_slot_is_free_when_a_held_client_leaves() {
    in_both_stores(|store| {
        let proxy = Proxy::answering()
            .server("workers = 1")
            .store(store)
            .limit("slots", "algorithm = \"concurrency\"\nlimit = 2")
            .limit(
                "turns",
                "key = [\"header:x-turn\"]\nmissing = \"skip\"\nrate = \"1/h\"\nwait = \"2h\"",
            )
            .start();
        let turn = "GET / HTTP/1.1\r\nhost: a\r\nx-turn: a\r\n\r\n";
        let left = || {
            let reply = get(proxy.address, "/", &[]);
            reply.header("ratelimit")
        };
        assert_eq!(get(proxy.address, "/", &[("x-turn", "a")]).status, 200);
        wait_until("its slot is free", || left().as_deref() == Some("\"slots\";r=1"));
        let mut held = Connection::open(proxy.address);
        held.send(turn);
        wait_until("it is held", || left().as_deref() == Some("\"slots\";r=0"));
        drop(held);
        wait_until("it has left", || left().as_deref() == Some("\"slots\";r=1"));
    });
}

/// 200 slots took 175 calls a second: each was renewed when its own time had come.
#[test]
fn renewals_of_slots_are_gathered() {
    let (server, (api, told)) = (RedisServer::start(), Upstream::holding());
    // Renewed every two seconds, those that are due within half a second together.
    let proxy = slots_with(&api, "limit = 40\nlease = \"6s\"").store(&server.fields()).start();
    let ends = || {
        let slots: Vec<(Vec<u8>, f64)> =
            server.run(&["ZRANGE", "tidegate:slots:concurrency", "0", "-1", "WITHSCORES"]);
        slots.into_iter().map(|(_, end)| end).collect::<Vec<_>>()
    };
    let clients: Vec<_> = (0..40).map(|_| holding(&proxy, &told, HALF)).collect();
    let taken = ends();
    assert_eq!(taken.len(), 40);
    let (last, before, began) = (taken[39], server.calls("evalsha"), now());
    wait_until("each slot was renewed", || ends()[0] > last);
    let calls = server.calls("evalsha") - before;
    let most = 20 + own_calls(began.elapsed());
    assert!(calls <= most, "{calls} calls for 40 renewals, and perhaps a second round");
    drop(clients);
}
