//! Who reads the log: nobody for a while, nobody any more, or eyes at a terminal.

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::TempDir;

use super::*;
use crate::support::metrics::Metrics;
use crate::support::port::Port;

/// A proxy whose log is read as far as a test wants.
struct Unread {
    process: Child,
    output: BufReader<ChildStdout>,
    _folder: TempDir,
}

impl Unread {
    fn start(log: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("proxy.toml");
        std::fs::write(&file, text(log)).unwrap();
        let mut command = program();
        command.arg("run").arg("--config").arg(&file).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, output, _folder: folder }
    }

    /// Reads until the proxy and its admin endpoint listen. Returns their addresses.
    fn addresses(&mut self) -> [SocketAddr; 2] {
        let mut addresses = [None, None];
        while addresses.contains(&None) {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "it ended");
            let line: Value = serde_json::from_str(&line).unwrap();
            let address = || Some(line["address"].as_str().unwrap().parse().unwrap());
            match line["message"].as_str() {
                Some("listening") => addresses[0] = address(),
                Some("admin listening") => addresses[1] = address(),
                _ => {}
            }
        }
        addresses.map(Option::unwrap)
    }
}

fn stop(mut process: Child) {
    let stopped = Command::new("kill").arg(process.id().to_string()).status().unwrap();
    assert!(stopped.success() && process.wait().unwrap().success());
}

#[test]
fn a_reader_that_stops_reading_blocks_no_request() {
    let mut proxy = Unread::start("access = true\nthrottle = \"each\"");
    let [address, admin] = proxy.addresses();
    // Nobody reads from here on. Each request has two lines with this path: more than all buffers.
    let path = format!("/{}", "x".repeat(8_000));
    let mut client = Connection::open(address);
    let rejected = (0..1_000).filter(|_| client.get(&path, &[]).status == 429).count();
    assert_eq!(rejected, 999, "every request is answered");
    let metrics = Metrics::of(admin);
    let dropped = metrics.value("tidegate_log_dropped_total");
    assert!(dropped > 0.0, "what does not fit is dropped and counted");
    // Somebody reads again: what waited comes, and how many lines do not.
    let seen: Arc<AtomicU64> = Arc::default();
    let counted = seen.clone();
    let Unread { process, output, _folder } = proxy;
    let reader = std::thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            let line: Value = serde_json::from_str(&line).expect("no line is cut");
            match line["message"].as_str() {
                Some("log lines dropped") => {
                    counted.fetch_add(line["count"].as_u64().unwrap(), Ordering::Relaxed)
                }
                Some("request" | "throttled") => counted.fetch_add(1, Ordering::Relaxed),
                _ => 0,
            };
        }
    });
    wait_until("each line was written or counted", || seen.load(Ordering::Relaxed) == 1_999);
    stop(process);
    reader.join().unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 1_999, "and none twice");
}

#[test]
fn a_reader_that_leaves_ends_nothing() {
    let mut proxy = Unread::start("access = true");
    let [address, _] = proxy.addresses();
    let Unread { process, output, _folder } = proxy;
    drop(output);
    let statuses: Vec<_> = (0..3).map(|_| get(address, "/", &[]).status).collect();
    assert_eq!(statuses, [200, 429, 429]);
    stop(process);
}

/// Runs a command line under a terminal of its own, with `script` of util-linux.
fn in_a_terminal(line: &str) -> Option<Command> {
    let there = Command::new("script").arg("--version").output();
    if !there.is_ok_and(|told| told.status.success()) {
        eprintln!("skipped: there is no `script` (util-linux) to make a terminal with");
        return None;
    }
    let mut command = Command::new("script");
    command.args(["--quiet", "--flush", "--return", "--command", line, "/dev/null"]);
    command.env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::piped());
    Some(command)
}

#[test]
fn a_terminal_gets_lines_for_eyes() {
    let (folder, port) = (tempfile::tempdir().unwrap(), Port::hold());
    let file = folder.path().join("proxy.toml");
    for (format, pretty) in [("", true), ("format = \"json\"", false)] {
        let config = logging(format).on(&port).text().replace("LISTEN", "127.0.0.1:0");
        std::fs::write(&file, config).unwrap();
        let program = program().get_program().to_str().unwrap().to_owned();
        let line = format!("exec {program} run --config {}", file.display());
        let Some(mut terminal) = in_a_terminal(&line) else { return };
        let mut process = terminal.spawn().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut listening = String::new();
        while !listening.contains("listening") {
            listening.clear();
            assert!(output.read_line(&mut listening).unwrap() > 0, "it ended");
        }
        assert_eq!(listening.contains("\x1b[1mlistening\x1b[0m"), pretty, "{listening:?}");
        assert_eq!(serde_json::from_str::<Value>(listening.trim()).is_err(), pretty);
        let digits = listening.split("127.0.0.1:").nth(1).unwrap();
        let port: String = digits.chars().take_while(char::is_ascii_digit).collect();
        let address: SocketAddr = format!("127.0.0.1:{port}").parse().unwrap();
        assert_eq!(get(address, "/", &[]).status, 200);
        process.kill().unwrap();
        process.wait().unwrap();
        // With the terminal goes what ran in it, although a hangup means reload elsewhere.
        wait_until("the proxy ends", || TcpStream::connect(address).is_err());
    }
}
