//! What is written to a limiter's set while a test runs.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

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
