//! A server that is too old.

use std::io::{BufRead, BufReader, Write as _};
use std::net::TcpListener;

use super::Bench;

/// The words of one command; `None` at the connection's end.
fn command(reader: &mut impl BufRead) -> Option<Vec<String>> {
    let number = |reader: &mut dyn BufRead, mark: char| -> Option<usize> {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        line.trim_end().strip_prefix(mark)?.parse().ok()
    };
    let mut told = Vec::new();
    for _ in 0..number(reader, '*')? {
        let mut word = vec![0; number(reader, '$')? + 2];
        reader.read_exact(&mut word).ok()?;
        told.push(String::from_utf8_lossy(&word).trim_end().to_owned());
    }
    Some(told)
}

/// The port of a server of this version, whose scripts end in an error.
fn server(version: &'static str) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut connection in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(connection.try_clone().unwrap());
            std::thread::spawn(move || {
                while let Some(words) = command(&mut reader) {
                    let info = format!("# Server\r\nredis_version:{version}\r\n");
                    let answer = match words[0].as_str() {
                        "INFO" => format!("${}\r\n{info}\r\n", info.len()),
                        "EVALSHA" => "-ERR syntax error\r\n".to_owned(),
                        _ => "+OK\r\n".to_owned(),
                    };
                    if connection.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

/// All that was said of an older server was that a script had a syntax error.
#[tokio::test]
async fn an_old_servers_version_is_said() {
    for (version, is_too_old) in
        [("5.0.14", true), ("6.0.20", true), ("6.2.0", false), ("7.0.15", false), ("?", false)]
    {
        let bench = Bench::on(&format!("redis://127.0.0.1:{}", server(version)));
        bench.assert_decides_alone(version).await;
        let said = bench.log.text();
        let needed = format!("Redis {version} is too old: 6.2 or later is needed");
        assert_eq!(said.contains(&needed), is_too_old, "{said}");
        assert_eq!(said.contains("syntax error"), !is_too_old, "{said}");
    }
}
