//! The recipes of docs/deciding.md, with the proxies that they are for.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::{PER_CLIENT, asked_at, deciding};
use crate::support::client::{Connection, get};
use crate::support::peer_server::PeerServer;
use crate::support::redis::RedisServer;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

/// The recipe in this language below this heading, for this API and for the tidegate that is asked here.
fn recipe(heading: &str, language: &str, api: &Upstream, asked: SocketAddr) -> String {
    let text = include_str!("../../../../docs/deciding.md");
    let (_, text) = text.split_once(&format!("\n## {heading}\n")).unwrap();
    let (_, text) = text.split_once(&format!("```{language}\n")).unwrap();
    let (recipe, _) = text.split_once("```").unwrap();
    let recipe = recipe.replace("127.0.0.1:9091", &asked.to_string());
    recipe.replace("127.0.0.1:3000", &api.address.to_string())
}

fn nginx(api: &Upstream, asked: SocketAddr) -> Option<PeerServer> {
    PeerServer::nginx_with(&recipe("nginx", "nginx", api, asked))
}

fn haproxy(api: &Upstream, asked: SocketAddr) -> Option<PeerServer> {
    let lines =
        recipe("haproxy", "haproxy", api, asked).replace("/etc/haproxy/ask-tidegate", "lua");
    PeerServer::haproxy_with(&lines, &recipe("haproxy", "lua", api, asked))
}

fn caddy(api: &Upstream, asked: SocketAddr) -> Option<PeerServer> {
    PeerServer::caddy(&recipe("Caddy", "caddy", api, asked))
}

fn envoy(api: &Upstream, asked: SocketAddr) -> Option<PeerServer> {
    let port = |port: u16| format!("127.0.0.1, port_value: {port}");
    let text = recipe("Envoy", "yaml", api, asked);
    let text = text.replace(&port(3000), &port(api.address.port()));
    PeerServer::envoy(&text.replace(&port(9091), &port(asked.port())))
}

fn traefik(api: &Upstream, asked: SocketAddr) -> Option<PeerServer> {
    PeerServer::traefik(&recipe("Traefik", "yaml", api, asked))
}

/// What a proxy passes on.
struct Passes {
    /// To clients whose requests go, what remains.
    rest: bool,
    /// To the API, the mark of a limit.
    marks: bool,
    /// To clients whose requests are refused, another status than 429.
    status: bool,
}

/// What clients of a proxy can see and do that asks tidegate.
fn asks(
    start: fn(&Upstream, SocketAddr) -> Option<PeerServer>,
    Passes { rest, marks, status }: Passes,
) {
    let marking = "[limits.fair]\nkey = []\nrate = \"1/h\"\nmode = \"mark\"\n\
                 [[routes]]\npath = \"/marked\"\nlimits = [\"fair\"]\n";
    let (api, proxy) = (Upstream::echoing(), deciding("", &format!("{PER_CLIENT}{marking}")));
    let Some(peer) = start(&api, asked_at(&proxy)) else { return };
    // Traefik listens before it has read its routes.
    wait_until("the proxy forwards", || get(peer.address(), "/free", &[]).status == 200);
    let before = api.requests().len();
    let mut client = Connection::open(peer.address());
    for left in ["\"ip\";r=1;", "\"ip\";r=0;"] {
        let reply = client.get("/a/x?y=1", &[]);
        assert_eq!((reply.status, reply.text().as_str()), (200, "/a/x?y=1"));
        let told = reply.header("ratelimit").map(|told| told.starts_with(left));
        assert_eq!(told, rest.then_some(true), "{:?}", reply.headers);
    }
    // Over the same bucket, by another spelling of the path, another method, and with what only the proxy may say.
    let lies = [
        ("x-original-uri", "/free"),
        ("x-original-method", "TRACE"),
        ("x-forwarded-uri", "/free"),
        ("x-forwarded-method", "TRACE"),
        ("x-forwarded-host", "elsewhere.test"),
        ("x-forwarded-for", "203.0.113.9"),
        ("x-tidegate-token", "guess"),
    ];
    let post = Connection::open(peer.address()).request("POST", "/a/b", &[], b"body");
    for reply in [client.get("/a/%78", &lies), post] {
        assert_eq!(reply.status, 429);
        let wait: u64 = reply.header("retry-after").unwrap().parse().unwrap();
        assert!((1_000..=1_800).contains(&wait), "{wait}");
        assert_eq!(reply.header("ratelimit-policy").as_deref(), Some("\"ip\";q=2;w=3600"));
        assert_eq!(reply.header("x-tidegate-status"), None);
    }
    let ambiguous = get(peer.address(), "/a/..%2f", &[]);
    assert_eq!(ambiguous.status, if status { 400 } else { 429 }, "{}", ambiguous.text());
    assert_eq!(api.requests().len(), before + 2);
    let over = [&[][..], &[("tidegate-over", "forged")], &[]].map(|fields| {
        assert_eq!(get(peer.address(), "/marked", fields).status, 200);
        api.last().header("tidegate-over").filter(|value| !value.is_empty())
    });
    let mark = marks.then(|| "fair".to_owned());
    assert_eq!(over, [None, mark.clone(), mark]);
}

