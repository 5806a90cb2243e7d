//! When and where what was used is settled, and what becomes of it where Redis is gone.

use std::time::Duration;

use super::{HEADER, Place, Slow, answer, at_once, remaining};
use crate::support::PATIENCE;
use crate::support::client::Connection;
use crate::support::metrics::Metrics;
use crate::support::redis::RedisServer;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

/// The same file, by which Redis has less time to answer.
fn impatient(config: &str) -> String {
    config.replace("timeout = \"20s\"", "timeout = \"500ms\"")
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
        let limited = place.before(&slow.api).limit("used", HEADER);
        let mut proxy = limited.start();
        let told = at_once(proxy.address, 5, "/");
        slow.wait_for(5);
        // Redis has decided, whatever time that took. Now it need not be waited for that long.
        proxy.reload(&impatient(&limited.text()));
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
        // What came in the same interval is told when the process ends.
        let lines = proxy.log.with("costs not settled");
        let counts = lines.iter().map(|line| line["count"].as_u64().unwrap());
        assert_eq!(counts.sum::<u64>(), 5, "{name}: {lines:?}");
    }
}

/// Decided here since Redis was away, settled here though it is back.
#[test]
fn what_this_process_decided_is_settled_here() {
    let slow = Slow::answering(|_| answer(200, "x-used: 9\r\n", b""));
    let mut place = Place { server: Some(RedisServer::absent()) };
    let proxy = place.before(&slow.api).limit("used", HEADER).start();
    proxy.log.wait("store unavailable", |_| true);
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    slow.wait_for(1);
    place.server.as_mut().unwrap().restart();
    proxy.log.wait("store connected", |_| true);
    slow.go.send(()).unwrap();
    assert_eq!(remaining(&client.reply("GET")), 98);
    slow.go.send(()).unwrap();
    assert_eq!(remaining(&client.get("/", &[])), 98, "Redis's own bucket was not touched");
}

#[test]
fn a_process_that_ends_waits_for_what_it_settles() {
    let slow = Slow::answering(|_| answer(200, "x-used: 0\r\n", b""));
    let place = Place::redis();
    let limited = place.before(&slow.api).limit("used", HEADER);
    let mut proxy = limited.start();
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    slow.wait_for(1);
    proxy.reload(&impatient(&limited.text()));
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
    let figures = HEADER.replace("100/h", "1000/h");
    let proxy = place.before(&api);
    let limited = ["a", "b", "c"].iter().fold(proxy, |proxy, name| proxy.limit(name, &figures));
    let proxy = limited.start();
    let mut client = Connection::open(proxy.address);
    let server = place.server.as_ref().unwrap();
    // A settlement is there once its tokens are gone; one comes back every 3.6 seconds.
    let settled = |requests: u64| {
        let left = Duration::from_millis(server.run::<u64>(&["PTTL", "tidegate:a"]));
        left > Duration::from_millis(9 * requests * 3_600 - 20_000)
    };
    let mut requests = 0;
    // Now and then Redis is asked besides whether it still decides.
    wait_until("no more than a decision and its settlements, together, are two calls", || {
        let before = server.calls("evalsha");
        client.get("/", &[]);
        requests += 1;
        wait_until("it is settled", || settled(requests));
        server.calls("evalsha") - before == 2
    });
}
