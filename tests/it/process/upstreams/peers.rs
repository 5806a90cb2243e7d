//! nginx and haproxy as servers: kept connections, chunks, health checks, HTTP/2, and a restart under load.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::client::Connection;
use crate::support::metrics::Metrics;
use crate::support::peer_server::{PeerServer, Spoken};
use crate::support::proxy::Proxy;
use crate::support::tls::Folder;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

/// Both servers in front of an API. `None` where one of them is not installed.
fn both(api: &Upstream, spoken: Spoken<'_>) -> Option<[PeerServer; 2]> {
    Some([PeerServer::nginx_behind(api, spoken)?, PeerServer::haproxy_behind(api, spoken)?])
}

#[test]
fn connections_to_them_are_kept() {
    let api = Upstream::echoing();
    let Some(servers) = both(&api, Spoken::Http1) else { return };
    for (server, most) in servers.iter().zip([5, 1]) {
        let proxy = Proxy::of_one_worker(format!("http://{}", server.address())).start();
        let mut client = Connection::open(proxy.address);
        let mut ports = BTreeSet::new();
        for n in 0..80 {
            // nginx closes a connection after twenty requests. Not even a POST may notice.
            let method = if n % 2 == 0 { "GET" } else { "POST" };
            let reply = client.request(method, &format!("/{n}"), &[], b"");
            assert_eq!((reply.status, reply.text()), (200, format!("/{n}")));
            ports.insert(reply.header("x-port").unwrap());
        }
        assert!(ports.len() <= most, "{ports:?}");
    }
}

#[test]
fn chunks_flow_both_ways() {
    let long = "x".repeat(50_000);
    let body = long.clone();
    let api = Upstream::answering(move |got| {
        assert_eq!(got.body.len(), 3 * body.len());
        let chunk = format!("{:x}\r\n{body}\r\n", body.len());
        format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunk}{chunk}0\r\n\r\n")
            .into()
    });
    let Some(servers) = both(&api, Spoken::Http1) else { return };
    for server in &servers {
        let proxy = Proxy::of_one_worker(format!("http://{}", server.address())).start();
        let mut client = Connection::open(proxy.address);
        for _ in 0..3 {
            let chunk = format!("{:x}\r\n{long}\r\n", long.len()).repeat(3);
            let head = "POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
            client.send(format!("{head}{chunk}0\r\n\r\n"));
            let reply = client.reply("POST");
            assert_eq!((reply.status, reply.body.len()), (200, 2 * long.len()));
            assert_eq!(reply.header("transfer-encoding").as_deref(), Some("chunked"));
        }
    }
}

/// With prior knowledge, and as TLS agrees on it.
#[test]
fn they_are_spoken_to_by_http_2() {
    let folder = Folder::new();
    let files = folder.write_server("api", &["127.0.0.1"]);
    let tls = format!("tls = {{ ca = {:?} }}", folder.ca());
    let api = Upstream::echoing();
    for (scheme, spoken, lines) in
        [("h2c", Spoken::Http2, ""), ("https", Spoken::Tls(&files), &tls)]
    {
        let Some(servers) = both(&api, spoken) else { return };
        for server in &servers {
            let url = format!("{scheme}://{}", server.address());
            let proxy = Proxy::of_one_worker(url).upstream(lines).start();
            let mut client = Connection::open(proxy.address);
            for n in 0..50 {
                let reply = client.request("POST", &format!("/{n}"), &[], b"hello");
                assert_eq!((reply.status, reply.text()), (200, format!("/{n}")), "{scheme}");
                assert_eq!(reply.header("x-protocol").as_deref(), Some("HTTP/2.0"), "{scheme}");
                assert_eq!(api.last().body, b"hello");
            }
        }
    }
}

/// Two servers under load, of which one is restarted: no client notices, and the one that returns gets requests
/// again.
#[test]
fn one_of_them_is_restarted_under_load() {
    let api = Upstream::answering(|_| ok("hello"));
    let Some(mut servers) = both(&api, Spoken::Http1) else { return };
    let health = "health = { path = \"/healthz\", interval = \"50ms\", unhealthy_after = 1 }";
    let [one, other] = servers.each_ref().map(|server| format!("http://{}", server.address()));
    let proxy = Proxy::to(one).and(other).upstream(health).admin().start();
    let done = Arc::new(AtomicBool::new(false));
    let address = proxy.address;
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let done = done.clone();
            std::thread::spawn(move || {
                let mut client = Connection::open(address);
                while !done.load(Ordering::Relaxed) {
                    let reply = client.get("/", &[]);
                    assert_eq!((reply.status, &*reply.text()), (200, "hello"));
                }
            })
        })
        .collect();
    let mut client = Connection::open(proxy.address);
    let mut answers = |name: &str| {
        wait_until(&format!("{name} answers"), || {
            client.get("/", &[]).header("x-server").as_deref() == Some(name)
        });
    };
    let state = |server: &PeerServer| {
        let name = "tidegate_upstream_up{upstream=\"api\",server=";
        Metrics::of(proxy.admin()).value(&format!("{name}\"http://{}\"}}", server.address()))
    };
    for (place, [name, rest]) in [["nginx", "haproxy"], ["haproxy", "nginx"]].iter().enumerate() {
        answers(name);
        servers[place].stop();
        wait_until("it is known to be away", || state(&servers[place]) == 0.0);
        answers(rest);
        servers[place].start_again();
        wait_until("it is known to be back", || state(&servers[place]) == 1.0);
        answers(name);
    }
    done.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
}