#[test]
fn nginx_forwards_what_may_go_and_clients_get_the_true_refusal() {
    asks(nginx, Passes { rest: true, marks: true, status: true });
}

#[test]
fn haproxy_forwards_what_may_go_and_clients_get_the_true_refusal() {
    asks(haproxy, Passes { rest: true, marks: true, status: true });
}

#[test]
fn envoy_forwards_what_may_go_and_clients_get_the_true_refusal() {
    asks(envoy, Passes { rest: true, marks: true, status: false });
}

#[test]
fn caddy_forwards_what_may_go_and_clients_get_the_true_refusal() {
    asks(caddy, Passes { rest: false, marks: false, status: true });
}

#[test]
fn traefik_forwards_what_may_go_and_clients_get_the_true_refusal() {
    asks(traefik, Passes { rest: false, marks: true, status: true });
}

/// nginx itself has chosen by the host of an absolute target, or by its own name where a client of HTTP/1.0 names none.
#[test]
fn the_host_is_the_one_by_which_nginx_has_chosen() {
    let by_host = "[limits.host]\nkey = [\"host\"]\nrate = \"1/h\"\n\
                   [[routes]]\npath = \"/{*rest}\"\nlimits = [\"host\"]\n";
    let (api, proxy) = (Upstream::echoing(), deciding("", by_host));
    let Some(nginx) = nginx(&api, asked_at(&proxy)) else { return };
    let status = |head: &str| {
        let mut client = Connection::open(nginx.address());
        client.send(format!("{head}\r\nconnection: close\r\n\r\n"));
        client.reply("GET").status
    };
    assert_eq!(status("GET http://a.test/ HTTP/1.1\r\nhost: a.test"), 200);
    assert_eq!(status("GET http://a.test/ HTTP/1.1\r\nhost: b.test"), 429, "it is a.test's");
    assert_eq!(status("GET / HTTP/1.1\r\nhost: A.test:80"), 429);
    assert_ne!(status("GET / HTTP/1.0"), 400);
}

