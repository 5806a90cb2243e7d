//! Proxies and services that use one limiter at once, and what is written to its set meanwhile.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate::limit::decision::Verdict;
use tidegate::limit::waiting::MaxWait;

use super::{Bench, ask, limiter, now, store};
use crate::support::bench::decide;
use crate::support::java::Java;
use crate::support::limits::no_key;
use crate::support::redis::RedisServer;

/// Every entry that is added to a limiter's set, as a server's monitor tells it: score and permits.
struct Watch {
    lines: BufReader<TcpStream>,
}

impl Watch {
    fn on(server: &RedisServer) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut lines = BufReader::new(stream);
        let mut ok = String::new();
        lines.read_line(&mut ok).unwrap();
        assert_eq!(ok, "+OK\r\n");
        Self { lines }
    }

    /// Those that stay: what proxies take back, which names two members at once, is none.
    fn entries(self) -> Vec<(u64, u64)> {
        let lines = self.lines.lines().map_while(Result::ok);
        let lines = lines.take_while(|line| !line.contains("nothing-more-is-watched"));
        let mut entries = HashMap::new();
        for line in lines {
            let Some((_, call)) = line.split_once(" lua] \"") else { continue };
            match call.strip_suffix('"').unwrap().split("\" \"").collect::<Vec<_>>()[..] {
                ["ZADD", "{orders}:permits", score, member] => {
                    // Permits below seven, as the last four bytes are written.
                    let end = member.strip_suffix("\\x00\\x00\\x00").unwrap();
                    let permits = end[end.len() - 2..].parse().unwrap();
                    entries.insert(member.to_owned(), (score.parse().unwrap(), permits));
                }
                ["ZREM", "{orders}:permits", one, other] => {
                    assert_eq!([one, other].iter().filter_map(|it| entries.remove(*it)).count(), 1);
                }
                _ => {}
            }
        }
        entries.into_values().collect()
    }
}

/// No interval, wherever it starts, holds more permits of these entries than the rate.
fn assert_within(mut entries: Vec<(u64, u64)>, rate: u64, interval_ms: u64) {
    entries.sort_unstable();
    for (place, (begin, _)) in entries.iter().enumerate() {
        let inside = entries[place..].iter().take_while(|(score, _)| score - begin < interval_ms);
        let inside: u64 = inside.map(|(_, permits)| permits).sum();
        assert!(inside <= rate, "{inside} in the interval from {begin} on");
    }
}

/// Services that take one, two and three permits of `orders`, as often as they get them.
struct Services {
    threads: Vec<JoinHandle<()>>,
    taken: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Services {
    fn start(server: &Arc<RedisServer>) -> Self {
        let (taken, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let service = |permits| {
            let (server, taken, stop) = (server.clone(), taken.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut java = Java::new(&server, "orders");
                while !stop.load(Ordering::Relaxed) {
                    if java.try_acquire(permits).is_some() {
                        taken.fetch_add(permits, Ordering::Relaxed);
                    }
                }
            })
        };
        let threads = [1, 2, 3].into_iter().map(service).collect();
        Self { threads, taken, stop }
    }

    /// The permits that they took so far.
    fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Ends them. What they took in all.
    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.taken.load(Ordering::Relaxed)
    }
}

const RATE: u64 = 12;
const INTERVAL_MS: u64 = 40;

/// Permits that each side is to take.
const ENOUGH: u64 = 100;

#[tokio::test]
async fn both_sides_keep_within_the_rate() {
    let bench = Bench::start();
    let server = Arc::new(bench.server);
    Java::new(&server, "orders").try_set_rate(RATE, INTERVAL_MS);
    let watch = Watch::on(&server);
    let services = Services::start(&server);
    let (spec, none) = (limiter("orders"), no_key());
    let other = store(&server);
    let mut proxies = 0;
    let mut turn = 0;
    while proxies < ENOUGH || services.taken() < ENOUGH {
        turn += 1;
        let store = if turn % 2 == 0 { &bench.store } else { &other };
        let cost = 1 + turn % 3;
        let answer = decide(store, &[ask(&spec, &none, cost)], now()).await.unwrap();
        proxies += if answer.verdict.passes() { cost } else { 0 };
    }
    let taken = services.end();
    server.run::<()>(&["SET", "nothing-more-is-watched", ""]);
    let entries = watch.entries();
    let sum: u64 = entries.iter().map(|(_, permits)| permits).sum();
    assert_eq!(sum, proxies + taken, "every entry is an acquisition");
    assert_within(entries, RATE, INTERVAL_MS);
}

#[tokio::test]
async fn both_sides_keep_within_the_rate_while_some_wait() {
    let bench = Bench::start();
    let server = Arc::new(bench.server);
    let mut clock = Java::new(&server, "orders");
    clock.try_set_rate(RATE, INTERVAL_MS);
    let watch = Watch::on(&server);
    let services = Services::start(&server);
    let (spec, none) = (limiter("orders"), no_key());
    let (mut passed, mut held, mut left, mut turn) = (0, 0, 0, 0);
    while held < ENOUGH || services.taken() < ENOUGH {
        turn += 1;
        let cost = 1 + turn % 3;
        let mut ask = ask(&spec, &none, cost);
        ask.ask.max_wait = MaxWait::of(Duration::from_millis(10 * INTERVAL_MS));
        let answer = decide(&bench.store, &[ask], now()).await.unwrap();
        let Verdict::Pass { wait } = answer.verdict else { continue };
        passed += cost;
        if wait.is_zero() {
            continue;
        }
        if turn % 5 == 0 {
            answer.give_back(&bench.store).await;
            left += cost;
            continue;
        }
        answer.keep();
        held += cost;
        if turn % 4 == 0 {
            tokio::time::sleep(wait).await;
        }
    }
    let taken = services.end();
    server.run::<()>(&["SET", "nothing-more-is-watched", ""]);
    let entries = watch.entries();
    let sum: u64 = entries.iter().map(|(_, permits)| permits).sum();
    assert_eq!(sum, passed - left + taken, "each entry is of one who goes");
    assert_within(entries, RATE, INTERVAL_MS);
}
