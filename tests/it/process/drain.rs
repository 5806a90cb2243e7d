//! How the proxy starts and stops.

use std::io::{BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::channel;

use crate::support::client::{Connection, get};
use crate::support::http2;
use crate::support::metrics::Metrics;
use crate::support::port::Port;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::upstream::{Upstream, read_request};
use crate::support::{PATIENCE, wait_until};

#[test]
fn a_drain_finishes_requests_and_closes_idle_connections() {
    let ((api, told, go), port) = (Upstream::slow(), Port::hold());
    let mut proxy = Proxy::of_one_worker(&api).on(&port).server("drain_timeout = \"1h\"").start();
    let mut idle = Connection::open(proxy.address);
    assert_eq!(idle.get("/", &[]).status, 200);
    let mut busy = Connection::open(proxy.address);
    busy.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
    told.recv_timeout(PATIENCE).unwrap();
    proxy.signal("TERM");
    assert!(idle.is_closed());
    wait_until("nobody listens", || TcpStream::connect(proxy.address).is_err());
    go.send(()).unwrap();
    let reply = busy.reply("GET");
    assert_eq!(reply.text(), "/slow");
    assert_eq!(reply.header("connection").as_deref(), Some("close"));
    assert!(busy.is_closed());
    assert_eq!(proxy.wait().code(), Some(0));
    assert_eq!(proxy.log.count("draining"), 1);
    assert_eq!(proxy.log.count("stopped"), 1);
}

#[test]
fn whoever_waits_in_the_queue_is_served() {
    let (api, told, go) = Upstream::slow();
    let server = "drain_timeout = \"1h\"\nmax_connections = 1";
    let mut proxy = Proxy::of_one_worker(&api).server(server).start();
    let mut busy = Connection::open(proxy.address);
    busy.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
    told.recv_timeout(PATIENCE).unwrap();
    let mut queued = [0, 1, 2].map(|_| Connection::open(proxy.address));
    for client in &mut queued {
        client.send("GET /queued HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    proxy.signal("TERM");
    proxy.log.wait("draining", |_| true);
    go.send(()).unwrap();
    assert_eq!(busy.reply("GET").text(), "/slow");
    for client in &mut queued {
        assert_eq!(client.reply("GET").text(), "/queued");
        assert!(client.is_closed());
    }
    assert_eq!(proxy.wait().code(), Some(0));
}

#[test]
fn those_who_keep_coming_do_not_put_the_end_off() {
    let (api, port) = (Upstream::echoing(), Port::hold());
    let mut proxy = Proxy::of_one_worker(&api).on(&port).server("drain_timeout = \"1h\"").start();
    let address = proxy.address;
    let (tell, told) = channel();
    let coming = std::thread::spawn(move || {
        while let Ok(mut stream) = TcpStream::connect(address) {
            let _ = stream.write_all(b"GET / HTTP/1.0\r\n\r\n");
            let _ = stream.read_to_end(&mut Vec::new());
            let _ = tell.send(());
        }
    });
    told.recv_timeout(PATIENCE).unwrap();
    proxy.signal("TERM");
    assert_eq!(proxy.wait().code(), Some(0));
    coming.join().unwrap();
}

#[test]
fn what_takes_too_long_is_cut_off() {
    let (api, told, _go) = Upstream::slow();
    let mut proxy = Proxy::of_one_worker(&api).server("drain_timeout = \"200ms\"").start();
    let mut busy = Connection::open(proxy.address);
    busy.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
    told.recv_timeout(PATIENCE).unwrap();
    let mut silent = Connection::open(proxy.address);
    proxy.signal("TERM");
    assert!(busy.is_closed());
    assert!(silent.is_closed());
    assert_eq!(proxy.wait().code(), Some(0));
    let line = proxy.log.wait("connections cut", |_| true);
    assert_eq!(line["level"], "WARN");
    assert!(line["count"].as_u64() >= Some(1), "{line}");
}

/// One whose turn came just before the drain's end was let pass, and cut before it had its answer.
/// hyper waits for the client's answer to its PING, and for the rest of a head that has begun.
#[test]
fn clients_that_say_nothing_do_not_hold_up_the_end() {
    let api = Upstream::echoing();
    let mut proxy = Proxy::of_one_worker(&api).server("drain_timeout = \"1h\"").start();
    let mut silent = TcpStream::connect(proxy.address).unwrap();
    silent.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    silent.read_exact(&mut [0; 9]).unwrap();
    let mut half = Connection::open(proxy.address);
    assert_eq!(half.get("/", &[]).status, 200);
    half.send("GET / HTTP/1.1\r\nhost: a\r\n");
    proxy.signal("TERM");
    assert_eq!(proxy.wait().code(), Some(0));
    assert_eq!(proxy.log.count("stopped"), 1);
}

#[test]
fn connections_are_taken_until_the_delay_is_over() {
    let api = Upstream::echoing();
    let draining = |delay: &str| {
        let delay = format!("shutdown_delay = \"{delay}\"");
        let proxy = Proxy::of_one_worker(&api).server(&delay).start();
        let mut kept = Connection::open(proxy.address);
        assert_eq!(kept.get("/", &[]).status, 200);
        proxy.signal("TERM");
        proxy.log.wait("draining", |_| true);
        (proxy, kept)
    };
    let (proxy, mut kept) = draining("1h");
    assert_eq!(get(proxy.address, "/new", &[]).text(), "/new");
    assert_eq!(kept.get("/kept", &[]).text(), "/kept");
    let (mut proxy, mut kept) = draining("100ms");
    assert!(kept.is_closed());
    assert_eq!(proxy.wait().code(), Some(0));
}

/// Summaries ended with the first signal, though the process served clients for long after it.
#[test]
fn summaries_go_on_until_the_end() {
    for delay in ["0s", "1h"] {
        let (api, told, go) = Upstream::slow();
        let server = format!("shutdown_delay = \"{delay}\"\ndrain_timeout = \"1h\"");
        let mut proxy = Proxy::of_one_worker(&api)
            .server(&server)
            .section("[log]\nsummary_interval = \"1s\"")
            .limits("[limits.all]\nrate = \"1/h\"")
            .route("path = \"/slow\"")
            .route("path = \"/limited\"\nlimits = [\"all\"]")
            .start();
        let mut busy = Connection::open(proxy.address);
        busy.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
        told.recv_timeout(PATIENCE).unwrap();
        for status in [200, 429, 429, 429] {
            assert_eq!(get(proxy.address, "/limited", &[]).status, status);
        }
        proxy.signal("TERM");
        // The slow request holds the end up.
        proxy.log.wait("throttled", |line| line["interval_ms"].is_u64());
        proxy.log.wait("throttling ended", |_| true);
        assert_eq!(proxy.log.count("stopped"), 0, "{delay}");
        go.send(()).unwrap();
        assert_eq!(busy.reply("GET").text(), "/slow");
        if delay == "1h" {
            proxy.signal("TERM");
        }
        assert_eq!(proxy.wait().code(), Some(0));
    }
}

/// A change came to nothing, without a word.
#[test]
fn a_changed_file_is_taken_until_the_delay_is_over() {
    let config = |body: &str| {
        Proxy::answering().route(&format!("path = \"/\"\nrespond = {{ body = \"{body}\" }}"))
    };
    let server = "shutdown_delay = \"1h\"";
    let mut proxy = config("old").server(server).start();
    proxy.signal("TERM");
    proxy.log.wait("draining", |_| true);
    proxy.reload(&config("new").server(server).text());
    wait_until("the change is in force", || get(proxy.address, "/", &[]).text() == "new");
    proxy.signal("HUP");
    wait_until("a signal is heard", || proxy.log.count("config reloaded") == 2);
    assert_eq!(proxy.stop().code(), Some(0));
}

#[test]
fn a_second_signal_stops_at_once() {
    for (first, second) in [("TERM", "TERM"), ("INT", "TERM"), ("TERM", "INT")] {
        let (api, told, _go) = Upstream::slow();
        let server = "shutdown_delay = \"1h\"\ndrain_timeout = \"1h\"";
        let mut proxy = Proxy::of_one_worker(&api).server(server).start();
        let mut busy = Connection::open(proxy.address);
        busy.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
        told.recv_timeout(PATIENCE).unwrap();
        proxy.signal(first);
        proxy.log.wait("draining", |_| true);
        proxy.signal(second);
        assert_eq!(proxy.wait().code(), Some(0), "{first} {second}");
        assert!(busy.is_closed());
        assert_eq!(proxy.log.count("connections cut"), 0, "that was asked for");
    }
}

#[test]
fn a_tunnel_holds_the_end_up_only_so_long() {
    let api = Upstream::raw(|mut stream| {
        let _ = read_request(&mut BufReader::new(&stream));
        let _ = stream.write_all(
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        );
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let mut proxy = Proxy::of_one_worker(&api).server("drain_timeout = \"300ms\"").start();
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n");
    assert_eq!(client.any_reply("GET").status, 101);
    proxy.signal("TERM");
    assert!(client.is_closed());
    assert_eq!(proxy.wait().code(), Some(0));
}

#[test]
fn connections_beyond_the_most_wait_for_their_turn() {
    let (api, told, go) = Upstream::slow();
    let proxy = Proxy::of_one_worker(&api).server("max_connections = 2").start();
    let mut first = [0, 1].map(|_| Connection::open(proxy.address));
    for client in &mut first {
        client.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
        told.recv_timeout(PATIENCE).unwrap();
    }
    let mut more = [0, 1, 2].map(|_| Connection::open(proxy.address));
    for client in &mut more {
        client.send("GET /later HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    }
    // Both places are taken, so what these ask is answered first.
    proxy.log.wait("connections full", |_| true);
    assert!(api.requests().iter().all(|got| got.path() == "/slow"));
    for client in &mut first {
        go.send(()).unwrap();
        assert_eq!(client.reply("GET").text(), "/slow");
    }
    for client in &mut more {
        assert_eq!(client.reply("GET").text(), "/later");
    }
}

#[test]
fn every_address_is_listened_on() {
    let api = Upstream::echoing();
    let listen = "listen = [\"127.0.0.1:0\", \"127.0.0.2:0\", \"[::1]:0\"]";
    let proxy = Proxy::to(&api).server(listen).start();
    wait_until("all addresses", || proxy.log.count("listening") == 3);
    for line in proxy.log.with("listening") {
        let address: SocketAddr = line["address"].as_str().unwrap().parse().unwrap();
        assert_ne!(address.port(), 0);
        assert_eq!(get(address, "/", &[]).status, 200, "{address}");
    }
    assert_eq!(api.last().header("x-forwarded-for").as_deref(), Some("::1"));
}

#[test]
fn all_workers_take_connections() {
    let api = Upstream::echoing();
    let mut proxy = Proxy::to(&api).server("workers = 4").start();
    let mut clients: Vec<_> = (0..64).map(|_| Connection::open(proxy.address)).collect();
    for client in &mut clients {
        assert_eq!(client.get("/", &[]).status, 200);
    }
    // Each worker has its own connections to the API.
    let connections = api.requests().iter().filter(|got| got.earlier == 0).count();
    assert!((2..=4).contains(&connections), "{connections}");
    assert_eq!(proxy.stop().code(), Some(0));
    assert!(clients[0].is_closed());
}

/// Slots stayed taken in Redis for their whole lease, and held clients were banned: whatever a request may hold, held by
/// many at once.
#[test]
fn a_drain_of_a_busy_process_leaves_no_slot_and_no_ban_in_redis() {
    let (redis, (api, told, _go)) = (RedisServer::start(), Upstream::slow());
    let config = Proxy::to(&api)
        .server("workers = 2\ndrain_timeout = \"2s\"")
        .section("[decide]\nlisten = \"LISTEN\"")
        .admin()
        .store(&redis.fields())
        .upstream("on_abort = \"finish\"")
        .limit("slots", "key = []\nalgorithm = \"concurrency\"\nlimit = 40\nlease = \"1h\"")
        .limit(
            "bytes",
            "key = []\nalgorithm = \"fixed-window\"\nrate = \"1000000/365d\"\n\
             cost = { response_bytes = true, estimate = 1000 }",
        )
        .limit(
            "even",
            "key = []\nalgorithm = \"leaky-bucket\"\nrate = \"1/h\"\nqueue = 9\n\
             ban = { after = 2, within = \"1h\", for = \"1h\" }",
        )
        .route("path = \"/even\"\nlimits = [\"even\"]")
        .route("path = \"/{*rest}\"\nlimits = [\"slots\", \"bytes\"]");
    let (mut proxy, other) = (config.start(), config.start());
    let remaining = |limit: &str| {
        let path = format!("/api/limits/{limit}/keys/");
        get(other.admin(), &path, &[("host", "localhost")]).json()["remaining"].as_u64().unwrap()
    };
    // Ten by each protocol, of which each second client leaves. The API goes on with all of them.
    let slow = "GET /slow HTTP/1.1\r\nhost: a\r\n\r\n";
    let mut old: Vec<_> = (0..10).map(|_| Connection::open(proxy.address)).collect();
    old.iter_mut().for_each(|client| client.send(slow));
    let mut client = http2::Client::open(proxy.address);
    let mut new: Vec<_> = (0..10).map(|_| client.begin("GET", "/slow", &[])).collect();
    (0..20).for_each(|_| told.recv_timeout(PATIENCE).unwrap());
    old.truncate(5);
    new.truncate(5);
    let line = proxy.log.wait("listening", |line| line["setting"] == "decide.listen");
    let asked: SocketAddr = line["address"].as_str().unwrap().parse().unwrap();
    let list = format!("[{}]", [r#"{"path": "/slow"}"#; 5].join(","));
    let leases = Connection::open(asked).request("POST", "/check", &[], list.as_bytes()).json();
    assert!(leases.as_array().unwrap().iter().all(|lease| lease["id"].is_string()), "{leases}");
    // The first passes, and the others are held.
    assert_eq!(get(proxy.address, "/even", &[]).status, 200);
    let mut held: Vec<_> = (0..5).map(|_| Connection::open(proxy.address)).collect();
    held.iter_mut().for_each(|client| client.send("GET /even HTTP/1.1\r\nhost: a\r\n\r\n"));
    wait_until("all are held", || Metrics::of(proxy.admin()).value("tidegate_waiting") == 5.0);
    assert_eq!(remaining("slots"), 15);
    let (address, (tell, coming)) = (proxy.address, channel());
    let load: Vec<_> = (0..4)
        .map(|_| {
            let tell = tell.clone();
            std::thread::spawn(move || {
                while let Ok(mut stream) = TcpStream::connect(address) {
                    let _ = stream.write_all(b"GET /fast HTTP/1.0\r\n\r\n");
                    let _ = stream.read_to_end(&mut Vec::new());
                    let _ = tell.send(());
                }
            })
        })
        .collect();
    (0..50).for_each(|_| coming.recv_timeout(PATIENCE).unwrap());
    proxy.signal("TERM");
    assert_eq!(proxy.wait().code(), Some(0));
    load.into_iter().for_each(|client| client.join().unwrap());
    for mut client in held {
        assert_eq!(client.reply("GET").status, 429);
    }
    assert_eq!(remaining("slots"), 40);
    // Those whose end nobody knows cost their estimate, and the others what they were.
    let used = 1_000_000 - remaining("bytes");
    assert!((25_000..100_000).contains(&used), "{used}");
    let limits = get(other.admin(), "/api/limits", &[("host", "localhost")]).json();
    assert_eq!(limits["overrides"], serde_json::json!([]));
}