/// Whatever becomes of Redis and of tidegate, each request is answered as the proxy's configuration says. `undecided` is
/// the status where Redis is away and a limit has `on_store_error = "reject"`.
fn is_answered_whatever_is_away(
    start: fn(&Upstream, SocketAddr) -> Option<PeerServer>,
    undecided: u16,
) {
    let mut redis = RedisServer::start();
    let limits = format!(
        "[store]\nurl = \"{}\"\ntimeout = \"100ms\"\n\
         [limits.open]\nkey = [\"ip\"]\nrate = \"1000000/s\"\non_store_error = \"allow\"\n\
         [limits.closed]\nkey = [\"ip\"]\nrate = \"1000000/s\"\non_store_error = \"reject\"\n\
         [[routes]]\npath = \"/open\"\nlimits = [\"open\"]\n[[routes]]\npath = \"/closed\"\nlimits = [\"closed\"]\n",
        redis.url()
    );
    let (api, mut proxy) = (Upstream::echoing(), deciding("", &limits));
    let Some(peer) = start(&api, asked_at(&proxy)) else { return };
    let address = peer.address();
    // Clients that ask all the time. The test fails where one of them is not answered.
    let (stop, counted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let load: Vec<_> = (0..8)
        .map(|client| {
            let (stop, counted) = (stop.clone(), counted.clone());
            std::thread::spawn(move || {
                let mut statuses = BTreeSet::new();
                while !stop.load(Ordering::Relaxed) {
                    let path = if client % 2 == 0 { "/open" } else { "/closed" };
                    statuses.insert(get(address, path, &[]).status);
                    counted.fetch_add(1, Ordering::Relaxed);
                }
                statuses
            })
        })
        .collect();
    // Each client's requests before this moment have ended.
    let settle = |what: &str| {
        let before = counted.load(Ordering::Relaxed);
        wait_until(what, || counted.load(Ordering::Relaxed) > before + 50);
    };
    let becomes = |path: &str, status: u16| {
        wait_until(&format!("{path} is answered with {status}"), || {
            get(address, path, &[]).status == status
        });
    };
    settle("all is well");
    redis.pause();
    becomes("/closed", undecided);
    becomes("/open", 200);
    settle("Redis hangs");
    redis.resume();
    becomes("/closed", 200);
    redis.kill();
    becomes("/closed", undecided);
    becomes("/open", 200);
    settle("Redis is away");
    redis.restart();
    becomes("/closed", 200);
    proxy.pause();
    becomes("/open", 500);
    becomes("/closed", 500);
    proxy.signal("CONT");
    becomes("/open", 200);
    becomes("/closed", 200);
    settle("tidegate goes on");
    proxy.signal("KILL");
    proxy.wait_for_exit();
    becomes("/open", 500);
    settle("tidegate is away");
    stop.store(true, Ordering::Relaxed);
    let statuses: BTreeSet<u16> =
        load.into_iter().flat_map(|client| client.join().unwrap()).collect();
    assert_eq!(statuses, BTreeSet::from([200, 500, undecided]));
}

#[test]
fn requests_of_nginx_are_answered_whatever_is_away() {
    let impatient = |api: &Upstream, asked| {
        let recipe = recipe("nginx", "nginx", api, asked);
        PeerServer::nginx_with(&recipe.replace("proxy_read_timeout 10s", "proxy_read_timeout 1s"))
    };
    is_answered_whatever_is_away(impatient, 503);
}

/// The recipe has `failure_mode_deny`.
#[test]
fn requests_of_envoy_are_answered_whatever_is_away() {
    is_answered_whatever_is_away(envoy, 500);
}

/// Three kinds of proxies and fifty clients share one limit in Redis.
#[test]
fn proxies_of_all_kinds_together_never_pass_more_than_the_limit() {
    const MOST: usize = 100;
    let (redis, api) = (RedisServer::start(), Upstream::echoing());
    let limits = format!(
        "[store]\n{}[limits.all]\nkey = [\"header:x-user\"]\nrate = \"{MOST}/d\"\n\
         [[routes]]\npath = \"/{{*rest}}\"\nlimits = [\"all\"]\n",
        redis.fields()
    );
    let forwards =
        format!("upstream = \"api\"\n[upstreams.api]\nservers = [\"http://{}\"]\n", api.address);
    let tidegate = Tidegate::start(&format!("[server]\nlisten = \"LISTEN\"\n{limits}{forwards}"));
    let deciders = [0; 4].map(|_| deciding("", &limits));
    let asked = asked_at(&deciders[0]);
    let peers = [
        nginx(&api, asked_at(&deciders[1])),
        haproxy(&api, asked_at(&deciders[2])),
        envoy(&api, asked_at(&deciders[3])),
    ];
    let mut places: Vec<_> = peers.iter().flatten().map(PeerServer::address).collect();
    places.push(tidegate.address);
    let clients: Vec<_> = (0..50)
        .map(|client| {
            let places = places.clone();
            std::thread::spawn(move || {
                let passed = (0..8).filter(|request| {
                    let user = [("x-user", "a")];
                    match places.get((client + request) % (places.len() + 1)) {
                        Some(place) => get(*place, "/", &user).status == 200,
                        None => {
                            let one = br#"{"path": "/", "headers": {"x-user": "a"}}"#;
                            let mut code = Connection::open(asked);
                            code.request("POST", "/check", &[], one).json()["allowed"] == true
                        }
                    }
                });
                passed.count()
            })
        })
        .collect();
    let passed: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
    assert_eq!(passed, MOST);
}
