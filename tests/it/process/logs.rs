//! What an operator reads.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::support::client::{Connection, get, raw};
use crate::support::metrics::Metrics;
use crate::support::port::Port;
use crate::support::proxy::Proxy;
use crate::support::tidegate::{Tidegate, program};
use crate::support::upstream::Upstream;
use crate::support::wait_until;

/// One token an hour for each address, and this `[log]`.
fn logging(log: &str) -> Proxy {
    Proxy::answering()
        .server("trusted_proxies = [\"127.0.0.1\"]")
        .admin()
        .section(&format!("[log]\n{log}"))
        .limit("client", "key = [\"ip\"]\nrate = \"1/h\"")
}

/// The file of a proxy that a test runs itself.
fn text(log: &str) -> String {
    logging(log).text().replace("LISTEN", "127.0.0.1:0")
}

fn from(address: SocketAddr, client: &str, path: &str) -> u16 {
    get(address, path, &[("x-forwarded-for", client)]).status
}

fn sum(lines: &[Value]) -> u64 {
    lines.iter().map(|line| line["count"].as_u64().unwrap()).sum()
}

/// The line without what differs from run to run; its fields' names in their order.
fn shape(text: &str, message: &str) -> (Value, Vec<String>) {
    let wanted = format!("\"message\":\"{message}\"");
    let line = text.lines().find(|line| line.contains(&wanted)).expect(message);
    let value: Value = serde_json::from_str(line).unwrap();
    let names = value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let mut names: Vec<_> =
        names.into_iter().map(|name| (line.find(&format!("\"{name}\":")).unwrap(), name)).collect();
    names.sort();
    (value, names.into_iter().map(|(_, name)| name).collect())
}

#[test]
fn a_line_is_flat_json_in_the_order_of_the_interface() {
    let mut proxy = logging("access = true").start();
    assert_eq!(from(proxy.address, "203.0.113.7", "/a?secret=1"), 200);
    assert_eq!(from(proxy.address, "203.0.113.7", "/b;v/%61?secret=1"), 429);
    assert_eq!(from(proxy.address, "203.0.113.7", "/c?secret=1"), 429);
    assert!(proxy.stop().success());
    let text = proxy.log.text();
    let (first, names) = shape(&text, "throttled");
    assert_eq!(
        names,
        [
            "timestamp",
            "level",
            "target",
            "message",
            "limit",
            "key",
            "route",
            "client",
            "method",
            "path",
            "decision",
            "retry_after_ms",
            "rate",
            "count"
        ]
    );
    let wait = first["retry_after_ms"].as_u64().unwrap();
    assert!((3_590_000..=3_600_000).contains(&wait), "{wait}");
    let mut expected = json!({
        "level": "WARN", "target": "tidegate::throttle", "message": "throttled",
        "limit": "client", "key": "203.0.113.7", "route": "/{*rest}", "client": "203.0.113.7",
        "method": "GET", "path": "/b/a", "decision": "rejected", "rate": "1/h", "count": 1,
        "retry_after_ms": first["retry_after_ms"], "timestamp": first["timestamp"],
    });
    assert_eq!(first, expected);
    let summary = proxy.log.with("throttled").pop().unwrap();
    expected["path"] = json!("/c");
    for field in ["timestamp", "retry_after_ms", "interval_ms"] {
        expected[field] = summary[field].clone();
    }
    assert!(summary["interval_ms"].is_u64());
    assert_eq!(summary, expected, "the last request's path, and the count since");
    let (access, names) = shape(&text, "request");
    assert_eq!(
        names,
        [
            "timestamp",
            "level",
            "target",
            "message",
            "method",
            "host",
            "path",
            "protocol",
            "status",
            "bytes",
            "duration_ms",
            "route",
            "client"
        ]
    );
    assert_eq!((&access["level"], &access["target"]), (&json!("INFO"), &json!("tidegate::access")));
    assert_eq!((&access["path"], &access["status"]), (&json!("/a"), &json!(200)));
    assert!(!text.contains("secret"), "no line has a query");
    for message in ["config loaded", "listening", "draining", "stopped"] {
        let line = proxy.log.find(message).expect(message);
        assert_eq!((&line["level"], &line["target"]), (&json!("INFO"), &json!("tidegate")));
    }
    assert_eq!(proxy.log.lines().len(), text.lines().count(), "every line is JSON");
}

