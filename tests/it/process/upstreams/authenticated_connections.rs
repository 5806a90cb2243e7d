//! Servers that authenticate a connection instead of a request.

use std::io::{BufReader, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};

use http::Version;
use tidegate::tls::{H2, HTTP_1_1};

use super::with_servers;
use crate::support::PATIENCE;
use crate::support::api::Api;
use crate::support::client::{Connection, get};
use crate::support::http2::Client;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::tls::Folder;
use crate::support::upstream::{Got, Upstream, ok, read_request};

/// A server as Windows has it: `NTLM hello` gets a challenge, `NTLM RESPONSE` with that challenge makes the
/// connection its client's, and `Negotiate NAME` does so at once. Then each answer names the client. `/open` needs no
/// authentication, `/close` ends the connection after its answer. The channel tells of each connection that ends.
fn windows() -> (Upstream, Receiver<usize>) {
    let connections = AtomicUsize::new(0);
    let (tell, ended) = channel();
    let server = Upstream::raw(move |mut stream| {
        let number = connections.fetch_add(1, Ordering::SeqCst);
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut user = None;
        while let Some(got) = read_request(&mut reader) {
            let said = answer(&got, number, &mut user);
            if stream.write_all(&said).is_err() || got.path() == "/close" {
                break;
            }
        }
        let _ = tell.send(number);
    });
    (server, ended)
}

fn answer(got: &Got, connection: usize, user: &mut Option<String>) -> Vec<u8> {
    let shown = got.header("authorization").unwrap_or_default();
    let challenge = format!("challenge-{connection}");
    let denied = match shown.split_once(' ') {
        Some((scheme, name)) if scheme.eq_ignore_ascii_case("negotiate") => {
            *user = Some(name.to_owned());
            None
        }
        Some(("NTLM", "hello")) => Some(format!("WWW-Authenticate: NTLM {challenge}\r\n")),
        Some(("NTLM", response)) if response.ends_with(&challenge) => {
            *user = Some(response.replace(&challenge, ""));
            None
        }
        _ if user.is_some() || got.path() == "/open" => None,
        _ => {
            Some("www-authenticate: Basic realm=a, nEGOTIATE\r\nwww-authenticate: NTLM\r\n".into())
        }
    };
    match denied {
        None => ok(user.as_deref().unwrap_or("nobody")),
        Some(fields) => {
            format!("HTTP/1.1 401 Unauthorized\r\n{fields}content-length: 0\r\n\r\n").into_bytes()
        }
    }
}

const HELLO: (&str, &str) = ("authorization", "NTLM hello");

/// The client's answer to a challenge.
fn response(name: &str, challenge: &str) -> String {
    format!("{challenge} ").replace("NTLM ", &format!("NTLM {name}")).trim().to_owned()
}

/// The three legs of NTLM. Returns what the server calls the client.
fn log_in(client: &mut Connection, name: &str) -> String {
    assert_eq!(client.get("/", &[]).status, 401);
    let challenged = client.get("/", &[HELLO]);
    let challenge = challenged.header("www-authenticate").unwrap();
    let shown = response(name, &challenge);
    client.get("/", &[("authorization", &shown)]).text()
}

/// haproxy's issue 581.
#[test]
fn an_authenticated_connection_stays_with_its_client() {
    for scheme in ["Negotiate", "negotiate", "NEGOTIATE"] {
        let (server, _ended) = windows();
        let proxy = Proxy::of_one_worker(&server).start();
        let mut a = Connection::open(proxy.address);
        let shown = format!("{scheme} a");
        let shown = [("authorization", shown.as_str())];
        assert_eq!(a.get("/open", &shown).text(), "a");
        assert_eq!(get(proxy.address, "/open", &[]).text(), "nobody", "{scheme}");
        // With the server's challenge the connection is the client's.
        assert_eq!(a.get("/", &[]).status, 401, "{scheme}");
        assert_eq!(a.get("/", &shown).text(), "a");
        for _ in 0..3 {
            assert_eq!(get(proxy.address, "/", &[]).status, 401, "{scheme}");
            assert_eq!(get(proxy.address, "/open", &[]).text(), "nobody", "{scheme}");
            assert_eq!(a.get("/", &[]).text(), "a", "{scheme}");
        }
    }
}

#[test]
fn clients_log_in_side_by_side() {
    let (one, _) = windows();
    let (other, _) = windows();
    let proxy = with_servers(&[one.url(), other.url()], "balance = \"round-robin\"");
    let mut clients = ["a", "b", "c"].map(|name| (Connection::open(proxy.address), name));
    for (client, _) in &mut clients {
        assert_eq!(client.get("/open", &[]).text(), "nobody");
    }
    // All are between the same two legs at once.
    let challenged = clients.each_mut().map(|(client, _)| {
        assert_eq!(client.get("/", &[]).status, 401);
        client.get("/", &[HELLO]).header("www-authenticate").unwrap()
    });
    for ((client, name), challenge) in clients.iter_mut().zip(challenged) {
        let shown = response(name, &challenge);
        assert_eq!(client.get("/", &[("authorization", &shown)]).text(), *name);
    }
    for _ in 0..3 {
        for (client, name) in &mut clients {
            assert_eq!(client.request("POST", "/", &[], b"hello").text(), *name);
        }
        assert_eq!(get(proxy.address, "/", &[]).status, 401);
    }
}

#[test]
fn a_connection_that_others_used_before_is_left_to_the_client() {
    let (server, _ended) = windows();
    let proxy = Proxy::of_one_worker(&server).start();
    let mut b = Connection::open(proxy.address);
    for _ in 0..3 {
        assert_eq!(b.get("/open", &[]).text(), "nobody");
    }
    let mut a = Connection::open(proxy.address);
    assert_eq!(log_in(&mut a, "a"), "a");
    assert_eq!(b.get("/open", &[]).text(), "nobody");
    assert_eq!(b.get("/", &[]).status, 401);
}

