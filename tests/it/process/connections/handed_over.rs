//! Sockets that a service manager hands over, and what it is told.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Output, Stdio};

use crate::support::client::{Connection, get};
use crate::support::metrics::Metrics;
use crate::support::port::Port;
use crate::support::proxy::Proxy;
use crate::support::service::{NotifySocket, hand_over};
use crate::support::tidegate::{Tidegate, program};
use crate::support::wait_until;

fn listener() -> (SocketAddr, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    (listener.local_addr().unwrap(), listener)
}

/// What a process with these sockets says that ends at once.
fn refused(config: &Proxy, sockets: Vec<(&str, OwnedFd)>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("proxy.toml");
    std::fs::write(&file, config.text().replace("LISTEN", "127.0.0.1:0")).unwrap();
    let mut command = program();
    hand_over(command.arg("--config").arg(&file), sockets);
    let Output { status, stderr, .. } = command.output().unwrap();
    assert_eq!(status.code(), Some(1));
    String::from_utf8_lossy(&stderr).into_owned()
}

#[test]
fn sockets_that_are_handed_over_are_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidegate.sock");
    let (port, (admin, admin_socket)) = (Port::hold(), listener());
    let plain = port.address;
    let plain_socket = TcpListener::bind(plain).unwrap();
    let unix_socket = UnixListener::bind(&path).unwrap();
    let config = Proxy::answering()
        .server(&format!("workers = 3\nlisten = [\"{plain}\", \"unix:{}\"]", path.display()))
        .section(&format!("[admin]\nlisten = \"{admin}\""));
    // They come before the proxy does, and wait in the queue.
    let mut early: Vec<_> = (0..10).map(|_| Connection::open(plain)).collect();
    let mut proxy = Tidegate::start_with(&config.text(), |command| {
        let sockets = vec![
            ("http", plain_socket.into()),
            ("metrics", admin_socket.into()),
            ("", unix_socket.into()),
        ];
        hand_over(command, sockets);
    });
    assert_eq!((proxy.address, proxy.admin()), (plain, admin));
    for client in &mut early {
        assert_eq!(client.get("/", &[]).status, 200);
    }
    assert_eq!(Metrics::of(admin).value("tidegate_connections{protocol=\"http1\"}"), 10.0);
    assert_eq!(Connection::of(UnixStream::connect(&path).unwrap()).get("/", &[]).status, 200);
    drop(early);
    assert_eq!(proxy.stop().code(), Some(0));
    wait_until("nobody listens", || TcpStream::connect(plain).is_err());
    assert!(path.exists(), "the file is the service manager's");
}

#[test]
fn a_socket_that_no_setting_names_is_an_error() {
    let (address, socket) = listener();
    let error = refused(&Proxy::answering(), vec![("web", socket.into())]);
    let expected = format!(
        "a socket for {address} was handed over (descriptor 3, web), and no setting names this address"
    );
    assert!(error.contains(&expected), "{error}");
    assert!(
        error.contains("server.listen, server.tls.listen, decide.listen, admin.listen"),
        "{error}"
    );
}

/// Otherwise it would be told that another process listens there.
#[test]
fn a_socket_of_the_same_port_on_another_address_is_told() {
    let socket = TcpListener::bind("0.0.0.0:0").unwrap();
    let address = socket.local_addr().unwrap();
    let listen = format!("listen = \"127.0.0.1:{}\"", address.port());
    let error = refused(&Proxy::answering().server(&listen), vec![("web", socket.into())]);
    assert!(error.contains(&format!("a socket for {address} was handed over")), "{error}");
}

#[test]
fn what_does_not_listen_is_an_error() {
    let (_address, socket) = listener();
    let connected = TcpStream::connect(socket.local_addr().unwrap()).unwrap();
    let (end, _other) = UnixStream::pair().unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    for (handed_over, expected) in [
        (OwnedFd::from(connected), "it does not listen"),
        (OwnedFd::from(end), "it does not listen"),
        (OwnedFd::from(file), "neither a TCP socket nor a Unix socket"),
    ] {
        let error = refused(&Proxy::answering(), vec![("", handed_over)]);
        assert!(error.contains("the descriptor 3 that was handed over"), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}

/// The variables of a parent that was itself started by a service manager.
#[test]
fn what_was_handed_over_to_another_process_is_left_alone() {
    let (address, socket) = listener();
    let proxy = Tidegate::start_with(&Proxy::answering().text(), |command| {
        hand_over(command, vec![("", socket.into())]);
        command.env("LISTEN_PID", "1");
    });
    assert_ne!(proxy.address, address);
}

#[test]
fn a_service_manager_is_told_when_the_process_is_ready_and_when_it_stops() {
    let manager = NotifySocket::new();
    let config = Proxy::answering();
    let mut proxy = Tidegate::start_with(&config.text(), |command| manager.name_to(command));
    assert_eq!(manager.next(), ["READY=1"]);
    proxy.signal("HUP");
    let reloading = manager.next();
    assert_eq!(reloading[0], "RELOADING=1");
    assert!(reloading[1].starts_with("MONOTONIC_USEC="), "{reloading:?}");
    assert_eq!(manager.next(), ["READY=1"]);
    proxy.stop();
    assert_eq!(manager.next(), ["STOPPING=1"]);
}

/// The program of systemd that does what a socket unit does.
#[test]
fn systemd_hands_its_socket_over() {
    let (port, folder) = (Port::hold(), tempfile::tempdir().unwrap());
    let file = folder.path().join("proxy.toml");
    let config = Proxy::answering().on(&port);
    std::fs::write(&file, config.text()).unwrap();
    let mut command = Command::new("systemd-socket-activate");
    command.arg("--listen").arg(port.address.to_string()).arg("--fdname=web");
    command.arg(env!("CARGO_BIN_EXE_tidegate")).arg("--config").arg(&file);
    let mut process = match command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
        Ok(process) => process,
        Err(error) => {
            eprintln!("skipped: cannot start systemd-socket-activate: {error}; install systemd");
            return;
        }
    };
    wait_until("systemd listens", || TcpStream::connect(port.address).is_ok());
    let answered = std::panic::catch_unwind(|| get(port.address, "/", &[]).status);
    let _ = process.kill();
    let _ = process.wait();
    assert_eq!(answered.unwrap(), 200);
}