/// An operator saw that a key was rejected, and had to look up in the file by which figures.
#[test]
fn a_throttle_line_has_the_figures_that_decided_and_the_name_of_the_key() {
    const LIMITS: &str = r#"
[limits.bucket]
key = ["header:x-key"]
rate = "2/h"
burst = 1
overrides = [
    { key = ["a"], rate = "3/d", burst = 1, name = "acme" },
    { key = ["s*"], rate = "1/h" },
]

[limits.month]
key = []
algorithm = "fixed-window"
align = "clock"
rate = "1/month"

[limits.slots]
key = []
algorithm = "concurrency"
limit = 1

[limits.never]
key = []
rate = "0/s"

[limits.tried]
key = []
rate = "unlimited"
candidate = { rate = "1/10m" }

[limits.log]
key = []
algorithm = "sliding-log"
rate = "1/90m"
mode = "shadow"
"#;
    let (api, begun, go) = Upstream::slow();
    let mut proxy = Proxy::to(&api).limits(LIMITS);
    for name in ["bucket", "month", "slots", "never", "tried", "log"] {
        let path = if name == "slots" { "slow" } else { name };
        proxy = proxy.route(&format!("path = \"/{path}\"\nlimits = [\"{name}\"]"));
    }
    let mut proxy = proxy.section("[log]\nthrottle = \"each\"").start();
    let mut slow = Connection::open(proxy.address);
    slow.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
    begun.recv().unwrap();
    for path in
        ["bucket", "bucket", "month", "month", "slow", "never", "tried", "tried", "log", "log"]
    {
        get(proxy.address, &format!("/{path}"), &[("x-key", "b")]);
    }
    for _ in 0..2 {
        get(proxy.address, "/bucket", &[("x-key", "a")]);
    }
    go.send(()).unwrap();
    assert_eq!(slow.reply("GET").status, 200);
    assert!(proxy.stop().success());
    let lines = proxy.log.with("throttled");
    let told: Vec<_> =
        lines.iter().map(|it| ["limit", "rate", "name"].map(|name| it[name].as_str())).collect();
    assert_eq!(
        told,
        [
            [Some("bucket"), Some("2/h"), None],
            [Some("month"), Some("1/month"), None],
            [Some("slots"), Some("1 at once"), None],
            [Some("never"), Some("0/s"), None],
            [Some("tried:candidate"), Some("1/10m"), None],
            [Some("log"), Some("1/90m"), None],
            [Some("bucket"), Some("3/d"), Some("acme")],
        ]
    );
}

/// The warnings stood as text for people on standard error, which a collector of logs takes for a crash.
#[test]
fn the_warnings_of_the_start_are_lines_of_the_log() {
    let route = "path = \"/\"\nlimits = [\"client\"]";
    let proxy = logging("").limit("unused", "key = []\nrate = \"1/s\"").route(route);
    let mut proxy = proxy.start();
    assert!(proxy.stop().success());
    let warnings = proxy.log.with("config warning");
    let told: Vec<_> = warnings.iter().map(|line| line["warning"].as_str().unwrap()).collect();
    assert!(told.iter().any(|it| it.contains("no route uses the limit \"unused\"")), "{told:?}");
    assert!(told.iter().all(|it| !it.contains("warning:")), "the message says it: {told:?}");
    assert!(warnings.iter().all(|line| line["level"] == "WARN"), "{warnings:?}");
    assert_eq!(proxy.log.lines().len(), proxy.log.text().lines().count(), "every line is JSON");
    assert_eq!(proxy.errors.text(), "");
}

#[test]
fn access_lines_name_the_server_and_strangers_no_route() {
    let api = Upstream::echoing();
    let mut proxy = Proxy::to(&api)
        .section("[log]\naccess = true")
        .limit("one", "rate = \"1/h\"")
        .route("name = \"a\"\npath = \"/a\"\nlimits = [\"one\"]")
        .start();
    for (path, status) in [("/a", 200), ("/b", 404), ("/%00", 400), ("/a", 429)] {
        assert_eq!(get(proxy.address, path, &[("user-agent", "curl")]).status, status);
    }
    assert!(raw(proxy.address, "GET /b HTTP/1.0\r\n\r\n").contains("404"));
    assert!(proxy.stop().success());
    let lines = proxy.log.with("request");
    let seen: Vec<_> = lines
        .iter()
        .map(|line| (line["status"].as_u64().unwrap(), line["route"].as_str().unwrap()))
        .collect();
    assert_eq!(seen, [(200, "a"), (404, "none"), (400, "none"), (429, "a"), (404, "none")]);
    assert_eq!(lines[4]["host"], "-");
    assert_eq!((&lines[0]["upstream"], lines[0].get("limit")), (&json!(api.url()), None));
    assert_eq!((lines[3].get("upstream"), &lines[3]["limit"]), (None, &json!("one")));
    assert_eq!([&lines[0]["user_agent"], &lines[0]["protocol"]], ["curl", "HTTP/1.1"]);
}

