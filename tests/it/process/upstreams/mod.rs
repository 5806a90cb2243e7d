//! Servers that refuse, break, or have closed what was kept.

mod addresses;
mod answers;
mod authenticated_connections;
mod faults;
mod h2c;
mod h2c_breaks;
mod h2c_costs;
mod h2c_ends;
mod https;
mod large_heads;
mod on_abort;
mod overload;
mod peers;
mod ports;
mod several_servers;
mod shares;
mod silent;

use std::io::{BufReader, Write as _};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};

use crate::support::PATIENCE;
use crate::support::client::{Connection, get};
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::{Upstream, nobody, nobody_accepts, ok, read_head, read_request};

fn with_servers(urls: &[String], upstream: &str) -> Tidegate {
    let proxy = Proxy::of_one_worker(&urls[0]).upstream(upstream);
    urls[1..].iter().fold(proxy, |proxy, url| proxy.and(url)).start()
}

#[test]
fn a_server_that_refuses_or_does_not_take_the_connection_makes_way_for_the_next() {
    let api = Upstream::echoing();
    let deaf = nobody_accepts();
    let urls = [nobody(), api.url(), nobody(), format!("http://{}", deaf.address)];
    let proxy = with_servers(&urls, "balance = \"round-robin\"\nconnect_timeout = \"100ms\"");
    let mut client = Connection::open(proxy.address);
    for n in 0..9 {
        let (method, body) = if n % 2 == 0 { ("GET", &b""[..]) } else { ("POST", &b"hi"[..]) };
        assert_eq!(client.request(method, "/", &[], body).status, 200);
    }
    assert_eq!(api.requests().len(), 9);
}

#[test]
fn no_server_at_all_is_a_502_that_is_told() {
    let url = nobody();
    let mut proxy = Proxy::of_one_worker(&url).start();
    let mut client = Connection::open(proxy.address);
    let reply = client.get("/", &[]);
    assert_eq!(reply.status, 502);
    assert_eq!(reply.header("content-type").as_deref(), Some("application/problem+json"));
    assert_eq!(reply.json()["status"], 502);
    for inner in [&url, "127.0.0.1", "refused", "hyper", "os error"] {
        assert!(!reply.text().contains(inner), "{inner} in {}", reply.text());
    }
    assert_eq!(client.get("/", &[]).status, 502, "the connection is kept");
    let reply = client.request("HEAD", "/", &[], b"");
    assert_eq!((reply.status, reply.body.len()), (502, 0));
    let reply = client.request("POST", "/", &[], b"hi");
    assert_eq!(reply.status, 502);
    proxy.stop();
    let said = proxy.log.text();
    assert!(said.contains(&format!("cannot connect to {url}")), "{said}");
    assert!(said.contains("refused"), "{said}");
    assert!(said.contains("\"route\":\"/{*rest}\""), "{said}");
}

#[test]
fn a_kept_connection_that_the_server_closed_is_not_used() {
    let (tell, closed) = channel();
    let api = Upstream::raw(move |mut stream| {
        let got = read_request(&mut BufReader::new(&stream));
        let _ = stream.write_all(&ok(got.unwrap().path()));
        drop(stream);
        let _ = tell.send(());
    });
    let proxy = Proxy::of_one_worker(&api).upstream("retries = 0").start();
    let mut client = Connection::open(proxy.address);
    for n in 0..20 {
        let method = if n % 2 == 0 { "GET" } else { "POST" };
        let body: &[u8] = if n % 2 == 0 { b"" } else { b"hi" };
        let reply = client.request(method, &format!("/{n}"), &[], body);
        assert_eq!((reply.status, reply.text()), (200, format!("/{n}")), "{method}");
        closed.recv_timeout(PATIENCE).unwrap();
        // Whoever accepts another connection has been told of that end too.
        assert_eq!(get(proxy.address, "/%2f", &[]).status, 400);
    }
}

#[test]
fn what_met_a_closing_connection_is_sent_again_if_safe() {
    for (method, body, retries, status) in [
        ("GET", &b""[..], 1, 200),
        ("HEAD", b"", 1, 200),
        ("DELETE", b"", 1, 200),
        ("PUT", b"", 1, 200),
        ("OPTIONS", b"", 1, 200),
        ("QUERY", b"", 1, 200),
        ("PROPFIND", b"", 1, 200),
        ("REPORT", b"", 1, 200),
        ("SEARCH", b"", 1, 200),
        ("PUT", b"hi", 1, 502),
        ("GET", b"hi", 1, 502),
        ("QUERY", b"hi", 1, 502),
        ("MOVE", b"", 1, 502),
        ("LOCK", b"", 1, 502),
        ("POST", b"", 1, 502),
        ("PATCH", b"", 1, 502),
        ("POST", b"hi", 1, 502),
        ("GET", b"", 0, 502),
    ] {
        // Closes on the second request of a connection, when it has read it.
        let api = Upstream::answering(|got| if got.earlier == 0 { ok("") } else { Vec::new() });
        let proxy = Proxy::of_one_worker(&api).upstream(&format!("retries = {retries}")).start();
        let mut client = Connection::open(proxy.address);
        assert_eq!(client.get("/first", &[]).status, 200);
        assert_eq!(client.request(method, "/", &[], body).status, status, "{method} {body:?}");
        let tries = api.requests().iter().filter(|got| got.path() == "/").count();
        assert_eq!(tries, if status == 200 { 2 } else { 1 }, "{method} {body:?}");
    }
}

