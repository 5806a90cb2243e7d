//! Where servers are: on Unix sockets, behind names, and whether they are up.

use std::net::{TcpListener, ToSocketAddrs as _};

use tidegate::tls::H2;

use super::with_servers;
use crate::support::api::Api;
use crate::support::client::{Connection, get};
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::tls::Folder;
use crate::support::upstream::nobody;
use crate::support::wait_until;

#[test]
fn an_api_on_a_unix_socket_is_asked_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let api = Api::unix(&folder.path().join("api.sock"));
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.get("/hello", &[]).text(), "/hello");
    assert_eq!(client.request("POST", "/", &[], b"hello").text(), "hello");
    assert_eq!(api.last().headers["host"], "api.test");
    assert_eq!(api.connections(), 1);
}

#[test]
fn a_client_without_a_host_is_served_from_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let api = Api::unix(&folder.path().join("api.sock"));
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.0\r\n\r\n");
    assert_eq!(client.reply("GET").status, 200);
    assert_eq!(api.last().headers["host"], "localhost");
}

#[test]
fn an_upgraded_connection_reaches_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let api = Api::unix(&folder.path().join("api.sock"));
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nhello");
    assert_eq!(client.any_reply("GET").status, 101);
    assert_eq!(client.exactly(5), b"hello");
}

#[test]
fn a_missing_unix_socket_is_a_502_until_it_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("api.sock");
    let proxy = Proxy::of_one_worker(format!("unix:{}", path.display())).start();
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.get("/", &[]).status, 502);
    let line = proxy.log.wait("upstream failed", |_| true);
    let error = line["error"].as_str().unwrap();
    assert!(error.contains(&format!("cannot connect to unix:{}", path.display())), "{error}");
    assert!(error.contains("No such file"), "{error}");
    let _api = Api::unix(&path);
    wait_until("it answers", || client.get("/", &[]).status == 200);
}

#[test]
fn of_two_addresses_the_one_that_answers_is_used() {
    // Where a machine's `localhost` is of one family alone there is one to try.
    let families: Vec<_> = ("localhost", 0).to_socket_addrs().unwrap().collect();
    for address in &families {
        let api = Api::http1_on(TcpListener::bind((address.ip(), 0)).unwrap());
        let mut proxy = Proxy::to(api.url_by("localhost")).start();
        for _ in 0..5 {
            let own = [("connection", "close")];
            assert_eq!(get(proxy.address, "/hello", &own).text(), "/hello", "{address}");
        }
        proxy.stop();
        assert_eq!(proxy.log.count("server down"), 0);
    }
}

#[test]
fn an_address_of_ipv6_is_a_server() {
    let api = Api::http1_on(TcpListener::bind("[::1]:0").unwrap());
    let proxy = Proxy::of_one_worker(&api).start();
    assert_eq!(get(proxy.address, "/hello", &[]).text(), "/hello");
}

#[test]
fn metrics_say_of_every_kind_of_server_whether_it_is_up() {
    let (files, folder) = (tempfile::tempdir().unwrap(), Folder::new());
    let identity = folder.write_server("api", &["127.0.0.1"]);
    let unix = Api::unix(&files.path().join("api.sock"));
    let h2c = Api::h2c();
    let https = Api::tls(folder.server(&identity, &[H2], None));
    let stranger = Folder::new();
    let wrong = stranger.write_server("api", &["127.0.0.1"]);
    let wrong = Api::tls(stranger.server(&wrong, &[H2], None));
    let missing = format!("unix:{}", files.path().join("missing.sock").display());
    let refusing = [nobody().replace("http:", "h2c:"), nobody()];
    let up = [Api::http1().url, unix.url.clone(), h2c.url.clone(), https.url.clone()];
    let [a, b] = refusing;
    let down = [missing, wrong.url.clone(), a, b];
    let settings = format!(
        "balance = \"round-robin\"\ntls = {{ ca = {:?} }}\n[admin]\nlisten = \"LISTEN\"",
        folder.ca()
    );
    let proxy = with_servers(&[&up[..], &down[..]].concat(), &settings);
    let mut client = Connection::open(proxy.address);
    for _ in 0..16 {
        assert_eq!(client.get("/", &[]).status, 200);
    }
    let metrics = Metrics::of(proxy.admin());
    let value = |server: &String| {
        metrics.value(&format!("tidegate_upstream_up{{upstream=\"api\",server=\"{server}\"}}"))
    };
    assert_eq!(up.each_ref().map(value), [1.0; 4], "{}", metrics.0);
    assert_eq!(down.each_ref().map(value), [0.0; 4], "{}", metrics.0);
}
