//! One of three servers fails under load: what the clients see, counted. Each client sends GET requests one
//! after the other, and a request that may be sent again is sent again.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::port::Port;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::{Upstream, ok, read_request};
use crate::support::{PATIENCE, wait_until};

const CLIENTS: usize = 8;

/// How a server behaves once it is told to fail.
type Fault = fn(&mut TcpStream);

/// A server that can be told to fail in its way from then on, and to be well again.
struct Failing {
    url: String,
    fails: Arc<AtomicBool>,
}

impl Failing {
    fn by(fault: Fault) -> Self {
        let fails = Arc::<AtomicBool>::default();
        let told = fails.clone();
        let server = Upstream::raw(move |mut stream| {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            while read_request(&mut reader).is_some() {
                if told.load(Ordering::SeqCst) {
                    return fault(&mut stream);
                }
                if stream.write_all(&ok("a well body")).is_err() {
                    return;
                }
            }
        });
        Self { url: server.url(), fails }
    }
}

/// What clients saw, by the status of their answers. A body that broke off counts as 0.
#[derive(Default)]
struct Seen(Mutex<BTreeMap<u16, usize>>);

impl Seen {
    fn count(&self, status: u16) -> usize {
        self.0.lock().unwrap().get(&status).copied().unwrap_or(0)
    }

    fn all(&self) -> usize {
        self.0.lock().unwrap().values().sum()
    }

    /// That all but so many requests were answered with 200.
    fn assert_lost(&self, most: usize) {
        let seen = self.0.lock().unwrap();
        let lost: usize = seen.iter().filter(|(status, _)| **status != 200).map(|it| it.1).sum();
        assert!(lost <= most, "{lost} of {} were lost: {seen:?}", seen.values().sum::<usize>());
    }
}

/// Sends a request and reads the whole answer. An error is an answer that breaks off.
fn ask(client: &mut BufReader<TcpStream>) -> io::Result<u16> {
    client.get_ref().write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")?;
    let (mut head, mut length) = (String::new(), 0);
    while !head.ends_with("\r\n\r\n") {
        let from = head.len();
        if client.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(value) = head[from..].to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    client.read_exact(&mut vec![0; length])?;
    Ok(head.split(' ').nth(1).unwrap().parse().unwrap())
}

/// Clients that ask until they are told to stop.
fn under_load(proxy: &Tidegate, during: impl FnOnce(&Seen)) -> Seen {
    let (seen, stop) = (Seen::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let connect = || BufReader::new(TcpStream::connect(proxy.address).unwrap());
                let mut client = connect();
                while !stop.load(Ordering::SeqCst) {
                    let status = ask(&mut client).unwrap_or_else(|_| {
                        client = connect();
                        0
                    });
                    *seen.0.lock().unwrap().entry(status).or_default() += 1;
                }
            });
        }
        during(&seen);
        stop.store(true, Ordering::SeqCst);
    });
    seen
}

/// Waits for so many more answers.
fn pass(seen: &Seen, more: usize) {
    let wanted = seen.all() + more;
    wait_until("the clients have their answers", || seen.all() >= wanted);
}

/// A proxy in front of this server and two well ones.
fn proxy(server: &str, upstream: &str) -> Tidegate {
    let [one, other] = [0, 1].map(|_| Upstream::answering(|_| ok("a well body")).url());
    let proxy = Proxy::of_one_worker(server).and(one).and(other);
    proxy.upstream(&format!("balance = \"round-robin\"\n{upstream}")).start()
}

/// Lets one of three servers fail under load, and be well again. What the clients saw while it failed.
fn failing(fault: Fault) -> Seen {
    let server = Failing::by(fault);
    let proxy = proxy(&server.url, "");
    under_load(&proxy, |seen| {
        pass(seen, 100);
        server.fails.store(true, Ordering::SeqCst);
        pass(seen, 1_000);
        server.fails.store(false, Ordering::SeqCst);
        pass(seen, 100);
    })
}

fn reset(stream: &mut TcpStream) {
    socket2::SockRef::from(&*stream).set_linger(Some(std::time::Duration::ZERO)).unwrap();
}

#[test]
fn a_server_that_breaks_before_its_body_costs_no_client_anything() {
    let faults: [(&str, Fault); 3] = [
        ("a reset", reset),
        ("garbage", |stream| drop(stream.write_all(b"\x16\x03\x01 no HTTP\r\n\r\n"))),
        ("half a head", |stream| drop(stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-le"))),
    ];
    for (name, fault) in faults {
        println!("{name}");
        failing(fault).assert_lost(0);
    }
}

/// The head is through to the client when the body breaks off, so the client has to see it break off. After three
/// of these in a row the server gets one request now and then.
#[test]
fn a_server_that_resets_in_mid_body_is_set_aside() {
    let seen = failing(|stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf");
        reset(stream);
    });
    assert!(seen.count(0) > 0, "none broke off");
    // It would have a third of the requests. Each client may have one with it when it is set aside.
    seen.assert_lost(1_000 / 10);
    assert_eq!(seen.count(0) + seen.count(200), seen.all());
}

#[test]
fn a_server_that_refuses_costs_no_client_anything() {
    let port = Port::hold();
    let proxy = proxy(&format!("http://{}", port.address), "");
    under_load(&proxy, |seen| {
        pass(seen, 500);
        let (tell, served) = channel();
        let _back = Upstream::on(TcpListener::bind(port.address).unwrap(), move |mut stream| {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            while read_request(&mut reader).is_some() && stream.write_all(&ok("a")).is_ok() {
                let _ = tell.send(());
            }
        });
        served.recv_timeout(PATIENCE).expect("it is used again");
        proxy.log.wait("server up", |_| true);
    })
    .assert_lost(0);
    assert_eq!((proxy.log.count("server down"), proxy.log.count("server up")), (1, 1));
}

/// Whoever asked it when it stopped waits for `response_timeout`. After three of these in a row it gets one
/// request now and then.
#[test]
fn a_server_that_is_paused_costs_the_requests_that_it_had() {
    let port = Port::hold();
    // Another program, so that it can be paused.
    let server = Proxy::answering().server("workers = 1").on(&port).start();
    let proxy = proxy(&format!("http://{}", server.address), "response_timeout = \"1s\"");
    let seen = under_load(&proxy, |seen| {
        pass(seen, 200);
        server.pause();
        proxy.log.wait("server down", |_| true);
        wait_until("it is tried again and again", || seen.count(504) >= CLIENTS + 3);
        assert_eq!((proxy.log.count("server down"), proxy.log.count("server up")), (1, 0));
        server.signal("CONT");
        proxy.log.wait("server up", |_| true);
        pass(seen, 100);
    });
    assert_eq!(seen.count(504) + seen.count(200), seen.all());
}
