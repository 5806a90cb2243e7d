//! SIGUSR2: the binary that stands at the program's path takes over.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::support::client::{Connection, get};
use crate::support::metrics::Metrics;
use crate::support::port::Port;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::service::NotifySocket;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;
use crate::support::{PATIENCE, wait_until};

/// A folder with a program of its own, which can be replaced.
struct Program(tempfile::TempDir);

impl Program {
    /// A link to the binary under test.
    fn new() -> Self {
        let program = Self(tempfile::tempdir().unwrap());
        program.install();
        program
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("tidegate")
    }

    fn install(&self) {
        let _ = fs::remove_file(self.path());
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tidegate"), self.path()).unwrap();
    }

    /// Puts a script in the program's place.
    fn replace(&self, script: &str) {
        fs::remove_file(self.path()).unwrap();
        fs::write(self.path(), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(self.path(), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn start(&self, config: &Proxy) -> Tidegate {
        Tidegate::start_program(&self.path(), &config.text(), |_| {})
    }
}

/// A process that took over. It is killed when it is dropped.
struct Heir(String);

impl Heir {
    /// Makes the proxy hand over, and waits until it has.
    fn of(proxy: &Tidegate) -> Self {
        let before = proxy.log.count("handed over");
        proxy.signal("USR2");
        wait_until("the proxy hands over", || proxy.log.count("handed over") > before);
        // Another process may have been started before, and have failed.
        Self(proxy.log.with("handed over").pop().unwrap()["pid"].to_string())
    }

    /// The process that was started last.
    fn started_by(proxy: &Tidegate) -> Self {
        let line = proxy.log.wait("successor started", |_| true);
        let last = proxy.log.with("successor started").pop().unwrap_or(line);
        Self(last["pid"].to_string())
    }

    fn signal(&self, name: &str) {
        let mut kill = Command::new("kill");
        let _ = kill.arg(format!("-{name}")).arg(&self.0).stderr(Stdio::null()).status();
    }

    fn is_there(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).unwrap_or_default();
        // One whose parent has not looked yet is dead all the same.
        status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
    }

    fn stop(&self) {
        self.signal("TERM");
        wait_until("the successor ends", || !self.is_there());
    }
}

impl Drop for Heir {
    fn drop(&mut self) {
        self.signal("KILL");
    }
}

/// One request on a connection of its own. The error with which it failed.
fn try_get(address: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    match reply.starts_with("HTTP/1.1 200 ") {
        true => Ok(()),
        false => Err(std::io::Error::other(format!("an answer of {reply:?}"))),
    }
}

/// A hundred requests on a connection that is kept, or fewer if an answer ends it. Returns the number of answers.
fn get_by_kept_connection(address: SocketAddr) -> usize {
    let mut connection = Connection::open(address);
    for answered in 1..100 {
        let last = Instant::now();
        let reply = connection.get("/", &[]);
        assert_eq!(reply.status, 200);
        // A connection without a request is closed after a second. A slow machine must not come near to it.
        if reply.header("connection").is_some() || last.elapsed() > Duration::from_millis(200) {
            return answered;
        }
    }
    100
}

#[test]
fn no_client_notices_that_another_binary_takes_over() {
    let (program, port) = (Program::new(), Port::hold());
    let mut proxy = program.start(&Proxy::answering().on(&port).server("workers = 3").admin());
    let (address, admin) = (proxy.address, proxy.admin());
    let (answered, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let clients: Vec<_> = (0..4)
        .map(|number| {
            let (answered, done) = (answered.clone(), done.clone());
            std::thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let more = match number % 2 {
                        0 => try_get(address).map(|()| 1)?,
                        _ => get_by_kept_connection(address),
                    };
                    answered.fetch_add(more, Ordering::Relaxed);
                }
                Ok::<_, std::io::Error>(())
            })
        })
        .collect();
    let all_live = || !clients.iter().any(std::thread::JoinHandle::is_finished);
    let more = |number: usize| {
        let from = answered.load(Ordering::Relaxed);
        wait_until("more answers", || {
            answered.load(Ordering::Relaxed) >= from + number || !all_live()
        });
    };
    more(1000);
    let heir = Heir::of(&proxy);
    more(1000);
    assert_eq!(proxy.wait_for_exit().code(), Some(0));
    more(1000);
    assert!(get(admin, "/readyz", &[("host", "localhost")]).status == 200);
    // And once more, from the heir.
    heir.signal("USR2");
    wait_until("the heir hands over", || proxy.log.count("handed over") == 2);
    let last = Heir::started_by(&proxy);
    assert_ne!(last.0, heir.0);
    wait_until("the heir ends", || !heir.is_there());
    more(1000);
    done.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap().unwrap();
    }
    last.stop();
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn a_kept_connection_ends_with_its_request() {
    let (api, told, go) = Upstream::slow();
    let program = Program::new();
    let mut proxy = program.start(&Proxy::of_one_worker(&api));
    let (mut client, mut idle) = (Connection::open(proxy.address), Connection::open(proxy.address));
    assert_eq!(idle.get("/idle", &[]).text(), "/idle");
    assert_eq!(client.get("/first", &[]).text(), "/first");
    client.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
    told.recv_timeout(PATIENCE).unwrap();
    let _heir = Heir::of(&proxy);
    assert_eq!(get(proxy.address, "/new", &[]).text(), "/new");
    assert!(idle.is_closed(), "the old worker drains");
    go.send(()).unwrap();
    let reply = client.reply("GET");
    assert_eq!((&*reply.text(), reply.header("connection").as_deref()), ("/slow", Some("close")));
    assert!(client.is_closed());
    assert_eq!(proxy.wait_for_exit().code(), Some(0));
    assert_eq!(get(proxy.address, "/last", &[]).text(), "/last");
}

