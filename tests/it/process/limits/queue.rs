//! The queue of a bucket: clients that leave while they wait, and those who wait after them.

use std::time::Duration;

use super::waiting::{ask, delays, held, hold, is_hours, limited, said, user};
use crate::support::client::Connection;
use crate::support::redis::{RedisServer, in_both_stores};
use crate::support::tidegate::Tidegate;
use crate::support::{PATIENCE, wait_until};

fn leave(proxy: &Tidegate, client: Connection) {
    let before = held(proxy);
    drop(client);
    wait_until("a client has left", || held(proxy) == before - 1.0);
}

/// A request of a user, once it is decided on. It is held, or has gone already.
fn decided(proxy: &Tidegate, user: &str) -> Connection {
    let decisions = || ["allowed", "delayed"].map(|kind| said(proxy, "user", kind));
    let before: f64 = decisions().iter().sum();
    let client = ask(proxy.address, user);
    wait_until("it is decided on", || {
        let [allowed, delayed] = decisions();
        allowed + delayed > before && delays(proxy).len() as f64 == delayed
    });
    client
}

/// A regression: clients that gave up left holes. The last one waited for all of them, and a full queue stayed full.
#[test]
fn clients_that_give_up_leave_no_holes() {
    let redis = RedisServer::start();
    // Each waits for a turn, so they wait at the same time.
    std::thread::scope(|scope| {
        for (n, algorithm) in [
            "algorithm = \"leaky-bucket\"\nqueue = 20",
            "burst = 1\nwait = \"1h\"",
            "algorithm = \"fixed-window\"\nalign = \"clock\"\nwait = \"1h\"",
            "algorithm = \"sliding-log\"\nwait = \"1h\"",
        ]
        .into_iter()
        .enumerate()
        {
            for store in [String::new(), format!("{}prefix = \"p{n}\"\n", redis.fields())] {
                scope.spawn(move || leave_no_holes(algorithm, &store));
            }
        }
    });
}

/// One goes in five seconds. Some may go while others come.
fn leave_no_holes(algorithm: &str, store: &str) {
    let limits =
        format!("[limits.user]\nkey = [\"header:x-user\"]\nrate = \"1/5s\"\n{algorithm}\n");
    let proxy = limited(&limits).store(store).start();
    let mut clients = Vec::new();
    // The last one would go when the test has lost its patience.
    let long = PATIENCE + Duration::from_secs(10);
    while delays(&proxy).last().is_none_or(|told| u128::from(*told) < long.as_millis()) {
        clients.push(decided(&proxy, "a"));
    }
    let mut last = clients.pop().unwrap();
    drop(clients);
    assert_eq!(last.reply("GET").status, 200, "{algorithm}: the last one goes next");
    let before = delays(&proxy).len();
    let _next = decided(&proxy, "a");
    let told = &delays(&proxy)[before..];
    assert!(told.iter().all(|told| *told <= 10_000), "{algorithm}: no hole is left: {told:?}");
}

#[test]
fn a_queue_that_was_full_has_room_when_its_clients_leave() {
    in_both_stores(|store| {
        let limits = "[limits.user]\nkey = [\"header:x-user\"]\nalgorithm = \"leaky-bucket\"\n\
                      rate = \"1/h\"\nqueue = 3\n";
        let proxy = limited(limits).store(store).start();
        assert_eq!(user(proxy.address, "a").status, 200);
        let mut clients: Vec<_> = (0..3).map(|_| hold(&proxy, "a")).collect();
        assert_eq!(user(proxy.address, "a").status, 429);
        leave(&proxy, clients.remove(0));
        // The two others go after one hour and after two.
        clients.push(hold(&proxy, "a"));
        assert!(is_hours(*delays(&proxy).last().unwrap(), 3), "{:?}", delays(&proxy));
        assert_eq!(user(proxy.address, "a").status, 429);
        drop(clients);
        wait_until("all have left", || held(&proxy) == 0.0);
        let _only = hold(&proxy, "a");
        assert!(is_hours(*delays(&proxy).last().unwrap(), 1), "{:?}", delays(&proxy));
    });
}

#[test]
fn a_place_before_that_of_another_process_stays_unused() {
    let redis = RedisServer::start();
    for algorithm in [
        "algorithm = \"leaky-bucket\"\nqueue = 9",
        "wait = \"9h\"",
        "algorithm = \"sliding-log\"\nwait = \"70m\"",
    ] {
        // A sliding log holds for little more than an hour.
        let minutes = if algorithm.contains("log") { 10 } else { 60 };
        let limits = format!(
            "[limits.user]\nkey = [\"header:x-user\"]\nrate = \"1/{minutes}m\"\n{algorithm}\n"
        );
        let prefix = format!("prefix = \"p{}\"", algorithm.len());
        let proxy = limited(&limits).store(&format!("{}\n{prefix}", redis.fields()));
        let [one, other] = [(); 2].map(|()| proxy.start());
        let told = |proxy: &Tidegate| {
            let told = *delays(proxy).last().unwrap() + minutes * 10_000;
            told / (minutes * 60_000)
        };
        assert_eq!(user(one.address, "a").status, 200);
        let first = hold(&one, "a");
        let _second = hold(&one, "a");
        let third = hold(&other, "a");
        assert_eq!((told(&one), told(&other)), (2, 3), "{algorithm}");
        leave(&one, first);
        // The second request has moved up. Its place was not the last one.
        let _fourth = hold(&one, "a");
        let _fifth = hold(&other, "a");
        assert_eq!((told(&one), told(&other)), (4, 5), "{algorithm}: no two go in one place");
        leave(&other, third);
    }
}
