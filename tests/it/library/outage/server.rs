//! One server that is away, or does not decide, in every way.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;

use tidegate::settings::KeyDisplay;
use tidegate::store::Store;
use tokio::time::Instant;

use super::{Bench, MANY, PATIENCE, now, until_decides};
use crate::support::bench::decide;
use crate::support::limits::{ask, key, limit};
use crate::support::redis::RedisServer;

#[tokio::test]
async fn a_server_that_is_not_there_at_the_start() {
    let mut server = RedisServer::absent();
    let bench = Bench::on(&server.url());
    bench.until_redis_is(false).await;
    assert_eq!(bench.log.count("store unavailable"), 1, "said without any request");
    bench.assert_decides_alone("absent").await;
    server.restart();
    bench.assert_recovers("absent").await;
}

#[tokio::test]
async fn a_server_that_is_killed_and_comes_back_empty() {
    let mut server = RedisServer::start();
    let bench = Bench::on(&server.url());
    bench.until_redis_decides().await;
    server.kill();
    bench.assert_decides_alone("killed").await;
    server.restart();
    bench.assert_recovers("killed").await;
    let (spec, key) = (limit("alone"), key("killed"));
    assert_eq!(bench.left(ask(&spec, &key, 10)).await, 9, "the new server's bucket");
}

#[tokio::test]
async fn a_server_that_falls_silent_or_is_so_from_the_start() {
    for name in ["from-the-start", "later"] {
        let server = RedisServer::start();
        if name == "from-the-start" {
            server.pause();
        }
        let bench = Bench::impatient(&server.url());
        if name == "later" {
            bench.until_redis_decides().await;
            server.pause();
        }
        bench.assert_decides_alone(name).await;
        server.resume();
        bench.assert_recovers(name).await;
    }
}

#[tokio::test]
async fn a_server_that_does_not_write() {
    for (setting, broken, mended, words) in [
        ("REPLICAOF", "127.0.0.1 1", "NO ONE", &["read only replica"][..]),
        ("CONFIG SET maxmemory", "1", "0", &["OOM"]),
        ("CONFIG SET min-replicas-to-write", "1", "0", &["NOREPLICAS", "INFO REPLICATION"]),
    ] {
        let server = RedisServer::start();
        let set = |value: &str| {
            let command = format!("{setting} {value}");
            let () = server.run(&command.split(' ').collect::<Vec<_>>());
        };
        let bench = Bench::on(&server.url());
        bench.until_redis_decides().await;
        set(broken);
        bench.assert_decides_alone(setting).await;
        let log = bench.log.text();
        assert!(words.iter().all(|word| log.contains(word)), "{setting}: {log}");
        set(mended);
        bench.assert_recovers(setting).await;
    }
}

#[tokio::test]
async fn a_server_that_is_something_else() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut connection in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                while connection.read(&mut [0; 4_096]).is_ok_and(|read| read > 0) {
                    let _ = connection.write_all(b"+OK\r\n");
                }
            });
        }
    });
    let bench = Bench::on(&format!("redis://127.0.0.1:{port}"));
    bench.assert_decides_alone("nonsense").await;
}

#[tokio::test]
async fn an_outage_is_one_for_all_workers() {
    let server = RedisServer::start();
    let bench = Bench::impatient(&server.url());
    let other = Store::new(Arc::clone(&bench.shared), &bench.spec, KeyDisplay::Plain);
    bench.until_redis_decides().await;
    server.pause();
    bench.assert_decides_alone("one worker").await;
    let (spec, key) = (limit("per-client"), key("192.0.2.1"));
    let began = Instant::now();
    for _ in 0..MANY {
        decide(&other, &[ask(&spec, &key, 1)], now()).await.unwrap();
    }
    assert!(began.elapsed() < PATIENCE);
    assert_eq!(bench.log.count("store unavailable"), 1);
    server.resume();
    bench.assert_recovers("one worker").await;
    until_decides(&other, "192.0.2.1").await;
}
