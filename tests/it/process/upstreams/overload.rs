//! An upstream that is full: whose turn it is, how the others are refused, and the limit that finds itself.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::several_servers::bare;
use crate::support::client::{Connection, get};
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

const GOAL: &str = "max_requests = { slower_than = \"20ms\" }";

/// An API whose answers wait until they may go. The path of each request that has come is told.
fn held() -> (Upstream, Receiver<String>, Sender<()>) {
    let ((come, comes), (go, goes)) = (channel(), channel::<()>());
    let (come, goes) = (Mutex::new(come), Mutex::new(goes));
    let api = Upstream::answering(move |request| {
        come.lock().unwrap().send(request.path().to_owned()).unwrap();
        let _ = goes.lock().unwrap().recv();
        ok("served")
    });
    (api, comes, go)
}

fn route(path: &str, lines: &str) -> String {
    format!("[[routes]]\npath = \"{path}\"\nupstream = \"api\"\n{lines}\n")
}

fn status(proxy: &Tidegate) -> Value {
    let status = get(proxy.admin(), "/api/status", &[("host", "localhost")]).json();
    status["upstreams"][0]["overload"].clone()
}

#[test]
fn high_goes_before_low_and_keys_take_turns() {
    let (api, comes, go) = held();
    let upstream = "max_requests = 1\nqueue_timeout = \"1h\"\nshare_by = [\"header:x-tenant\"]";
    let routes = route("/low", "priority = \"low\"") + &route("/high", "priority = \"high\"");
    let proxy = Proxy::to(&api).admin().upstream(upstream).section(&routes).start();
    let send = |path: &str, tenant: &str, waiting: u64| {
        let mut client = Connection::open(proxy.address);
        client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\nx-tenant: {tenant}\r\n\r\n"));
        wait_until("it waits", || {
            let it = status(&proxy);
            it["waiting"]["low"].as_u64().unwrap() + it["waiting"]["high"].as_u64().unwrap()
                == waiting
        });
        client
    };
    let mut clients = vec![send("/low?0", "a", 0)];
    assert_eq!(comes.recv().unwrap(), "/low?0");
    for (number, (path, tenant)) in
        [("/low?1", "a"), ("/low?2", "a"), ("/low?3", "b"), ("/high?4", "a")].iter().enumerate()
    {
        clients.push(send(path, tenant, number as u64 + 1));
    }
    let next = || {
        go.send(()).unwrap();
        comes.recv().unwrap()
    };
    assert_eq!(next(), "/high?4");
    assert_eq!(next(), "/low?3", "the other key has used nothing");
    assert_eq!([next(), next()], ["/low?1", "/low?2"]);
    go.send(()).unwrap();
}

/// Sends requests from several clients until the log has a line.
fn flood(proxy: &Tidegate, line: &str) -> Value {
    /// Ends the clients, also if the line does not come.
    struct End<'f>(&'f AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = End(is_over);
        for _ in 0..16 {
            scope.spawn(move || {
                let mut client = Connection::open(proxy.address);
                while !is_over.load(Ordering::Relaxed) {
                    client.get("/", &[]);
                }
            });
        }
        proxy.log.wait(line, |_| true)
    })
}

fn slow() -> Upstream {
    Upstream::answering(|_| {
        thread::sleep(Duration::from_millis(50));
        ok("slow")
    })
}

#[test]
fn an_api_that_is_too_slow_gets_a_limit_and_the_rest_a_503() {
    let api = slow();
    let proxy = Proxy::to(&api).admin().upstream(GOAL).start();
    assert_eq!(status(&proxy)["limit"], Value::Null);
    let began = flood(&proxy, "overload began");
    assert_eq!((&began["upstream"], &began["mode"]), (&"api".into(), &"enforce".into()), "{began}");
    assert_eq!((&began["goal_ms"], &began["slow_percent"]), (&20.into(), &100.into()), "{began}");
    let it = status(&proxy);
    assert!(it["limit"].as_u64().unwrap() >= 2, "{it}");
    assert!(it["since"].is_string(), "{it}");
    let kinds = "tidegate_upstream_limit_changes_total{upstream=\"api\",kind=\"first\"}";
    assert_eq!(Metrics::of(proxy.admin()).value(kinds), 1.0);
}

#[test]
fn in_shadow_nobody_is_held_or_refused() {
    let api = slow();
    let goal = "max_requests = { slower_than = \"20ms\", mode = \"shadow\" }";
    let proxy = Proxy::to(&api).admin().upstream(goal).start();
    assert_eq!(flood(&proxy, "overload began")["mode"], "shadow");
    let metrics = Metrics::of(proxy.admin());
    for reason in ["full", "waited"] {
        let labels = format!("upstream=\"api\",priority=\"normal\",reason=\"{reason}\"");
        assert_eq!(metrics.value(&format!("tidegate_upstream_refused_total{{{labels}}}")), 0.0);
    }
}

/// Two proxies in a row must not add up: what the second one refuses says nothing about the API's speed.
#[test]
fn the_refusal_of_another_tidegate_is_no_slow_answer_and_no_pause() {
    let refusal = "tidegate-overload: 1\r\nretry-after: 30\r\n";
    let api = Upstream::answering(move |_| bare("503 Service Unavailable", refusal));
    let upstream = format!("{GOAL}\nrespect_retry_after = true");
    let proxy = Proxy::to(&api).admin().upstream(&upstream).start();
    let mut client = Connection::open(proxy.address);
    for _ in 0..300 {
        let reply = client.get("/", &[]);
        assert_eq!((reply.status, reply.header("tidegate-overload").as_deref()), (503, Some("1")));
    }
    assert_eq!(status(&proxy)["limit"], Value::Null);
    assert_eq!(api.requests().len(), 300, "no server was set aside");
}

#[test]
fn a_grpc_call_is_refused_as_unavailable_with_a_pushback() {
    let (api, comes, go) = held();
    let proxy = Proxy::to(&api).upstream("max_requests = 1\nqueue_timeout = \"0s\"").start();
    let mut first = Connection::open(proxy.address);
    first.send("GET /first HTTP/1.1\r\nhost: a\r\n\r\n");
    comes.recv().unwrap();
    let fields = [("content-type", "application/grpc")];
    let reply = Connection::open(proxy.address).request("POST", "/", &fields, b"");
    let field = |name: &str| reply.header(name).unwrap_or_default();
    assert_eq!((reply.status, field("grpc-status")), (200, "14".to_owned()));
    assert_eq!(field("grpc-retry-pushback-ms"), "30000");
    assert_eq!(field("tidegate-overload"), "1");
    go.send(()).unwrap();
}

/// With a goal a place is held until the head has come: a stream's life is no load.
#[test]
fn the_page_shows_what_holds_a_place() {
    let (api, comes, go) = held();
    let proxy = Proxy::to(&api).admin().upstream(GOAL).start();
    let mut client = Connection::open(proxy.address);
    client.send("GET /one HTTP/1.1\r\nhost: a\r\n\r\n");
    comes.recv().unwrap();
    let it = status(&proxy);
    assert_eq!(
        (&it["in_flight"], &it["goal_ms"], &it["goal_times"]),
        (&1.into(), &20.into(), &1.into())
    );
    assert_eq!(it["waiting"], json!({ "high": 0, "normal": 0, "low": 0 }));
    go.send(()).unwrap();
    client.reply("GET");
    wait_until("the place is free", || status(&proxy)["in_flight"] == 0);
}