#[test]
fn a_server_that_was_started_again_costs_no_request() {
    let together = Arc::new(Barrier::new(3));
    let api = Upstream::answering(move |got| match got.earlier {
        0 => {
            if got.path() == "/together" {
                together.wait();
            }
            ok("")
        }
        _ => Vec::new(),
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut clients = [0, 1, 2].map(|_| Connection::open(proxy.address));
    for client in &mut clients {
        client.send("GET /together HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    for client in &mut clients {
        assert_eq!(client.reply("GET").status, 200);
    }
    // Three kept connections, all of them bad, and one retry.
    for _ in 0..3 {
        assert_eq!(clients[0].get("/", &[]).status, 200);
    }
}

/// A regression: a server that closed each idle connection at the moment of its next use was taken for an overloaded one,
/// and some of 150 requests failed.
#[test]
fn a_kept_connection_that_closes_when_it_is_used_again_costs_nothing_of_the_budget() {
    let api = Upstream::answering(|got| if got.earlier == 0 { ok("") } else { Vec::new() });
    let proxy = Proxy::of_one_worker(&api).admin().start();
    let mut client = Connection::open(proxy.address);
    for n in 0..150 {
        assert_eq!(client.get("/", &[]).status, 200, "{n}");
    }
    let retried = "tidegate_upstream_retries_total{upstream=\"api\"}";
    assert_eq!(Metrics::of(proxy.admin()).value(retried), 149.0);
}

/// A regression: two addresses, with good answers of their own between, had healthy servers set aside 63 times in 1.5 s.
#[test]
fn two_clients_whose_requests_break_leave_the_servers_to_ten_others() {
    let servers = [0, 1]
        .map(|_| Upstream::answering(|got| if got.path() == "/" { ok("") } else { Vec::new() }));
    let mut proxy = with_servers(&servers.each_ref().map(Upstream::url), "retries = 0");
    let at = |number| Connection::open_from([127, 0, 0, number], proxy.address);
    let (mut others, mut breaking) =
        ([11, 12, 13, 14, 15, 16, 17, 18, 19, 20].map(at), [2, 3].map(at));
    for _ in 0..5 {
        for client in others.iter_mut().chain(&mut breaking) {
            (0..4).for_each(|_| assert_eq!(client.get("/", &[]).status, 200));
        }
        for _ in 0..4 {
            for client in &mut breaking {
                assert_eq!(client.request("POST", "/crash", &[], b"").status, 502);
            }
        }
    }
    proxy.stop();
    assert!(proxy.log.find("server down").is_none(), "{}", proxy.log.text());
}

#[test]
fn a_server_that_always_breaks_uses_up_its_retries() {
    for (retries, method, tries) in [(0, "GET", 1), (1, "GET", 2), (3, "GET", 4), (3, "POST", 1)] {
        let api = Upstream::answering(|_| Vec::new());
        let proxy = Proxy::of_one_worker(&api).upstream(&format!("retries = {retries}"));
        let proxy = proxy.admin().start();
        let mut client = Connection::open(proxy.address);
        assert_eq!(client.request(method, "/", &[], b"").status, 502);
        assert_eq!(api.requests().len(), tries, "{method} {retries}");
        let retried = "tidegate_upstream_retries_total{upstream=\"api\"}";
        assert_eq!(Metrics::of(proxy.admin()).value(retried), (tries - 1) as f64);
    }
}

#[test]
fn a_connection_with_half_a_request_on_it_is_not_used_again() {
    let (tell, told) = channel();
    let api = Upstream::raw(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(got) = read_head(&mut reader) {
            tell.send(got.line).unwrap();
            if stream.write_all(&ok("early")).is_err() {
                return;
            }
        }
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    client.send("POST /upload HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\nhalf");
    // The answer comes whole although the client is still sending.
    assert_eq!(client.reply("POST").text(), "early");
    let _ = client.stream.write_all(&[b'x'; 500]);
    assert!(client.is_closed());
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.get("/next", &[]).text(), "early");
    let lines: Vec<_> = [(); 2].map(|()| told.recv_timeout(PATIENCE).unwrap()).into();
    assert_eq!(lines, ["POST /upload HTTP/1.1", "GET /next HTTP/1.1"]);
}
