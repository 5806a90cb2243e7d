//! Where a Redis can be: a database other than 0, a Unix socket, and behind sentinels that speak TLS.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::client::statuses;
use crate::support::port::Port;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::tidegate::Tidegate;
use crate::support::tls::Folder;
use crate::support::wait_until;

/// A proxy whose limit of two requests lives in this store, and which has asked it.
fn limits_two(url: &str, further: &str) -> Tidegate {
    let store = format!("url = \"{url}\"\ntimeout = \"20s\"\n{further}");
    let limit = "rate = \"2/h\"\nkey = [\"ip\"]\non_store_error = \"reject\"";
    let proxy = Proxy::answering().limit("client", limit).store(&store).start();
    assert_eq!(statuses(proxy.address, &[&[], &[], &[]]), [200, 200, 429]);
    proxy
}

#[test]
fn a_database_has_the_buckets_that_its_number_names() {
    let server = RedisServer::start();
    let buckets_of = |database: u8| -> usize {
        let url = format!("{}/{database}", server.url());
        let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        let keys: Vec<String> = redis::cmd("KEYS").arg("*client*").query(&mut connection).unwrap();
        keys.len()
    };
    limits_two(&format!("{}/7", server.url()), "");
    assert_eq!((buckets_of(0), buckets_of(7)), (0, 1));
    // The same client has another bucket elsewhere.
    limits_two(&format!("{}/0", server.url()), "");
    assert_eq!((buckets_of(0), buckets_of(7)), (1, 1));
}

#[test]
fn a_unix_socket_leads_to_redis() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis.sock");
    let server = RedisServer::start_with(&["--unixsocket", socket.to_str().unwrap()]);
    limits_two(&format!("redis+unix://{}", socket.display()), "");
    let keys: Vec<String> = server.run(&["KEYS", "*client*"]);
    assert_eq!(keys, ["tidegate:{127.0.0.1}:client"]);
}

/// A sentinel that speaks TLS alone. It is killed when it is dropped.
struct Sentinel(Child);

impl Sentinel {
    /// Watches over the master at this port of TLS.
    fn start(folder: &Path, port: u16, master: u16, files: &str) -> Self {
        let file = folder.join("sentinel.conf");
        let text = format!(
            "port 0\nbind 127.0.0.1\ntls-port {port}\n{files}\
             sentinel monitor limits 127.0.0.1 {master} 1\n"
        );
        fs::write(&file, text).unwrap();
        let mut command = Command::new("redis-server");
        command.arg(&file).arg("--sentinel").current_dir(folder);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn sentinels_and_their_master_are_reached_by_tls() {
    let folder = Folder::new();
    let files = folder.write_server("redis", &["127.0.0.1"]);
    let (cert, key, ca) = (files.cert.to_str().unwrap(), files.key.to_str().unwrap(), folder.ca());
    let options = [
        ("tls-cert-file", cert),
        ("tls-key-file", key),
        ("tls-ca-cert-file", ca.to_str().unwrap()),
        ("tls-auth-clients", "no"),
        // Sentinels, too, then reach the master by TLS.
        ("tls-replication", "yes"),
    ];
    let (of_master, of_sentinel) = (Port::hold(), Port::hold());
    let [master, sentinel] = [&of_master, &of_sentinel].map(|port| port.address.port());
    let number = master.to_string();
    let mut arguments = vec!["--tls-port".to_owned(), number];
    for (name, value) in options {
        arguments.extend([format!("--{name}"), value.to_owned()]);
    }
    let server = RedisServer::start_with(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let lines: String = options.map(|(name, value)| format!("{name} {value}\n")).concat();
    let home = tempfile::tempdir().unwrap();
    let _sentinel = Sentinel::start(home.path(), sentinel, master, &lines);
    wait_until("the sentinel sees its master", || {
        let clients: String = server.run(&["CLIENT", "LIST"]);
        clients.contains("name=sentinel-")
    });
    let _proxy = limits_two(
        &format!("rediss-sentinel://{}/limits", of_sentinel.address),
        &format!("tls = {{ ca = {ca:?} }}"),
    );
    let clients: String = server.run(&["CLIENT", "LIST"]);
    let ours: Vec<_> = clients.lines().filter(|line| line.contains("name=tidegate")).collect();
    let by_tls = format!("laddr=127.0.0.1:{master} ");
    assert!(!ours.is_empty() && ours.iter().all(|line| line.contains(&by_tls)), "{clients}");
    let keys: Vec<String> = server.run(&["KEYS", "*client*"]);
    assert_eq!(keys, ["tidegate:{127.0.0.1}:client"]);
}
