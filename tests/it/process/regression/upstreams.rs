//! What was believed of an API's servers.

use std::io::{BufReader, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::PATIENCE;
use crate::support::client::Connection;
use crate::support::metrics::Metrics;
use crate::support::port::Port;
use crate::support::proxy::Proxy;
use crate::support::upstream::{ok, read_request};

/// A server that refused one connection and answered on those that it had kept counted as down for good.
#[test]
fn a_server_that_answers_is_there() {
    let port = Port::hold();
    let listener = TcpListener::bind(port.address).unwrap();
    let url = format!("http://{}", port.address);
    let (arrived, arrival) = channel();
    let (go, wait) = channel();
    let wait = Arc::new(Mutex::new(wait));
    // One connection with requests, and nobody listens any more.
    thread::spawn(move || {
        let mut streams = listener.incoming().map(Result::unwrap);
        let mut stream = streams.find(|stream| stream.peek(&mut [0]).unwrap() > 0).unwrap();
        drop(listener);
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(got) = read_request(&mut reader) {
            let _ = arrived.send(());
            if got.path() == "/slow" {
                let _ = wait.lock().unwrap().recv();
            }
            let _ = stream.write_all(&ok(""));
        }
    });
    let proxy = Proxy::of_one_worker(&url).admin().start();
    let up = format!("tidegate_upstream_up{{upstream=\"api\",server=\"{url}\"}}");
    let is_up = || Metrics::of(proxy.admin()).value(&up);
    let (mut slow, mut client) = (Connection::open(proxy.address), Connection::open(proxy.address));
    slow.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
    arrival.recv_timeout(PATIENCE).unwrap();
    assert_eq!(client.get("/", &[]).status, 502);
    assert_eq!(is_up(), 0.0);
    go.send(()).unwrap();
    assert_eq!(slow.reply("GET").status, 200);
    assert_eq!(is_up(), 0.0, "that may have been the last request before it stopped");
    assert_eq!(client.get("/", &[]).status, 200);
    assert_eq!(is_up(), 1.0, "it has answered");
    proxy.log.wait("server up", |line| line["server"] == url.as_str());
}
