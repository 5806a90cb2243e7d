//! The queue of a bucket: clients that leave while they wait, and those who wait after them.

use std::time::Duration;

use super::waiting::{ask, delays, limited, said};
use crate::support::client::Connection;
use crate::support::redis::RedisServer;
use crate::support::tidegate::Tidegate;
use crate::support::{PATIENCE, wait_until};

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
