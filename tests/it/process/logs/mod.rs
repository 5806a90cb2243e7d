//! What an operator reads.

mod failures;
mod readers;
mod refused;
mod throttled;

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::support::client::{Connection, get, raw};
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

/// The first line with this message, and its fields' names in their order.
fn shape(text: &str, message: &str) -> (Value, String) {
    let wanted = format!("\"message\":\"{message}\"");
    let line = text.lines().find(|line| line.contains(&wanted)).expect(message);
    let value: Value = serde_json::from_str(line).unwrap();
    let mut names: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_by_key(|name| line.find(&format!("\"{name}\":")).unwrap());
    let names = names.join(" ");
    (value, names)
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
        "timestamp level target message limit key route client method path decision retry_after_ms rate id count"
    );
    let wait = first["retry_after_ms"].as_u64().unwrap();
    assert!((3_590_000..=3_600_000).contains(&wait), "{wait}");
    let mut expected = json!({
        "level": "WARN", "target": "tidegate::throttle", "message": "throttled",
        "limit": "client", "key": "203.0.113.7", "route": "/{*rest}", "client": "203.0.113.7",
        "method": "GET", "path": "/b/a", "decision": "rejected", "rate": "1/h", "count": 1,
        "retry_after_ms": first["retry_after_ms"], "timestamp": first["timestamp"],
        "id": first["id"],
    });
    assert_eq!(first, expected);
    let summary = proxy.log.with("throttled").pop().unwrap();
    expected["path"] = json!("/c");
    assert_ne!(summary["id"], expected["id"]);
    for field in ["timestamp", "retry_after_ms", "interval_ms", "id"] {
        expected[field] = summary[field].clone();
    }
    assert!(summary["interval_ms"].is_u64());
    assert_eq!(summary, expected, "the last request's path, and the count since");
    let (access, names) = shape(&text, "request");
    assert_eq!(
        names,
        "timestamp level target message method host path protocol status bytes duration_ms route client process n keys costs"
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
    let errors = |command: &str, log: &str, variable: &str| {
        std::fs::write(&file, text(log)).unwrap();
        let mut program = program();
        program.arg(command).arg("--config").arg(&file).env("RUST_LOG", variable);
        let told = program.output().unwrap();
        assert_eq!(told.status.code(), Some(2));
        String::from_utf8_lossy(&told.stderr).into_owned()
    };
    let of_file = errors("check", "level = \"info,tidegate=loud\"", "info");
    assert!(of_file.contains(":7:9"), "{of_file}");
    let of_variable = errors("run", "", "warning");
    assert!(of_variable.contains("RUST_LOG") && of_variable.contains("`warning`"), "{of_variable}");
    assert_eq!(of_variable.lines().count(), 1, "{of_variable}");
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
