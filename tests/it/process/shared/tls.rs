//! A Redis that is reached by TLS.

use crate::support::client::statuses;
use crate::support::port::Port;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::tidegate::Tidegate;
use crate::support::tls::Folder;

/// A Redis with a certificate for `host`, which asks for its clients' certificates, and its port for TLS.
fn start(folder: &Folder, host: &str) -> (RedisServer, Port) {
    let files = folder.write_server("redis", &[host]);
    let (cert, key, ca) = (files.cert.to_str().unwrap(), files.key.to_str().unwrap(), folder.ca());
    let port = Port::hold();
    let number = port.address.port().to_string();
    let options = ["--tls-port", &number, "--tls-cert-file", cert, "--tls-key-file", key];
    let clients = ["--tls-ca-cert-file", ca.to_str().unwrap(), "--tls-auth-clients", "yes"];
    (RedisServer::start_with(&[&options[..], &clients].concat()), port)
}

/// A proxy whose limit of two requests lives in the Redis at this port.
fn limited(port: &Port, tls: &str) -> Tidegate {
    let url = format!("rediss://{}", port.address);
    let store = format!("url = \"{url}\"\ntimeout = \"20s\"\ntls = {{ {tls} }}");
    let limit = "rate = \"2/h\"\nkey = [\"ip\"]\non_store_error = \"reject\"";
    Proxy::answering().limit("client", limit).store(&store).start()
}

#[test]
fn a_redis_that_asks_for_a_certificate_decides() {
    let folder = Folder::new();
    let (server, port) = start(&folder, "127.0.0.1");
    let client = folder.write_client("client", "tidegate");
    let (ca, cert, key) = (folder.ca(), client.cert, client.key);
    let proxy = limited(&port, &format!("ca = {ca:?}, cert = {cert:?}, key = {key:?}"));
    assert_eq!(statuses(proxy.address, &[&[], &[], &[]]), [200, 200, 429]);
    let keys: Vec<String> = server.run(&["KEYS", "*client*"]);
    assert_eq!(keys, ["tidegate:{127.0.0.1}:client"]);
}

#[test]
fn a_certificate_for_another_name_is_taken_where_the_file_says_so() {
    let folder = Folder::new();
    let (_server, port) = start(&folder, "redis.internal");
    let client = folder.write_client("client", "tidegate");
    let (ca, cert, key) = (folder.ca(), client.cert, client.key);
    let tls = format!("ca = {ca:?}, cert = {cert:?}, key = {key:?}");
    let proxy = limited(&port, &format!("{tls}, server_name = \"redis.internal\""));
    assert_eq!(statuses(proxy.address, &[&[], &[], &[]]), [200, 200, 429]);

    let proxy = limited(&port, &tls);
    assert_eq!(statuses(proxy.address, &[&[]]), [503]);
    let line = proxy.log.wait("store unavailable", |_| true);
    assert!(line["error"].as_str().unwrap().contains("certificate"), "{line}");
}

#[test]
fn a_redis_of_another_authority_is_not_trusted() {
    let folder = Folder::new();
    let (_server, port) = start(&folder, "127.0.0.1");
    let other = Folder::new();
    let proxy = limited(&port, &format!("ca = {:?}", other.ca()));
    assert_eq!(statuses(proxy.address, &[&[]]), [503]);
    let line = proxy.log.wait("store unavailable", |_| true);
    assert!(line["error"].as_str().unwrap().contains("certificate"), "{line}");
}

#[test]
fn a_cluster_is_reached_by_tls() {
    let folder = Folder::new();
    let files = folder.write_server("redis", &["127.0.0.1"]);
    let (cert, key, ca) = (files.cert.to_str().unwrap(), files.key.to_str().unwrap(), folder.ca());
    let port = Port::hold();
    let number = port.address.port().to_string();
    let ca = ca.to_str().unwrap();
    let options = ["--cluster-enabled", "yes", "--tls-port", &number, "--tls-cluster", "yes"];
    let files = ["--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca];
    let server = RedisServer::start_in_cluster(
        &[&options[..], &files, &["--tls-auth-clients", "no"]].concat(),
    );
    let () = server.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let store = format!(
        "url = \"rediss-cluster://{}\"\ntimeout = \"20s\"\ntls = {{ ca = {ca:?} }}",
        port.address
    );
    let limit = "rate = \"2/h\"\nkey = [\"ip\"]";
    let proxy = Proxy::answering().limit("client", limit).store(&store).start();
    proxy.log.wait("store connected", |_| true);
    assert_eq!(statuses(proxy.address, &[&[], &[], &[]]), [200, 200, 429]);
    let clients: String = server.run(&["CLIENT", "LIST"]);
    let ours: Vec<_> = clients.lines().filter(|line| line.contains("name=tidegate ")).collect();
    let by_tls = format!("laddr=127.0.0.1:{number} ");
    assert!(!ours.is_empty() && ours.iter().all(|line| line.contains(&by_tls)), "{clients}");
}
