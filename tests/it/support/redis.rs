//! A Redis server of a test's own.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::Instant;

/// A server on a free port that keeps nothing. It is killed when it is dropped.
pub(crate) struct RedisServer {
    port: u16,
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

    /// None yet: its port refuses connections.
    pub(crate) fn absent() -> Self {
        let free = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        let dir = tempfile::tempdir().unwrap();
        Self { port, options: Vec::new(), dir, process: None }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// What stands in `[store]` of proxies that use it, with time for any machine.
    pub(crate) fn fields(&self) -> String {
        format!("url = \"{}\"\ntimeout = \"20s\"\n", self.url())
    }

    /// Starts it, empty, in place of the one that may be there, and waits until it answers.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let process = Command::new("redis-server")
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .args(&self.options)
            .current_dir(self.dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is not installed");
        self.process = Some(process);
        let patience = Instant::now() + Duration::from_secs(20);
        while !self.answers() {
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

/// Runs a test with buckets in the process, and in Redis: with what stands in `[store]`.
pub(crate) fn in_both_stores(test: impl Fn(&str)) {
    test("");
    test(&RedisServer::start().fields());
}
