//! A real site's requests through the proxy: what is throttled for each client is exactly what an
//! independent count over the log says.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::support::client::Connection;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;

/// See `tests/data/README.md`.
const REQUESTS: &str = include_str!("../../../data/requests.txt");

/// What passes for each client: one more comes back only every two minutes.
const RATE: u64 = 30;

/// Connections to each proxy.
const CONNECTIONS: usize = 2;

struct Request {
    client: &'static str,
    method: &'static str,
    path: &'static str,
}

fn requests() -> Vec<Request> {
    REQUESTS
        .lines()
        .map(|line| {
            let mut words = line.split(' ');
            let mut word = || words.next().expect(line);
            let (client, _time) = (word(), word());
            Request { client, method: word(), path: word() }
        })
        .collect()
}

type Counts = BTreeMap<String, u64>;

/// How many requests of each client are beyond the rate, by the log alone.
fn beyond(requests: &[Request]) -> Counts {
    let mut counts = Counts::new();
    for request in requests {
        *counts.entry(request.client.to_owned()).or_default() += 1;
    }
    counts.values_mut().for_each(|count| *count = count.saturating_sub(RATE));
    counts.retain(|_, count| *count > 0);
    counts
}

/// Sends every request, each over one of the connections, and counts the rejections.
fn send(proxies: &[SocketAddr], requests: &[Request]) -> Counts {
    let lanes = proxies.len() * CONNECTIONS;
    let rejected: Vec<Vec<&str>> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes)
            .map(|lane| {
                let address = proxies[lane % proxies.len()];
                scope.spawn(move || {
                    let mut connection = Connection::open(address);
                    let mine = requests.iter().skip(lane).step_by(lanes);
                    mine.filter(|request| {
                        let headers = [("x-forwarded-for", request.client)];
                        let reply = connection.request(request.method, request.path, &headers, b"");
                        assert!([200, 429].contains(&reply.status), "{}", reply.status);
                        reply.status == 429
                    })
                    .map(|request| request.client)
                    .collect()
                })
            })
            .collect();
        lanes.into_iter().map(|lane| lane.join().unwrap()).collect()
    });
    let mut counts = Counts::new();
    for client in rejected.concat() {
        *counts.entry(client.to_owned()).or_default() += 1;
    }
    counts
}

/// What the proxies' logs say of each client, once they have ended.
fn logged(proxies: &mut [Tidegate]) -> Counts {
    let mut counts = Counts::new();
    for proxy in proxies {
        assert!(proxy.stop().success());
        for line in proxy.log.with("throttled") {
            assert_eq!(line["key"], line["client"], "{line}");
            let client = line["client"].as_str().unwrap().to_owned();
            *counts.entry(client).or_default() += line["count"].as_u64().unwrap();
        }
    }
    counts
}

fn check(store: &str, proxies: usize) {
    let requests = requests();
    let expected = beyond(&requests);
    assert_eq!((requests.len(), expected.len()), (2_000, 10), "the data is not what it was");
    let api = Upstream::echoing();
    let proxy = Proxy::to(&api)
        .server("workers = 2\ntrusted_proxies = [\"127.0.0.1\"]")
        .store(store)
        .limit("per-client", &format!("key = [\"ip\"]\nrate = \"{RATE}/h\""));
    let mut proxies: Vec<_> = (0..proxies).map(|_| proxy.start()).collect();
    let addresses: Vec<_> = proxies.iter().map(|proxy| proxy.address).collect();
    assert_eq!(send(&addresses, &requests), expected, "what clients got");
    assert_eq!(logged(&mut proxies), expected, "what the log says");
    let all: u64 = expected.values().sum();
    assert_eq!(api.requests().len() as u64, requests.len() as u64 - all, "what the API got");
}

#[test]
fn in_one_process() {
    check("", 1);
}

#[test]
fn in_two_processes_that_share_redis() {
    let redis = RedisServer::start();
    check(&format!("url = \"{}\"\ntimeout = \"10s\"", redis.url()), 2);
}
