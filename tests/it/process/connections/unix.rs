//! Unix sockets to listen on.

use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::support::PATIENCE;
use crate::support::client::{Connection, get};
use crate::support::http2::frames::{SETTINGS, frame};
use crate::support::peer_server::PeerServer;
use crate::support::proxy::Proxy;
use crate::support::tidegate::{Tidegate, program};
use crate::support::upstream::Upstream;

fn connect(path: &Path) -> Connection<UnixStream> {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Connection::of(stream)
}

/// A folder for sockets.
struct Sockets(tempfile::TempDir);

impl Sockets {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("tidegate.sock")
    }

    /// The setting that listens on the socket alone.
    fn listen(&self) -> String {
        format!("listen = \"unix:{}\"", self.path().display())
    }
}

/// Runs a second process with the file of the first one until it ends, which it does at once.
fn second(first: &Tidegate) -> Output {
    program().arg("--config").arg(first.config_file()).output().unwrap()
}

#[test]
fn requests_come_by_a_socket_and_by_the_network() {
    let (sockets, api) = (Sockets::new(), Upstream::echoing());
    let listen = format!("listen = [\"LISTEN\", \"unix:{}\"]", sockets.path().display());
    let mut proxy = Proxy::to(&api).server(&listen).start();
    assert_eq!(get(proxy.address, "/tcp", &[]).text(), "/tcp");
    for _ in 0..20 {
        let mut client = connect(&sockets.path());
        for path in ["/a", "/b"] {
            assert_eq!(client.get(path, &[]).text(), path);
        }
    }
    let address = format!("unix:{}", sockets.path().display());
    proxy.log.wait("listening", |line| line["address"] == *address);
    let file = std::fs::metadata(sockets.path()).unwrap();
    assert!(file.file_type().is_socket());
    assert_eq!(file.permissions().mode() & 0o777, 0o660);
    assert_eq!(proxy.stop().code(), Some(0));
    assert!(!sockets.path().exists());
}

#[test]
fn the_command_line_names_a_socket_too() {
    let sockets = Sockets::new();
    let _proxy = Tidegate::start_with(&Proxy::answering().text(), |command| {
        command.arg("--listen").arg(format!("unix:{}", sockets.path().display()));
    });
    assert_eq!(connect(&sockets.path()).get("/", &[]).status, 200);
}

#[test]
fn http2_is_spoken_on_a_socket() {
    let sockets = Sockets::new();
    let _proxy = Proxy::answering().server(&sockets.listen()).start();
    let mut client = connect(&sockets.path());
    client.send([&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, b"")].concat());
    assert_eq!(client.exactly(9)[3], SETTINGS);
}

/// Who may connect is decided by the file's rights.
#[test]
fn whoever_may_connect_is_a_trusted_proxy() {
    let (sockets, api) = (Sockets::new(), Upstream::echoing());
    let server = "request_id = \"x-request-id\"\nmax_connections_per_client = 1";
    let limit = "key = [\"ip\"]\nrate = \"2/h\"";
    let _proxy =
        Proxy::to(&api).server(&sockets.listen()).server(server).limit("ip", limit).start();
    let (mut client, mut another) = (connect(&sockets.path()), connect(&sockets.path()));
    let seen = |name: &str| api.last().header(name).unwrap();
    let named = [("x-forwarded-for", "6.6.6.6, 203.0.113.7"), ("x-request-id", "one")];
    assert_eq!(client.get("/", &named).status, 200);
    assert_eq!(another.get("/", &named).status, 200);
    assert_eq!(client.get("/", &named).status, 429);
    assert_eq!((&*seen("x-forwarded-for"), &*seen("x-request-id")), ("203.0.113.7", "one"));
    assert_eq!(client.get("/", &[]).status, 200);
    assert_eq!(seen("x-forwarded-for"), "0.0.0.0");
}

#[test]
fn a_socket_in_use_is_an_error_and_a_stale_one_is_replaced() {
    let sockets = Sockets::new();
    let file = Proxy::answering().server(&sockets.listen());
    let mut first = file.start();
    let refused = second(&first);
    assert_eq!(refused.status.code(), Some(1));
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    let expected = format!(
        "cannot listen on unix:{}: another process listens there",
        sockets.path().display()
    );
    assert!(error.contains(&expected), "{error}");
    assert_eq!(connect(&sockets.path()).get("/", &[]).status, 200, "it is still there");
    first.signal("KILL");
    first.wait();
    assert!(sockets.path().exists());
    let _next = file.start();
    assert_eq!(connect(&sockets.path()).get("/", &[]).status, 200);
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let sockets = Sockets::new();
    let proxy = Proxy::answering().start();
    std::fs::write(sockets.path(), "precious").unwrap();
    let text = Proxy::answering().server(&sockets.listen()).text();
    std::fs::write(proxy.config_file(), text).unwrap();
    let refused = second(&proxy);
    assert_eq!(refused.status.code(), Some(1));
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.contains("there is a file that is no socket"), "{error}");
    assert_eq!(std::fs::read(sockets.path()).unwrap(), b"precious");
}

#[test]
fn another_ones_socket_is_not_removed_at_the_end() {
    let sockets = Sockets::new();
    let mut proxy = Proxy::answering().server(&sockets.listen()).start();
    std::fs::remove_file(sockets.path()).unwrap();
    let _other = UnixListener::bind(sockets.path()).unwrap();
    proxy.stop();
    assert!(sockets.path().exists());
}

#[test]
fn haproxy_stands_in_front_of_a_socket() {
    let (sockets, api) = (Sockets::new(), Upstream::echoing());
    let server = format!("{}\nproxy_protocol = true", sockets.listen());
    let _proxy = Proxy::to(&api).server(&server).start();
    let behind = format!("unix@{}", sockets.path().display());
    let Some(front) = PeerServer::haproxy(&behind, "send-proxy-v2") else { return };
    let mut client = Connection::open_from([127, 0, 0, 9], front.address());
    assert_eq!(client.get("/", &[]).status, 200);
    assert_eq!(api.last().header("x-forwarded-for").as_deref(), Some("127.0.0.9"));
    let mut without = connect(&sockets.path());
    without.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(without.is_closed());
}
