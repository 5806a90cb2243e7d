//! Services that use a limiter while a test runs, and what is written to its set meanwhile.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use super::java::Java;
use crate::support::redis::RedisServer;

/// Every entry that is added to a limiter's set, as a server's monitor tells it: score and permits.
pub(super) struct Watch {
    lines: BufReader<TcpStream>,
}

impl Watch {
    pub(super) fn on(server: &RedisServer) -> Self {
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
    pub(super) fn entries(self) -> Vec<(u64, u64)> {
        let lines = self.lines.lines().map_while(Result::ok);
        let lines = lines.take_while(|line| !line.contains("nothing-more-is-watched"));
        let mut entries = HashMap::new();
        for line in lines {
            let Some((_, call)) = line.split_once(" lua] \"") else { continue };
            match call.strip_suffix('"').unwrap().split("\" \"").collect::<Vec<_>>()[..] {
                ["ZADD", _, score, member] => {
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
pub(super) fn assert_within(mut entries: Vec<(u64, u64)>, rate: u64, interval_ms: u64) {
    entries.sort_unstable();
    for (place, (begin, _)) in entries.iter().enumerate() {
        let inside = entries[place..].iter().take_while(|(score, _)| score - begin < interval_ms);
        let inside: u64 = inside.map(|(_, permits)| permits).sum();
        assert!(inside <= rate, "{inside} in the interval from {begin} on");
    }
}

/// Services that take one, two and three permits of `orders`, as often as they get them.
pub(super) struct Services {
    threads: Vec<JoinHandle<()>>,
    taken: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Services {
    pub(super) fn start(server: &Arc<RedisServer>) -> Self {
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
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Ends them. What they took in all.
    pub(super) fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.taken.load(Ordering::Relaxed)
    }
}
