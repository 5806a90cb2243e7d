//! What a process says of its servers while no request comes.

use std::io::Read as _;
use std::net::TcpListener;
use std::sync::mpsc::channel;

use crate::support::client::get;
use crate::support::metrics::Metrics;
use crate::support::port::Port;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::{Upstream, nobody, nobody_accepts, ok, read_request};
use crate::support::wait_until;

/// What the endpoint says of the upstream's first server.
fn is_up(proxy: &Tidegate) -> bool {
    let status = get(proxy.admin(), "/api/status", &[("host", "localhost")]).json();
    let server = status["upstreams"][0]["servers"][0].clone();
    let url = server["url"].as_str().unwrap();
    let metric = format!("tidegate_upstream_up{{upstream=\"api\",server=\"{url}\"}}");
    let metric = Metrics::of(proxy.admin()).value(&metric);
    assert_eq!(server["up"] == true, metric == 1.0, "{server}");
    assert_eq!(server["requests_total"], 0, "{server}");
    server["up"] == true
}

/// A proxy in front of an API that was away said nothing until the first client had a 502.
#[test]
fn a_start_without_requests_notices_that_the_api_is_away() {
    let deaf = nobody_accepts();
    let silent = format!("http://{}", deaf.address);
    for (url, upstream) in [
        (nobody(), ""),
        (nobody().replace("http:", "h2c:"), ""),
        (nobody().replace("http:", "https:"), ""),
        ("unix:/nowhere/api.sock".to_owned(), ""),
        (silent, ""),
        (nobody(), "health = { path = \"/\" }"),
    ] {
        let proxy = Proxy::to(&url).upstream(upstream).admin().start();
        let line = proxy.log.wait("server down", |line| line["server"] == *url);
        assert!(line["error"].as_str().unwrap().contains(&url), "{line}");
        proxy.log.wait("upstream down", |line| line["upstream"] == "api");
        assert!(!is_up(&proxy), "{url}");
        assert_eq!(proxy.log.count("upstream failed"), 0, "nobody has asked");
    }
}

#[test]
fn one_server_that_is_away_is_told_and_the_other_is_asked_for_nothing() {
    let (tell, told) = channel();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let api = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut all = Vec::new();
            tell.send(stream.read_to_end(&mut all).map(|_| all)).unwrap();
        }
    });
    let away = nobody();
    let proxy = Proxy::to(&api).and(&away).admin().start();
    proxy.log.wait("server down", |line| line["server"] == *away);
    assert_eq!(told.recv().unwrap().unwrap(), b"", "a connection, without a request, and closed");
    assert!(is_up(&proxy));
    proxy.reload(&Proxy::to(&api).and(&away).admin().server("idle_timeout = \"9s\"").text());
    assert!(told.try_recv().is_err(), "an upstream that stays is not tried again");
    assert_eq!((proxy.log.count("server down"), proxy.log.count("upstream down")), (1, 0));
}

/// A server that serves one connection after the other hung on a connection that was kept for later.
#[test]
fn a_server_of_one_connection_at_a_time_is_not_held_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut reader = std::io::BufReader::new(stream.try_clone().unwrap());
            if read_request(&mut reader).is_some() {
                let _ = std::io::Write::write_all(&mut stream, &ok("one"));
            }
        }
    });
    let proxy = Proxy::to(&url).server("workers = 2").start();
    for _ in 0..8 {
        assert_eq!(get(proxy.address, "/", &[]).text(), "one");
    }
}

#[test]
fn a_server_that_comes_back_is_noticed_without_a_request() {
    let port = Port::hold();
    let url = format!("http://{}", port.address);
    let proxy = Proxy::to(&url).admin().start();
    proxy.log.wait("upstream down", |_| true);
    let _api = Upstream::on(TcpListener::bind(port.address).unwrap(), |_| {});
    proxy.log.wait("server up", |line| line["server"] == *url);
    assert!(is_up(&proxy));
}

#[test]
fn an_upstream_that_a_reload_brings_is_tried_too() {
    let api = Upstream::echoing();
    let proxy = Proxy::to(&api).admin().start();
    let away = nobody();
    proxy.reload(&Proxy::to(&away).admin().text());
    proxy.log.wait("server down", |line| line["server"] == *away);
    wait_until("the endpoint says so", || !is_up(&proxy));
}