/// What makes a connection its client's may be the answer alone, also a successful one.
#[test]
fn an_answer_makes_the_connection_its_clients() {
    for field in [
        "www-authenticate: NTLM",
        "WWW-Authenticate: negotiate oYG=",
        "www-authenticate: Basic realm=\"a\"\r\nwww-authenticate: Digest realm=\"b\", Negotiate",
        "proxy-authenticate: NTLM",
    ] {
        for status in ["200 OK", "401 Unauthorized", "403 Forbidden", "407 Proxy"] {
            let said = format!("HTTP/1.1 {status}\r\n{field}\r\ncontent-length: 0\r\n\r\n");
            let server = Upstream::answering(move |_| said.clone().into_bytes());
            let proxy = Proxy::of_one_worker(&server).start();
            let mut clients = [(); 2].map(|()| Connection::open(proxy.address));
            for _ in 0..2 {
                for client in &mut clients {
                    client.get("/", &[]);
                }
            }
            let earlier: Vec<_> = server.requests().iter().map(|got| got.earlier).collect();
            assert_eq!(earlier, [0, 0, 1, 1], "{status} {field}");
        }
    }
}

#[test]
fn other_schemes_share_connections() {
    let said = "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Basic realm=\"NTLM\"\r\n\
                content-length: 0\r\n\r\n";
    let server = Upstream::answering(|_| said.into());
    let proxy = Proxy::of_one_worker(&server).start();
    // A regression: each client that wrote "NTLM" had a connection of its own. Without a challenge it authenticates none.
    for shown in ["Bearer NTLM", "NTLM x", "ntlm TlRMTVNTUAAB"] {
        get(proxy.address, "/", &[("authorization", shown)]);
    }
    assert_eq!(server.last().earlier, 2);
}

#[test]
fn the_connection_is_closed_with_its_client() {
    let (server, ended) = windows();
    let proxy = Proxy::of_one_worker(&server).start();
    let mut a = Connection::open(proxy.address);
    assert_eq!(log_in(&mut a, "a"), "a");
    assert_eq!(get(proxy.address, "/open", &[]).text(), "nobody");
    drop(a);
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(0));
}

#[test]
fn a_connection_that_the_server_closed_costs_no_request() {
    let (server, ended) = windows();
    let proxy = Proxy::of_one_worker(&server).start();
    let mut a = Connection::open(proxy.address);
    for _ in 0..3 {
        assert_eq!(log_in(&mut a, "a"), "a");
        assert_eq!(a.get("/close", &[]).text(), "a");
        ended.recv_timeout(PATIENCE).unwrap();
    }
}

/// Over HTTP/2 too the next request of the client goes on the same connection.
#[test]
fn a_client_of_http_2_keeps_its_connection() {
    let (server, ended) = windows();
    let proxy = Proxy::of_one_worker(&server).start();
    let mut a = Client::open(proxy.address);
    let mut b = Client::open(proxy.address);
    let challenge = a.get("/", &[HELLO]).header("www-authenticate").unwrap();
    let shown = response("a", &challenge);
    assert_eq!(a.get("/", &[("authorization", &shown)]).text(), "a");
    for _ in 0..3 {
        assert_eq!(b.get("/", &[]).status, 401);
        assert_eq!(a.get("/", &[]).text(), "a");
    }
    drop(a);
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(0));
}

#[test]
fn a_server_of_http_2_gets_a_connection_that_is_not_shared() {
    let api = Api::h2c();
    let proxy = Proxy::of_one_worker(&api).start();
    assert_eq!(connections(&api, &proxy), [0, 1, 0, 0, 2, 0]);
}

#[test]
fn a_server_of_both_protocols_is_authenticated_to_by_http_1_1() {
    let folder = Folder::new();
    let files = folder.write_server("api", &["127.0.0.1"]);
    let tls = format!("tls = {{ ca = {:?} }}", folder.ca());
    let api = Api::tls(folder.server(&files, &[H2, HTTP_1_1], None));
    let proxy = Proxy::of_one_worker(&api).upstream(&tls).start();
    assert_eq!(connections(&api, &proxy), [0, 1, 0, 0, 2, 0]);
    let (old, new) = (Version::HTTP_11, Version::HTTP_2);
    let versions: Vec<_> = api.calls().iter().map(|call| call.version).collect();
    assert_eq!(versions, [new, old, new, new, old, new]);
    // The answer of a server of HTTP/2 alone comes on such a connection too.
    let alone = Api::tls(folder.server(&files, &[H2], None));
    let proxy = Proxy::of_one_worker(&alone).upstream(&tls).start();
    let used = connections(&alone, &proxy);
    assert_eq!([used[0], used[2], used[3], used[5]], [used[0]; 4], "{used:?}");
    assert!(![used[0], used[4]].contains(&used[1]) && used[4] != used[0], "{used:?}");
}

/// The connections on which these requests come: of nobody, of A who authenticates, of nobody, of A, of B
/// who authenticates, of nobody.
fn connections(api: &Api, proxy: &Tidegate) -> Vec<usize> {
    let [mut a, mut b, mut c] = [(); 3].map(|()| Connection::open(proxy.address));
    let shown = [("authorization", "Negotiate YII=")];
    c.get("/", &[]);
    a.get("/", &shown);
    c.get("/", &[]);
    a.get("/", &[]);
    b.get("/", &shown);
    c.get("/", &[]);
    api.calls().iter().map(|call| call.connection).collect()
}