#[test]
fn ten_thousand_rejections_are_a_handful_of_lines() {
    let mut proxy = logging("summary_interval = \"500ms\"").start();
    let address = proxy.address;
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(move || {
                let mut client = Connection::open(address);
                (0..2_500).filter(|_| client.get("/", &[]).status == 429).count()
            })
        })
        .collect();
    let rejected: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(rejected, 9_999);
    assert_eq!(get(address, "/", &[]).status, 429);
    // The last summary comes by itself when the traffic has stopped.
    wait_until("all is told", || sum(&proxy.log.with("throttled")) == 10_000);
    let lines = proxy.log.with("throttled");
    let at = |line: &Value| line["timestamp"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let took = at(lines.last().unwrap()).duration_since(at(&lines[0])).as_millis();
    let most = 3 + took / 500;
    assert!(lines.len() <= usize::try_from(most).unwrap(), "{} lines in {took} ms", lines.len());
    assert_eq!(lines[0]["count"], 1);
    assert_eq!(lines[0].get("interval_ms"), None);
    assert!(lines[1..].iter().all(|line| line["interval_ms"].is_u64()));
    assert!(proxy.stop().success());
    assert_eq!(sum(&proxy.log.with("throttled")), 10_000, "and nothing is told twice");
}

#[test]
fn many_keys_are_a_hundred_lines_at_most() {
    let mut proxy = logging("summary_interval = \"1h\"").start();
    let mut client = Connection::open(proxy.address);
    for n in 0..400 {
        let address = format!("10.0.{}.{}", n / 200, n % 200);
        for status in [200, 429, 429] {
            assert_eq!(client.get("/", &[("x-forwarded-for", &address)]).status, status);
        }
    }
    assert!(proxy.stop().success());
    let lines = proxy.log.with("throttled");
    assert_eq!(sum(&lines), 800);
    let summaries: Vec<_> = lines.iter().filter(|line| line["interval_ms"].is_u64()).collect();
    assert!(summaries.len() <= 100 && lines.len() - summaries.len() <= 100, "{}", lines.len());
    let others: Vec<_> = lines.iter().filter(|line| line["key"] == "others").collect();
    assert_eq!(others.len(), 1);
    assert!(others[0]["keys"].as_u64().unwrap() >= 300, "{}", others[0]);
}

#[test]
fn each_rejection_or_none_has_its_line() {
    for (mode, expected) in [("each", 5), ("off", 0), ("summary", 2)] {
        let mut proxy = logging(&format!("throttle = \"{mode}\"")).start();
        for _ in 0..6 {
            get(proxy.address, "/", &[]);
        }
        assert!(proxy.stop().success());
        let lines = proxy.log.with("throttled");
        assert_eq!(lines.len(), expected, "{mode}");
        if mode == "each" {
            assert!(
                lines.iter().all(|line| line["count"] == 1 && line.get("interval_ms").is_none())
            );
        }
    }
}

#[test]
fn the_level_decides_and_changes_with_the_file() {
    let mut proxy = logging("access = true\nlevel = \"info\"").start();
    get(proxy.address, "/first", &[]);
    proxy.log.wait("request", |line| line["path"] == "/first");
    let quiet = text("access = true\nlevel = \"warn\"").replace("status = 200", "status = 204");
    std::fs::write(proxy.config_file(), quiet).unwrap();
    let mut client = 0;
    wait_until("the other file is in force", || {
        client += 1;
        from(proxy.address, &format!("10.0.{}.{}", client / 250, client % 250), "/") == 204
    });
    from(proxy.address, "203.0.113.7", "/second");
    from(proxy.address, "203.0.113.7", "/second");
    proxy.log.wait("throttled", |line| line["path"] == "/second");
    assert!(proxy.stop().success());
    assert!(!proxy.log.with("request").iter().any(|line| line["path"] == "/second"));
    assert_eq!(proxy.log.count("stopped"), 0);
}

