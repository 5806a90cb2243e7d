//! One bucket for all who ask, in whatever form, and what all of them are told.

use std::net::SocketAddr;
use std::thread;

use serde_json::json;

use super::check::check;
use super::{as_nginx, as_traefik, asked_at, deciding, envoy, file};
use crate::support::client::Connection;
use crate::support::http2::Client;
use crate::support::redis::RedisServer;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const CLIENT: &str = "203.0.113.7";

/// Asks about a request of [`CLIENT`] for a path. It says the status that the client is to get.
type Caller = Box<dyn FnMut(&str) -> u16 + Send>;

/// Makes a caller of the proxy that is asked at this address.
type Open = fn(SocketAddr) -> Caller;

/// A caller of each form, by the form's name in logs.
const FORMS: [(&str, Open); 4] = [
    ("auth-request", |address| {
        let mut nginx = Connection::open(address);
        Box::new(move |path| {
            let reply = as_nginx(&mut nginx, path, CLIENT);
            reply.header("x-tidegate-status").map_or(reply.status, |status| status.parse().unwrap())
        })
    }),
    ("forward-auth", |address| {
        let mut traefik = Connection::open(address);
        Box::new(move |path| as_traefik(&mut traefik, path, &[("x-forwarded-for", CLIENT)]).status)
    }),
    ("check", |address| {
        Box::new(move |path| {
            let answer = check(address, &json!({ "path": path, "ip": CLIENT }));
            let status = answer["status"].as_u64().map_or(200, |status| status.try_into().unwrap());
            if status != 200 {
                let decision = if status == 429 { "rejected" } else { "error" };
                assert_eq!(answer["decision"], decision, "{answer}");
            }
            status
        })
    }),
    ("envoy", |address| {
        let mut caller = Client::open(address);
        Box::new(move |path| envoy::status_of(&mut caller, path, CLIENT))
    }),
];

/// Whether a client with this status goes on. nginx is told 204.
fn passes(status: u16) -> bool {
    matches!(status, 200 | 204)
}

/// The calls that pass, of `each` by each of so many clients. `caller` makes a client.
fn passed(clients: usize, each: usize, caller: impl Fn(usize) -> Caller) -> usize {
    let clients: Vec<_> = (0..clients)
        .map(|client| {
            let mut ask = caller(client);
            thread::spawn(move || (0..each).filter(|_| passes(ask("/b"))).count())
        })
        .collect();
    clients.into_iter().map(|client| client.join().unwrap()).sum()
}

#[test]
fn half_by_the_proxy_and_half_by_any_form_share_one_bucket() {
    for (form, open) in FORMS {
        let api = Upstream::echoing();
        let config = file("", "")
            .replace("listen = []", "listen = \"LISTEN\"\ntrusted_proxies = [\"127.0.0.1\"]");
        let proxy = Tidegate::start(&format!(
            "{config}[upstreams.api]\nservers = [\"http://{}\"]\n\
             [limits.ip]\nkey = [\"ip\"]\nrate = \"20/h\"\n\
             [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\nlimits = [\"ip\"]\n",
            api.address
        ));
        let passed = passed(4, 15, |client| match client % 2 {
            0 => open(asked_at(&proxy)),
            _ => {
                let mut client = Connection::open(proxy.address);
                Box::new(move |path| client.get(path, &[("x-forwarded-for", CLIENT)]).status)
            }
        });
        assert_eq!(passed, 20, "{form}");
    }
}

#[test]
fn fifty_clients_of_two_processes_pass_no_more_than_redis_allows() {
    let redis = RedisServer::start();
    let limits = format!(
        "[store]\n{}[limits.ip]\nkey = [\"ip\"]\nrate = \"300/h\"\n\
         [[routes]]\npath = \"/{{*rest}}\"\nlimits = [\"ip\"]\n",
        redis.fields()
    );
    let proxies = [deciding("", &limits), deciding("", &limits)];
    let addresses = proxies.each_ref().map(asked_at);
    let passed = passed(50, 10, |client| FORMS[client / 2 % FORMS.len()].1(addresses[client % 2]));
    assert_eq!(passed, 300);
}

#[test]
fn without_redis_each_limit_does_what_it_says() {
    let limits = ["reject", "allow", "local"].map(|name| {
        format!(
            "[limits.{name}]\nkey = []\nrate = \"3/h\"\non_store_error = \"{name}\"\n\
             [[routes]]\npath = \"/{name}\"\nlimits = [\"{name}\"]\n"
        )
    });
    for (form, open) in FORMS {
        let mut redis = RedisServer::start();
        let proxy = deciding("", &format!("[store]\n{}{}", redis.fields(), limits.concat()));
        let mut ask = open(asked_at(&proxy));
        for path in ["/reject", "/allow", "/local"] {
            assert!(passes(ask(path)), "{form}: {path}");
        }
        redis.kill();
        wait_until("the store is known to be away", || ask("/reject") == 503);
        assert!((0..5).all(|_| passes(ask("/allow"))), "{form}");
        let local = [0; 5].map(|_| ask("/local"));
        assert!(local.is_sorted() && passes(local[0]) && local[4] == 429, "{form}: {local:?}");
        let line = proxy.log.wait("request", |line| line["status"] == 503);
        assert_eq!(line["via"], form);
    }
}
