//! What an operator reads of trouble in the log: what happened, and how often.

use std::io::{BufReader, Write as _};

use serde_json::json;

use crate::support::client::{Connection, get};
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::upstream::{Upstream, nobody, read_request};

/// An API that sends part of an answer, and then breaks off or says no more.
fn half(closes: bool) -> Upstream {
    Upstream::raw(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while read_request(&mut reader).is_some() {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf");
            if closes {
                return;
            }
        }
    })
}

/// Clients got half of an answer with a 200, and the log said nothing.
#[test]
fn an_answer_that_breaks_off_is_told() {
    for (closes, said) in [
        (
            true,
            "broke off: error reading a body from connection: end of file before message length reached",
        ),
        (false, "no more of the answer from http://127.0.0.1:"),
    ] {
        let api = half(closes);
        let proxy = Proxy::of_one_worker(&api).upstream("idle_timeout = \"50ms\"").start();
        let mut client = Connection::open(proxy.address);
        client.send("GET /file HTTP/1.1\r\nhost: a\r\n\r\n");
        assert!(client.rest().ends_with(b"\r\n\r\nhalf"));
        let line = proxy.log.wait("upstream failed", |line| line["route"] == "/{*rest}");
        assert_eq!((&line["level"], &line["upstream"]), (&json!("WARN"), &json!("api")));
        assert_eq!(line["server"], api.url());
        let error = line["error"].as_str().unwrap();
        assert!(error.contains(said) && error.contains(&api.url()), "{error}");
    }
}

#[test]
fn a_client_that_leaves_an_answer_is_no_fault_of_the_api() {
    let (api, left) = Upstream::endless();
    let mut proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    client.send("GET /file HTTP/1.1\r\nhost: a\r\n\r\n");
    client.exactly(1_000);
    drop(client);
    left.recv().unwrap();
    assert_eq!(proxy.stop().code(), Some(0));
    assert_eq!(proxy.log.count("upstream failed"), 0);
}

/// Each request to an API that was away had a log line of its own; and then only the first of a crowd was
/// told, unless the next one came after a pause.
#[test]
fn an_api_that_is_away_is_counted_and_fills_no_log() {
    let url = nobody();
    let mut proxy = Proxy::of_one_worker(&url).start();
    for _ in 0..20 {
        assert_eq!(get(proxy.address, "/", &[]).status, 502);
    }
    assert_eq!(proxy.stop().code(), Some(0));
    let lines = proxy.log.with("upstream failed");
    // More than two where the machine took longer than the pause between two lines.
    assert!(lines.len() < 5, "{lines:?}");
    let counts = lines.iter().map(|line| line["count"].as_u64().unwrap());
    assert_eq!(counts.sum::<u64>(), 20, "{lines:?}");
    let down = proxy.log.find("server down").unwrap();
    assert_eq!((&down["level"], &down["upstream"]), (&json!("WARN"), &json!("api")));
    assert_eq!(down["server"], url);
    let down = proxy.log.with("upstream down");
    assert_eq!(down.len(), 1, "{down:?}");
    assert_eq!((&down[0]["level"], &down[0]["upstream"]), (&json!("ERROR"), &json!("api")));
}

/// New clients waited while one held all connections, and the log said nothing.
#[test]
fn as_many_connections_as_may_be_are_told() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).server("max_connections = 2").start();
    let _holding = [0, 1].map(|_| {
        let mut client = Connection::open(proxy.address);
        assert_eq!(client.get("/", &[]).status, 200);
        client
    });
    assert_eq!(proxy.log.count("connections full"), 0);
    let _waiting = [0, 1, 2].map(|_| Connection::open(proxy.address));
    let line = proxy.log.wait("connections full", |line| line["open"] == 2);
    assert_eq!(line["level"], "WARN");
    assert!(line["help"].as_str().unwrap().contains("max_connections"));
}

/// `config loaded` named the address alone, and another line named a socket by its path.
#[test]
fn a_store_is_named_by_its_url_without_the_login() {
    for (url, name) in [
        ("memory:", "memory:"),
        ("redis://user:secret@127.0.0.1:1/3", "redis://127.0.0.1:1/3"),
        ("rediss://:secret@127.0.0.1:1", "rediss://127.0.0.1:1"),
        ("redis+unix:///none?pass=secret&db=2", "redis+unix:///none?db=2"),
        ("redis-sentinel://:secret@127.0.0.1:1/main", "redis-sentinel://127.0.0.1:1/main"),
        ("rediss-cluster://:secret@127.0.0.1:1,[::1]:2", "rediss-cluster://127.0.0.1:1,[::1]:2"),
    ] {
        let proxy = Proxy::answering().store(&format!("url = \"{url}\"")).admin().start();
        assert_eq!(proxy.log.wait("config loaded", |_| true)["store"], name);
        let status = get(proxy.admin(), "/api/status", &[("host", "localhost")]).json();
        assert_eq!(status["store"]["location"], name);
        if url != "memory:" {
            assert_eq!(proxy.log.wait("store unavailable", |_| true)["server"], name);
        }
        assert!(!proxy.log.text().contains("secret"), "{}", proxy.log.text());
    }
}

/// From the log nobody could tell how many requests an outage had met, and what became of them.
#[test]
fn an_outage_of_redis_says_whom_it_met_and_what_to_do() {
    let (api, mut redis) = (Upstream::echoing(), RedisServer::start());
    let proxy = Proxy::of_one_worker(&api)
        .store(&format!("url = \"{}\"", redis.url()))
        .limit("open", "rate = \"1000/h\"")
        .limit("strict", "rate = \"1000/h\"\non_store_error = \"reject\"")
        .route("path = \"/\"\nlimits = [\"open\"]")
        .route("path = \"/strict\"\nlimits = [\"open\", \"strict\"]")
        .admin()
        .start();
    let ask = |path| (0..7).map(|_| get(proxy.address, path, &[]).status).collect::<Vec<_>>();
    assert_eq!(get(proxy.address, "/strict", &[]).status, 200, "Redis is there");
    let questions = || Metrics::of(proxy.admin()).value("tidegate_store_duration_seconds_count");
    assert_eq!(questions(), 1.0);
    redis.kill();
    assert_eq!(["/", "/strict"].map(ask), [[200; 7], [503; 7]]);
    assert_eq!(questions(), 1.0, "Redis has answered none of these");
    proxy.log.wait("store unavailable", |line| {
        line["meanwhile"] == "limit open counts in this process alone; limit strict answers 503"
    });
    redis.restart_with(&["--requirepass", "new"]);
    let line = proxy.log.wait("store still unavailable", |line| line["help"].is_string());
    assert_eq!(line["error"], "NOAUTH Authentication required.");
    redis.restart_with(&[]);
    proxy.log.wait("store recovered", |_| true);
    // Some may have been told of before Redis counted as away.
    let told = |field: &str| {
        let lines = proxy.log.lines();
        lines.iter().filter_map(|line| line[field].as_u64()).sum::<u64>()
    };
    assert_eq!([told("decided"), told("refused")], [7, 7], "{}", proxy.log.text());
}
