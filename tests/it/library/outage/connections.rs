//! A server that is there all the time, and connections that are not.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate::settings::KeyDisplay;
use tidegate::store::Store;
use tokio::time::Instant;

use super::{Bench, PATIENCE, now, until_decides};
use crate::support::limits::{ask, key, limit};
use crate::support::redis::RedisServer;

/// Only a request that failed told that the connection was closed.
#[tokio::test]
async fn a_connection_that_the_server_closes_is_made_again_before_a_request_needs_it() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    bench.until_redis_decides().await;
    // A connection that breaks at once is made again after a pause. After this moment no time passes, because this
    // test is never idle. Therefore nothing else tries the connection.
    tokio::time::pause();
    tokio::time::advance(Duration::from_millis(1_100)).await;
    let _: i64 = server.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let mut looks = 0;
    while !server.run::<String>(&["CLIENT", "LIST"]).contains("name=tidegate") {
        looks += 1;
        assert!(looks < 100_000, "it is not made again");
        tokio::task::yield_now().await;
    }
    assert_eq!(bench.log.text(), "");
}

/// A firewall forgets one worker's connection: its requests time out, while the others' success
/// says that all is well.
#[tokio::test]
async fn one_connection_that_falls_silent_is_made_again() {
    let server = RedisServer::start();
    let (wire, mute) = forward_to(server.port());
    let bench = Bench::impatient(&format!("redis://127.0.0.1:{wire}"));
    bench.until_redis_decides().await;
    // The first worker's connection is the first; whatever comes after it is not muted.
    let other = Store::new(Arc::clone(&bench.shared), &bench.spec, KeyDisplay::Plain);
    until_decides(&other, "192.0.2.1").await;
    let (spec, key) = (limit("per-client"), key("192.0.2.1"));
    let one = ask(&spec, &key, 1);
    mute.store(true, Ordering::SeqCst);
    let max_wait = Instant::now() + PATIENCE;
    assert!(bench.store.look(&one, now()).await.is_err(), "nothing was muted");
    while bench.store.look(&one, now()).await.is_err() {
        other.look(&one, now()).await.unwrap();
        assert!(Instant::now() < max_wait, "the silent connection is still in use");
    }
    assert_eq!(bench.log.text(), "");
}

/// A port that forwards to the server, and a switch that silences its first connection.
fn forward_to(port: u16) -> (u16, Arc<AtomicBool>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let wire = listener.local_addr().unwrap().port();
    let mute = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&mute);
    std::thread::spawn(move || {
        for (number, client) in listener.incoming().map_while(Result::ok).enumerate() {
            let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let asks = (client.try_clone().unwrap(), server.try_clone().unwrap());
            let switch = Arc::clone(&switch);
            std::thread::spawn(move || copy(asks.0, asks.1, || false));
            std::thread::spawn(move || {
                copy(server, client, || number == 0 && switch.load(Ordering::SeqCst));
            });
        }
    });
    (wire, mute)
}

fn copy(mut from: TcpStream, mut to: TcpStream, muted: impl Fn() -> bool) {
    let mut bytes = [0; 4_096];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if !muted() && to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}