/// A regression: the old process ended, and the API's call was cut.
#[test]
fn the_old_process_waits_for_requests_whose_clients_have_left() {
    let (program, (api, told, go)) = (Program::new(), Upstream::slow());
    let server = RedisServer::start();
    let config = Proxy::of_one_worker(&api)
        .section("[log]\naccess = true")
        .store(&server.fields())
        .limit("slots", "algorithm = \"concurrency\"\nlimit = 1\nlease = \"1h\"\nkey = []")
        .upstream("on_abort = \"finish\"");
    let mut proxy = program.start(&config);
    let mut client = Connection::open(proxy.address);
    client.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
    told.recv_timeout(PATIENCE).unwrap();
    drop(client);
    proxy.log.wait("request", |line| line["path"] == "/slow");
    let _heir = Heir::of(&proxy);
    proxy.log.wait("draining", |_| true);
    for _ in 0..20 {
        assert_eq!(get(proxy.address, "/", &[]).status, 429, "it is under way");
    }
    go.send(()).unwrap();
    assert_eq!(proxy.wait_for_exit().code(), Some(0));
    assert_eq!(get(proxy.address, "/", &[]).status, 200);
}

#[test]
fn a_broken_binary_changes_nothing() {
    let program = Program::new();
    let mut proxy = program.start(&Proxy::answering());
    let mut kept = Connection::open(proxy.address);
    let mut answers = || {
        assert_eq!(kept.get("/", &[]).status, 200);
        assert_eq!(get(proxy.address, "/", &[]).status, 200);
    };
    program.replace("exit 1");
    proxy.signal("USR2");
    let line = proxy.log.wait("handover failed", |_| true);
    assert_eq!(line["level"], "WARN");
    assert_eq!(line["error"], "the new process ended with exit status: 1");
    answers();
    fs::remove_file(program.path()).unwrap();
    proxy.signal("USR2");
    let error = format!("cannot start {}", program.path().display());
    proxy.log.wait("handover failed", |line| line["error"].as_str().unwrap().contains(&error));
    answers();
    // A wrong file is as bad as a wrong binary.
    program.install();
    let good = fs::read_to_string(proxy.config_file()).unwrap();
    fs::write(proxy.config_file(), "nonsense").unwrap();
    proxy.signal("USR2");
    proxy.log.wait("handover failed", |line| {
        line["error"] == "the new process ended with exit status: 2"
    });
    answers();
    fs::write(proxy.config_file(), good).unwrap();
    let _heir = Heir::of(&proxy);
    assert_eq!(proxy.wait_for_exit().code(), Some(0));
    assert_eq!(get(proxy.address, "/", &[]).status, 200);
}

#[test]
fn a_process_that_ends_takes_its_unready_successor_along() {
    let program = Program::new();
    let mut proxy = program.start(&Proxy::answering());
    program.replace("exec sleep 1000");
    proxy.signal("USR2");
    let heir = Heir::started_by(&proxy);
    // There is one at a time.
    proxy.signal("USR2");
    let line = proxy.log.wait("handover under way", |_| true);
    assert_eq!(line["pid"].to_string(), heir.0);
    assert_eq!(proxy.stop().code(), Some(0));
    assert_eq!(proxy.log.count("successor started"), 1);
    assert_eq!(proxy.log.count("handed over"), 0);
    assert!(!heir.is_there());
}

