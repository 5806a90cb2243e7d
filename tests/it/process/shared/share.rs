//! Without Redis each process enforces its share of what the processes enforced together.

use crate::support::client::statuses;
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::tidegate::Tidegate;
use crate::support::wait_until;

fn limited(server: &RedisServer) -> Tidegate {
    let limit = "rate = \"12/h\"\nkey = [\"ip\"]";
    Proxy::answering().admin().limit("client", limit).store(&server.fields()).start()
}

fn processes(server: &RedisServer) -> usize {
    server.run(&["ZCARD", "tidegate::processes"])
}

/// How many of twenty requests pass.
fn passed(proxy: &Tidegate) -> usize {
    let asked = statuses(proxy.address, &[&[][..]; 20]);
    asked.into_iter().filter(|status| *status == 200).count()
}

#[test]
fn three_processes_without_redis_let_pass_what_one_would() {
    let mut server = RedisServer::start();
    let proxies = [limited(&server), limited(&server), limited(&server)];
    wait_until("three processes are known", || processes(&server) == 3);
    // Each of them has to hear of the others.
    for proxy in &proxies {
        wait_until("each knows three", || {
            Metrics::of(proxy.admin()).value("tidegate_processes") == 3.0
        });
    }
    server.kill();
    for proxy in &proxies {
        wait_until("Redis counts as away", || {
            Metrics::of(proxy.admin()).value("tidegate_store_up") == 0.0
        });
    }
    assert_eq!(proxies.each_ref().map(passed), [4, 4, 4]);
}

#[test]
fn one_process_has_the_whole_limit() {
    let mut server = RedisServer::start();
    let proxy = limited(&server);
    wait_until("one process is known", || processes(&server) == 1);
    // The answer to the first announcement was read before the second one was sent.
    let lease = || -> Vec<Vec<u8>> {
        server.run(&["ZRANGE", "tidegate::processes", "0", "-1", "WITHSCORES"])
    };
    let first = lease();
    wait_until("it announces itself again", || lease() != first);
    assert_eq!(Metrics::of(proxy.admin()).value("tidegate_processes"), 1.0);
    server.kill();
    wait_until("Redis counts as away", || {
        Metrics::of(proxy.admin()).value("tidegate_store_up") == 0.0
    });
    assert_eq!(passed(&proxy), 12);
}

/// A process that was drained counted for as long as one that died.
#[test]
fn a_process_that_ends_no_longer_counts() {
    let server = RedisServer::start();
    let [mut ends, _stays] = [limited(&server), limited(&server)];
    wait_until("both are known", || processes(&server) == 2);
    ends.stop();
    assert_eq!(processes(&server), 1);
}

/// The other processes said nothing, and its slots were taken until their lease was over.
#[test]
fn a_process_that_is_killed_is_named_by_those_that_live() {
    let server = RedisServer::start();
    let [mut killed, mut stopped, stays] = [limited(&server), limited(&server), limited(&server)];
    for proxy in [&killed, &stopped, &stays] {
        wait_until("each knows three", || {
            Metrics::of(proxy.admin()).value("tidegate_processes") == 3.0
        });
    }
    stopped.stop();
    let pid = killed.pid();
    killed.signal("KILL");
    killed.wait_for_exit();
    let line = stays.log.wait("process gone", |_| true);
    let name = line["process"].as_str().unwrap();
    assert!(name.ends_with(&format!(":{pid}")) && !name.starts_with(':'), "{line}");
    assert_eq!(
        (&line["level"], stays.log.count("process gone")),
        (&"WARN".into(), 1),
        "the other has said that it ends"
    );
    wait_until("it counts no more", || {
        Metrics::of(stays.admin()).value("tidegate_processes") == 1.0
    });
}