#[test]
fn rust_log_wins() {
    // The file alone would keep even `listening` silent, for which the start waits.
    let mut proxy =
        Tidegate::start_with(&logging("level = \"off\"\naccess = true").text(), |command| {
            command.env("RUST_LOG", "info,tidegate::access=off");
        });
    get(proxy.address, "/", &[]);
    assert!(proxy.stop().success());
    assert_eq!((proxy.log.count("stopped"), proxy.log.count("request")), (1, 0));
}

#[test]
fn a_filter_that_is_none_is_told_by_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("proxy.toml");
    std::fs::write(&file, text("level = \"info,tidegate=loud\"")).unwrap();
    let mut command = program();
    command.arg("check").arg("--config").arg(&file);
    let told = command.output().unwrap();
    assert_eq!(told.status.code(), Some(2));
    let errors = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(errors.contains(":7:9"), "{errors}");
    std::fs::write(&file, text("")).unwrap();
    let mut command = program();
    command.arg("run").arg("--config").arg(&file).env("RUST_LOG", "warning");
    let told = command.output().unwrap();
    assert_eq!(told.status.code(), Some(2));
    let errors = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(errors.contains("RUST_LOG") && errors.contains("`warning`"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[test]
fn a_line_stays_a_line_whatever_a_client_sends() {
    let mut proxy = Proxy::answering()
        .section("[log]\nkeys = \"plain\"\naccess = true")
        .limit("user", "key = [\"header:x-user\"]\nrate = \"1/h\"")
        .start();
    let evil: &[(&str, &str)] = &[("x-user", "a\"},\t{\"b\\[2J|%}é")];
    for _ in 0..2 {
        Connection::open(proxy.address).get("/a\"b", evil);
        Connection::open(proxy.address).get("/%22%0A%1B[2J", evil);
    }
    assert!(proxy.stop().success());
    assert_eq!(proxy.log.lines().len(), proxy.log.text().lines().count());
    assert!(!proxy.log.text().contains('\u{1b}'));
}

#[test]
fn a_reader_that_stops_reading_blocks_no_request() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("proxy.toml");
    let text = text("access = true\nthrottle = \"each\"");
    std::fs::write(&file, text).unwrap();
    let mut command = program();
    command.arg("run").arg("--config").arg(&file).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = command.spawn().unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap());
    let mut addresses = HashMap::new();
    while addresses.len() < 2 {
        let mut line = String::new();
        assert!(output.read_line(&mut line).unwrap() > 0);
        let line: Value = serde_json::from_str(&line).unwrap();
        if let Some(address) = line["address"].as_str() {
            let message = line["message"].as_str().unwrap().to_owned();
            addresses.insert(message, address.parse::<SocketAddr>().unwrap());
        }
    }
    // Nobody reads from here on. Each request has two lines with this path: more than all buffers.
    let path = format!("/{}", "x".repeat(8_000));
    let mut client = Connection::open(addresses["listening"]);
    let rejected = (0..1_000).filter(|_| client.get(&path, &[]).status == 429).count();
    assert_eq!(rejected, 999, "every request is answered");
    let metrics = Metrics::of(addresses["admin listening"]);
    let dropped = metrics.value("tidegate_log_dropped_total");
    assert!(dropped > 0.0, "what does not fit is dropped and counted");
    // Somebody reads again: what waited comes, and how many lines do not.
    let seen: Arc<AtomicU64> = Arc::default();
    let counted = seen.clone();
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
    let stopped = Command::new("kill").arg(process.id().to_string()).status().unwrap();
    assert!(stopped.success() && process.wait().unwrap().success());
    reader.join().unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 1_999, "and none twice");
}

#[test]
fn a_reader_that_leaves_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("proxy.toml");
    std::fs::write(&file, text("access = true")).unwrap();
    let mut command = program();
    command.arg("run").arg("--config").arg(&file).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = command.spawn().unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap());
    let address: SocketAddr = loop {
        let mut line = String::new();
        assert!(output.read_line(&mut line).unwrap() > 0);
        let line: Value = serde_json::from_str(&line).unwrap();
        if line["message"] == "listening" {
            break line["address"].as_str().unwrap().parse().unwrap();
        }
    };
    drop(output);
    let statuses: Vec<_> = (0..3).map(|_| get(address, "/", &[]).status).collect();
    assert_eq!(statuses, [200, 429, 429]);
    let stopped = Command::new("kill").arg(process.id().to_string()).status().unwrap();
    assert!(stopped.success() && process.wait().unwrap().success());
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
