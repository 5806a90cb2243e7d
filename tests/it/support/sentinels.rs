//! A Redis master, its replicas, and the sentinels that watch over them.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::Instant;

use super::PATIENCE;
use super::port::Port;
use super::redis::RedisServer;

/// The name of the master.
pub(crate) const MASTER: &str = "limits";

/// A master, two replicas, and three sentinels that fail over half a second after the master fell silent.
pub(crate) struct Sentinels {
    pub(crate) servers: Vec<RedisServer>,
    ports: Vec<Port>,
    processes: Vec<Child>,
    _folder: TempDir,
}

impl Sentinels {
    pub(crate) fn start() -> Self {
        let master = RedisServer::start();
        let of_master = master.port().to_string();
        let replica = || {
            let options =
                ["--replicaof", "127.0.0.1", &of_master, "--repl-diskless-sync-delay", "0"];
            RedisServer::start_with(&options)
        };
        let servers = vec![replica(), replica()];
        let servers: Vec<_> = [master].into_iter().chain(servers).collect();
        let folder = tempfile::tempdir().unwrap();
        let ports: Vec<_> = (0..3).map(|_| Port::hold()).collect();
        let processes = ports.iter().enumerate().map(|(index, port)| {
            let file = folder.path().join(format!("{index}.conf"));
            let port = port.address.port();
            let text = format!(
                "port {port}\nbind 127.0.0.1\nsentinel monitor {MASTER} 127.0.0.1 {of_master} 2\n\
                 sentinel down-after-milliseconds {MASTER} 500\n\
                 sentinel failover-timeout {MASTER} 3000\n"
            );
            fs::write(&file, text).unwrap();
            Command::new("redis-server")
                .arg(&file)
                .arg("--sentinel")
                .current_dir(folder.path())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("redis-server is not installed")
        });
        let processes = processes.collect();
        let sentinels = Self { servers, ports, processes, _folder: folder };
        sentinels.until("the sentinels know each other and both replicas", || {
            (0..3).all(|index| {
                let known = |list: &str| -> usize {
                    let answer = sentinels.ask(index, list);
                    answer.map_or(0, |answer: Vec<redis::Value>| answer.len())
                };
                known("REPLICAS") == 2 && known("SENTINELS") == 2
            })
        });
        sentinels
    }

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<_> = self.ports.iter().map(|port| port.address.to_string()).collect();
        format!("redis-sentinel://{}/{MASTER}", hosts.join(","))
    }

    /// The index in `servers` of the master that all sentinels name.
    pub(crate) fn master(&self) -> Option<usize> {
        let named = |index: usize| self.ask(index, "GET-MASTER-ADDR-BY-NAME");
        let (_, port): (String, u16) = named(0)?;
        let agree = (1..3).all(|index| named(index) == Some(("127.0.0.1".to_owned(), port)));
        self.servers.iter().position(|server| server.port() == port).filter(|_| agree)
    }

    /// Makes the sentinels choose another master, although the present one works.
    pub(crate) fn fail_over(&self) {
        self.ask::<String>(0, "FAILOVER").expect("a failover");
    }

    pub(crate) fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let patience = Instant::now() + 2 * PATIENCE;
        while !is_so() {
            assert!(Instant::now() < patience, "never: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn kill_sentinel(&mut self, index: usize) {
        self.processes[index].kill().unwrap();
        self.processes[index].wait().unwrap();
    }

    /// It goes on taking connections and answers nothing.
    pub(crate) fn pause_sentinel(&self, index: usize) {
        let pid = self.processes[index].id().to_string();
        assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    }

    fn ask<T: redis::FromRedisValue>(&self, index: usize, what: &str) -> Option<T> {
        let url = format!("redis://{}", self.ports[index].address);
        let mut connection = redis::Client::open(url).unwrap().get_connection().ok()?;
        redis::cmd("SENTINEL").arg(what).arg(MASTER).query(&mut connection).ok()
    }
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
