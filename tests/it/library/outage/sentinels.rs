//! A Redis behind sentinels: the master is found, a failover is followed, and a demoted master is left.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate::limit::decision::Verdict;

use super::{Bench, ask, key, limit};
use crate::support::sentinels::Sentinels;
use crate::support::until;

/// Takes until one decision was made by a master. Returns the place of that master.
async fn decided_by(bench: &Bench, sentinels: &Sentinels) -> usize {
    bench.until_redis_decides().await;
    let place = sentinels.master().expect("the sentinels agree");
    let spec = limit("after");
    assert_eq!(bench.decide(&[ask(&spec, &key("x"), 10)]).await.unwrap().verdict, Verdict::PASS);
    let keys: Vec<String> = sentinels.servers[place].run(&["KEYS", "*after*"]);
    assert_eq!(keys.len(), 1, "{place}: {keys:?}");
    place
}

#[tokio::test]
async fn a_master_that_dies_is_followed() {
    let mut sentinels = Sentinels::start();
    let bench = Bench::on(&sentinels.url());
    assert_eq!(decided_by(&bench, &sentinels).await, 0);
    sentinels.servers[0].kill();
    bench.decide_until_redis_is_away("x").await;
    sentinels.until("another master", || sentinels.master().is_some_and(|place| place != 0));
    bench.until_redis_is(true).await;
    assert_ne!(decided_by(&bench, &sentinels).await, 0);
    bench.assert_recovers("failover").await;
}

#[tokio::test]
async fn a_master_that_falls_silent_is_followed() {
    let sentinels = Sentinels::start();
    let bench = Bench::impatient(&sentinels.url());
    bench.until_redis_decides().await;
    sentinels.servers[0].pause();
    bench.decide_until_redis_is_away("x").await;
    sentinels.until("another master", || sentinels.master().is_some_and(|place| place != 0));
    match bench.log.count("store unavailable") {
        0 => bench.until_redis_decides().await,
        _ => bench.assert_recovers("failover").await,
    }
    sentinels.servers[0].resume();
}

#[tokio::test]
async fn a_demoted_master_is_left() {
    let sentinels = Sentinels::start();
    let bench = Bench::on(&sentinels.url());
    assert_eq!(decided_by(&bench, &sentinels).await, 0);
    sentinels.fail_over();
    sentinels.until("another master", || sentinels.master().is_some_and(|place| place != 0));
    let spec = limit("later");
    let has_it = || {
        let keys =
            |place: usize| -> Vec<String> { sentinels.servers[place].run(&["KEYS", "*later*"]) };
        sentinels.master().is_some_and(|place| !keys(place).is_empty())
    };
    until("the new master decides", async || {
        let _ = bench.decide(&[ask(&spec, &key("x"), 1)]).await;
        has_it()
    })
    .await;
    let place = sentinels.master().unwrap();
    let [from, to] = [0, place].map(|place| sentinels.servers[place].port());
    let moved = format!("from=\"127.0.0.1:{from}\" to=\"127.0.0.1:{to}\"");
    assert_eq!(bench.log.count("store master moved"), 1, "{}", bench.log.text());
    assert!(bench.log.text().contains(&moved), "{moved}: {}", bench.log.text());
}

/// A sentinel that is cut off from the others names a server that is not the master.
#[tokio::test]
async fn one_sentinel_that_is_wrong_ends_no_connection() {
    let sentinels = Sentinels::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let wrong = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let (count, replica) = (Arc::clone(&asked), sentinels.servers[1].port().to_string());
    std::thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let _ = client.read(&mut [0; 1_024]);
            let length = replica.len();
            let answer = format!("*2\r\n$9\r\n127.0.0.1\r\n${length}\r\n{replica}\r\n");
            let _ = client.write_all(answer.as_bytes());
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let url = sentinels.url().replace("redis-sentinel://", &format!("redis-sentinel://{wrong},"));
    let bench = Bench::on(&url);
    bench.until_redis_decides().await;
    let connection = || -> Vec<String> {
        let clients: String = sentinels.servers[0].run(&["CLIENT", "LIST"]);
        let ours = clients.lines().filter(|line| line.contains("name=tidegate "));
        ours.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    let (before, first) = (connection(), asked.load(Ordering::SeqCst));
    assert_eq!(before.len(), 1);
    let is_asked = async || asked.load(Ordering::SeqCst) >= first + 3;
    until("the wrong sentinel is asked", is_asked).await;
    assert_eq!(connection(), before, "the connection was left");
}

#[tokio::test]
async fn sentinels_that_are_silent_are_no_problem() {
    let sentinels = Sentinels::start();
    sentinels.pause_sentinel(0);
    sentinels.pause_sentinel(1);
    let bench = Bench::on(&sentinels.url());
    bench.until_redis_decides().await;
}

#[tokio::test]
async fn a_sentinel_that_is_gone_is_no_problem() {
    let mut sentinels = Sentinels::start();
    sentinels.kill_sentinel(0);
    let bench = Bench::on(&sentinels.url());
    bench.until_redis_decides().await;
}

#[tokio::test]
async fn a_name_that_no_sentinel_knows_is_told() {
    let sentinels = Sentinels::start();
    let bench = Bench::on(&sentinels.url().replace("/limits", "/others"));
    bench.until_redis_is(false).await;
    let log = bench.log.text();
    assert!(log.contains("the sentinels know no master \"others\""), "{log}");
}
