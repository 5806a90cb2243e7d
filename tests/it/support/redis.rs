//! A Redis server of a test's own.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tidegate::settings::{RedisUrl, StoreLocation};
use tokio::time::Instant;

use super::PATIENCE;
use super::port::Port;

/// Buckets in the Redis at this URL.
pub(crate) fn location(url: &str) -> StoreLocation {
    StoreLocation::Redis(Box::new(url.parse::<RedisUrl>().unwrap().location))
}

/// A server on a port of its own that keeps nothing. It is killed when it is dropped.
pub(crate) struct RedisServer {
    port: Port,
    /// Where the servers of a cluster speak with each other.
    bus: Option<Port>,
    options: Vec<String>,
    dir: TempDir,
    process: Option<Child>,
}

impl RedisServer {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// With further options, as on the server's command line.
    pub(crate) fn start_with(options: &[&str]) -> Self {
        let mut server = Self::absent();
        server.restart_with(options);
        server
    }

    /// One server of a cluster.
    pub(crate) fn start_in_cluster(options: &[&str]) -> Self {
        let bus = Port::hold();
        let port = bus.address.port().to_string();
        let mut server = Self::absent();
        server.bus = Some(bus);
        server.restart_with(&[options, &["--cluster-port", &port]].concat());
        server
    }

    /// None yet: its port refuses connections.
    pub(crate) fn absent() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { port: Port::hold(), bus: None, options: Vec::new(), dir, process: None }
    }

    pub(crate) fn bus_port(&self) -> u16 {
        self.bus.as_ref().expect("a server of a cluster").address.port()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.address.port()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.port.address)
    }

    /// Buckets in this Redis, for a user who has only the rights that the manual names.
    pub(crate) fn as_user(&self) -> StoreLocation {
        self.add_rights(|rule| !rule.contains("+cluster|"), 3);
        location(&format!("redis://tidegate:secret@{}", self.port.address))
    }

    /// The same in a cluster, where some more rights are needed.
    pub(crate) fn add_user_of_cluster(&self) {
        self.add_rights(|_| true, 4);
    }

    /// Follows so many rules of the manual.
    fn add_rights(&self, which: impl Fn(&str) -> bool, count: usize) {
        let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operating.md");
        let manual = fs::read_to_string(manual).unwrap();
        let rules = manual.lines().filter(|line| line.starts_with("ACL SETUSER") && which(line));
        let rules: Vec<_> = rules.map(|rule| rule.replace("PASSWORD", "secret")).collect();
        assert_eq!(rules.len(), count);
        for rule in rules {
            let (): () = self.run(&rule.split(' ').collect::<Vec<_>>());
        }
    }

    /// What stands in `[store]` of proxies that use it, with time for any machine.
    pub(crate) fn fields(&self) -> String {
        format!("url = \"{}\"\ntimeout = \"20s\"\n", self.url())
    }

    /// Starts it, empty, in place of the one that may be there, and waits until it answers.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let process = Command::new("redis-server")
            .args(["--port", &self.port().to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .args(&self.options)
            .current_dir(self.dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is not installed");
        self.process = Some(process);
        let patience = Instant::now() + PATIENCE;
        while !self.answers() {
            let ended = self.process.as_mut().and_then(|process| process.try_wait().unwrap());
            assert_eq!(ended, None, "redis-server ended");
            assert!(Instant::now() < patience, "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn restart_with(&mut self, options: &[&str]) {
        self.options = options.iter().map(|option| (*option).to_owned()).collect();
        self.restart();
    }

    /// It dies at once; its port then refuses connections.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// It goes on taking connections and answers nothing.
    pub(crate) fn pause(&self) {
        self.signal("-STOP");
    }

    pub(crate) fn resume(&self) {
        self.signal("-CONT");
    }

    /// A connection for the test itself.
    pub(crate) fn connection(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).unwrap();
        client.get_connection().unwrap()
    }

    /// Runs a command that must succeed.
    pub(crate) fn run<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        let mut call = redis::cmd(command[0]);
        call.arg(&command[1..]).query(&mut self.connection()).unwrap()
    }

    /// How often it has run a command.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        self.stat(command, "calls")
    }

    /// A number that it keeps of a command. It is 0 until the command has come.
    pub(crate) fn stat(&self, command: &str, field: &str) -> u64 {
        let stats: String = self.run(&["INFO", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
        let find = |line: &str| {
            line.split(',').find_map(|it| it.strip_prefix(&format!("{field}="))?.parse().ok())
        };
        line.map_or(0, |line| find(line).expect("the field is there"))
    }

    /// The millisecond at which a key goes; `None` where it never does, or is gone. Servers before 7.0
    /// do not tell it themselves.
    pub(crate) fn goes_at(&self, key: &str) -> Option<u64> {
        let mut connection = self.connection();
        let mut calls = redis::pipe();
        calls.cmd("TIME").cmd("PTTL").arg(key).cmd("TIME");
        loop {
            let (before, left, after): ((u64, u64), i64, (u64, u64)) =
                calls.query(&mut connection).unwrap();
            let [before, after] = [before, after].map(|(s, micros)| s * 1_000 + micros / 1_000);
            if before == after {
                return Some(before + u64::try_from(left).ok()?);
            }
        }
    }

    fn answers(&self) -> bool {
        let Ok(client) = redis::Client::open(self.url()) else { return false };
        let Ok(mut connection) = client.get_connection() else { return false };
        // One that wants a password answers, too.
        match redis::cmd("PING").query::<String>(&mut connection) {
            Ok(_) => true,
            Err(error) => error.code() == Some("NOAUTH"),
        }
    }

    fn signal(&self, signal: &str) {
        let pid = self.process.as_ref().expect("the server is running").id().to_string();
        let status = Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The most calls that a process makes in this time besides those of requests: it announces itself each second, and
/// looks after a connection that is idle.
pub(crate) fn own_calls(time: Duration) -> u64 {
    2 * (time.as_secs() + 1)
}

/// Runs a test with buckets in the process, and in Redis: with what stands in `[store]`.
pub(crate) fn in_both_stores(test: impl Fn(&str)) {
    test("");
    test(&RedisServer::start().fields());
}
