//! `max_connections_per_client`.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use crate::support::client::Connection;
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::wait_until;

/// Whether a client may have one more connection. The connection that it got.
fn one_more(address: SocketAddr) -> Option<TcpStream> {
    from([127, 0, 0, 1], address)
}

/// The same, from this address.
fn from(client: [u8; 4], address: SocketAddr) -> Option<TcpStream> {
    let mut stream = Connection::open_from(client, address).stream;
    // It may be closed before the request is written.
    let _ = stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let served = matches!(stream.read(&mut [0; 4096]), Ok(1..));
    served.then_some(stream)
}

fn proxy(server: &str) -> Proxy {
    Proxy::answering().server(server)
}

#[test]
fn a_client_has_so_many_connections_and_another_one_its_own() {
    let mut proxy = proxy("max_connections_per_client = 2").admin().start();
    let address = proxy.address;
    let (first, _second) = (one_more(address).unwrap(), one_more(address).unwrap());
    assert!(one_more(address).is_none());
    assert!(one_more(address).is_none());
    let _other = from([127, 0, 0, 2], address).expect("another client");
    drop(first);
    let mut third = None;
    wait_until("a place is free again", || {
        third = one_more(address);
        third.is_some()
    });
    assert!(one_more(address).is_none());
    let refused = Metrics::of(proxy.admin()).value("tidegate_refused_connections_total");
    assert!(refused >= 3.0, "{refused}");
    proxy.stop();
    let lines = proxy.log.with("connections refused");
    let told: u64 = lines.iter().map(|line| line["count"].as_u64().unwrap()).sum();
    assert_eq!(told as f64, refused, "{lines:?}");
    assert!(lines.len() <= 2, "{lines:?}");
    assert!(lines.iter().all(|line| line["client"] == "127.0.0.1" && line["level"] == "WARN"));
}

#[test]
fn a_reload_counts_for_new_connections() {
    let proxy_of = |most: &str| proxy(&format!("{most}\nworkers = 1"));
    let running: Tidegate = proxy_of("").start();
    let address = running.address;
    // Those that came without the setting are not counted.
    let mut before = [(); 3].map(|()| Connection::open(address));
    before.iter_mut().for_each(|client| assert_eq!(client.get("/", &[]).status, 200));
    running.reload(&proxy_of("max_connections_per_client = 1").text());
    let _one = one_more(address).unwrap();
    assert!(one_more(address).is_none());
    assert!(before.iter_mut().all(|client| client.get("/", &[]).status == 200));
    running.reload(&proxy_of("max_connections_per_client = 2").text());
    let _two = one_more(address).unwrap();
    assert!(one_more(address).is_none());
    running.reload(&proxy_of("").text());
    assert!(one_more(address).is_some());
}

/// A load balancer's connections are those of all its clients.
#[test]
fn a_trusted_proxy_is_not_counted() {
    let server = "max_connections_per_client = 1\ntrusted_proxies = [\"127.0.0.3\"]";
    let proxy = proxy(server).start();
    let _trusted: Vec<_> = (0..3).map(|_| from([127, 0, 0, 3], proxy.address).unwrap()).collect();
    let _stranger = one_more(proxy.address).unwrap();
    assert!(one_more(proxy.address).is_none());
}