#[test]
fn a_unix_socket_is_handed_over_with_its_file() {
    let (program, folder) = (Program::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("tidegate.sock");
    let status =
        |path: &Path| Connection::of(UnixStream::connect(path).unwrap()).get("/", &[]).status;
    let server = format!("listen = \"unix:{}\"", path.display());
    let mut proxy = program.start(&Proxy::answering().server(&server));
    assert_eq!(status(&path), 200);
    let heir = Heir::of(&proxy);
    assert_eq!(proxy.wait_for_exit().code(), Some(0));
    assert_eq!(status(&path), 200);
    heir.stop();
    assert!(!path.exists());
}

/// A path that the file does not name any more.
#[test]
fn a_successor_removes_the_socket_file_that_nobody_names() {
    let (program, folder) = (Program::new(), tempfile::tempdir().unwrap());
    let [old, kept] = ["old.sock", "kept.sock"].map(|name| folder.path().join(name));
    let unix = |path: &Path| format!("\"unix:{}\"", path.display());
    let file = |listen: &str| Proxy::answering().server(&format!("listen = [{listen}]"));
    let both = format!("\"LISTEN\", {}, {}", unix(&old), unix(&kept));
    let mut proxy = program.start(&file(&both));
    let text = file(&format!("\"{}\", {}", proxy.address, unix(&kept))).text();
    // A successor that fails must leave the file.
    fs::write(proxy.config_file(), format!("{text}nonsense")).unwrap();
    proxy.signal("USR2");
    proxy.log.wait("handover failed", |_| true);
    assert!(UnixStream::connect(&old).is_ok());
    fs::write(proxy.config_file(), text).unwrap();
    let heir = Heir::of(&proxy);
    wait_until("the old file is removed", || !old.exists());
    assert_eq!(proxy.wait_for_exit().code(), Some(0));
    assert_eq!(Connection::of(UnixStream::connect(&kept).unwrap()).get("/", &[]).status, 200);
    heir.stop();
    assert!(!kept.exists());
}

/// Whoever looks at the page must see the new process, and not the old one until its last request is over.
#[test]
fn the_admin_clients_of_the_old_process_are_sent_to_the_new_one() {
    let (api, told, go) = Upstream::slow();
    let program = Program::new();
    let mut proxy = program.start(&Proxy::to(&api).admin());
    let admin = proxy.admin();
    let host = [("host", "localhost")];
    let mut slow = Connection::open(proxy.address);
    slow.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
    told.recv_timeout(PATIENCE).unwrap();
    let (mut kept, mut stream) = (Connection::open(admin), Connection::open(admin));
    assert_eq!(kept.get("/healthz", &host).status, 200);
    stream.send("GET /api/stream HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stream.until(b"data: ");
    let heir = Heir::of(&proxy);
    assert!(kept.is_closed());
    let (rest, end) = stream.rest_with_end();
    assert!(end.is_ok() && rest.ends_with(b"0\r\n\r\n"), "{end:?}");
    let status = get(admin, "/api/status", &host).json();
    assert_eq!((&status["draining"], &status["requests"]["total"]), (&false.into(), &0.into()));
    assert_eq!(get(admin, "/readyz", &host).status, 200);
    go.send(()).unwrap();
    assert_eq!(slow.reply("GET").text(), "/slow", "the old process was there until now");
    assert_eq!(proxy.wait_for_exit().code(), Some(0));
    heir.stop();
}

/// With the file of a process `listen` needs a restart, and this is one.
#[test]
fn a_successor_listens_where_the_file_says_now() {
    let (program, old, port) = (Program::new(), Port::hold(), Port::hold());
    let mut proxy = program.start(&Proxy::answering().on(&old).server("workers = 2"));
    let text = Proxy::answering().on(&port).server("workers = 1");
    fs::write(proxy.config_file(), text.text()).unwrap();
    let _heir = Heir::of(&proxy);
    assert_eq!(proxy.wait_for_exit().code(), Some(0));
    assert_eq!(get(port.address, "/", &[]).status, 200);
    wait_until("the old address is gone", || TcpStream::connect(old.address).is_err());
}

#[test]
fn a_service_manager_is_told_of_the_new_process() {
    let (program, manager) = (Program::new(), NotifySocket::new());
    let config = Proxy::answering().text();
    let mut proxy =
        Tidegate::start_program(&program.path(), &config, |command| manager.name_to(command));
    assert_eq!(manager.next(), ["READY=1"]);
    let heir = Heir::of(&proxy);
    assert_eq!(manager.next(), [format!("MAINPID={}", heir.0)]);
    assert_eq!(proxy.wait_for_exit().code(), Some(0));
    heir.stop();
    assert_eq!(manager.next(), ["STOPPING=1"]);
}

/// A regression: a process that took over while Redis was away knew of no other, and decided with the whole limit.
#[test]
fn without_redis_a_successor_knows_how_many_processes_share_the_limits() {
    let (program, mut server) = (Program::new(), RedisServer::start());
    let limit = "rate = \"12/h\"\nkey = [\"ip\"]";
    let config = || Proxy::answering().admin().limit("client", limit).store(&server.fields());
    let (one, _other) = (program.start(&config()), config().start());
    let value = |name| Metrics::of(one.admin()).value(name);
    wait_until("each knows two", || value("tidegate_processes") == 2.0);
    server.kill();
    wait_until("Redis counts as away", || value("tidegate_store_up") == 0.0);
    let heir = Heir::of(&one);
    wait_until("the old process ends", || one.log.count("stopped") > 0);
    let passed = (0..20).filter(|_| get(one.address, "/", &[]).status == 200).count();
    assert_eq!((passed, value("tidegate_processes")), (6, 2.0));
    heir.stop();
}

#[test]
fn every_limit_stays_in_shadow_after_a_reload_and_a_handover() {
    let (program, rate) = (Program::new(), "key = []\nrate = \"1/h\"");
    let config = Proxy::answering().admin().server("limits = [\"all\"]").limits(&format!(
        "[limits.all]\n{rate}\n[limits.own]\n{rate}\n[limits.off]\n{rate}\nmode = \"off\""
    ));
    let config = config.route("path = \"/{*rest}\"\nlimits = [\"own\", \"off\"]");
    let text = config.text();
    let proxy = Tidegate::start_program(&program.path(), &text, |command| {
        command.arg("--shadow");
    });
    let modes = || {
        let status = get(proxy.admin(), "/api/status", &[("host", "localhost")]).json();
        let limits = status["limits"].as_array().unwrap().clone();
        let mode = |it: &serde_json::Value| format!("{} {}", it["name"], it["mode"]);
        limits.iter().map(mode).collect::<Vec<_>>()
    };
    let in_shadow = [r#""all" "shadow""#, r#""own" "shadow""#];
    let passes = || assert!((0..3).all(|_| get(proxy.address, "/", &[]).status == 200));
    proxy.log.wait("every limit in shadow", |line| line["level"] == "WARN");
    passes();
    proxy.log.wait("throttled", |line| line["limit"] == "all" && line["decision"] == "shadow");
    assert_eq!(modes(), in_shadow);
    let status = get(proxy.admin(), "/api/status", &[("host", "localhost")]).json();
    assert_eq!(status["summary"], "Every limit marks or is in shadow: none rejects.");
    let config = get(proxy.admin(), "/api/config", &[("host", "localhost")]).json();
    let modes_of =
        ["all", "own", "off"].map(|name| config["settings"]["limits"][name]["mode"].clone());
    assert_eq!(modes_of, ["shadow", "shadow", "off"]);
    proxy.reload(&text.replace("1/h", "2/h"));
    passes();
    assert_eq!(modes(), in_shadow);
    assert_eq!(proxy.log.count("every limit in shadow"), 1, "and again in an hour");
    let heir = Heir::of(&proxy);
    wait_until("the successor says so too", || proxy.log.count("every limit in shadow") == 2);
    passes();
    heir.stop();
}

/// The new process answers 404 for an `id` of the old one. What that holds is not lost.
#[test]
fn what_the_old_process_has_allowed_ends_with_it() {
    let (program, redis) = (Program::new(), RedisServer::start());
    let config = Proxy::answering()
        .section("[decide]\nlisten = \"LISTEN\"")
        .store(&redis.fields())
        .limit("slots", "algorithm = \"concurrency\"\nlimit = 1\nlease = \"1h\"\nkey = []");
    let mut proxy = program.start(&config);
    let line = proxy.log.wait("listening", |line| line["setting"] == "decide.listen");
    let asked: SocketAddr = line["address"].as_str().unwrap().parse().unwrap();
    let ask = |path: &str, body: &str| {
        Connection::open(asked).request("POST", path, &[], body.as_bytes())
    };
    let lease = ask("/check", r#"{"path": "/"}"#).json();
    let _heir = Heir::of(&proxy);
    // Until then the old process may accept a connection too.
    assert_eq!(proxy.wait_for_exit().code(), Some(0));
    let ended = ask("/settle", &format!("{{\"id\": {}}}", lease["id"]));
    assert_eq!(ended.status, 404, "{lease}");
    assert_eq!(ask("/check", r#"{"path": "/"}"#).json()["allowed"], true);
}
