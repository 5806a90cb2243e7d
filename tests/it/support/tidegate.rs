//! A tidegate process in a folder of its own.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};

use serde_json::Value;

use super::{PATIENCE, wait_until};

/// The program under test.
pub(crate) fn program() -> Command {
    program_at(Path::new(env!("CARGO_BIN_EXE_tidegate")))
}

fn program_at(path: &Path) -> Command {
    let mut command = Command::new(path);
    command.env_remove("RUST_LOG");
    command
}

/// A running proxy. Killed when it is dropped.
pub(crate) struct Tidegate {
    /// Where it listens first; 0.0.0.0:0 where that is a Unix socket.
    pub(crate) address: SocketAddr,
    pub(crate) log: Log,
    /// Standard error.
    pub(crate) errors: Log,
    process: Child,
    folder: tempfile::TempDir,
}

impl Tidegate {
    /// Starts a proxy with this `proxy.toml`, in which `LISTEN` stands for an address of its own
    /// (write `listen = "LISTEN"`), and waits until it listens.
    pub(crate) fn start(config: &str) -> Self {
        Self::start_with(config, |_| {})
    }

    /// The same, with changes to the command (arguments, environment).
    pub(crate) fn start_with(config: &str, change: impl FnOnce(&mut Command)) -> Self {
        Self::start_program(Path::new(env!("CARGO_BIN_EXE_tidegate")), config, change)
    }

    /// The same with the program at this path.
    pub(crate) fn start_program(
        path: &Path,
        config: &str,
        change: impl FnOnce(&mut Command),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("proxy.toml");
        std::fs::write(&file, localised(config)).unwrap();
        let mut command = program_at(path);
        command.arg("run").arg("--config").arg(&file).current_dir(folder.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        change(&mut command);
        let mut process = command.spawn().unwrap();
        let log = Log::of(process.stdout.take().unwrap());
        let errors = Log::of(process.stderr.take().unwrap());
        let mut address = None;
        wait_until("the proxy listens", || {
            address = log.find("listening").map(|line| line["address"].clone());
            if address.is_none()
                && let Some(status) = process.try_wait().unwrap()
            {
                panic!("the proxy ended with {status}:\n{}\n{}", errors.text(), log.text());
            }
            address.is_some()
        });
        let address = address.unwrap().as_str().unwrap().parse();
        let address = address.unwrap_or_else(|_| ([0, 0, 0, 0], 0).into());
        Self { address, log, errors, process, folder }
    }

    /// Kilobytes of memory that the process holds.
    pub(crate) fn memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Where the admin endpoint listens.
    pub(crate) fn admin(&self) -> SocketAddr {
        let line = self.log.wait("admin listening", |_| true);
        line["address"].as_str().unwrap().parse().unwrap()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn config_file(&self) -> PathBuf {
        self.folder.path().join("proxy.toml")
    }

    /// Writes another `proxy.toml` in place.
    pub(crate) fn rewrite(&self, config: &str) {
        std::fs::write(self.config_file(), localised(config)).unwrap();
    }

    /// Writes another `proxy.toml` in place and waits until it is in force.
    pub(crate) fn reload(&self, config: &str) {
        let before = self.log.count("config reloaded");
        self.rewrite(config);
        wait_until("the configuration is reloaded", || self.log.count("config reloaded") > before);
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends a signal by its name: `TERM`, `HUP` …
    pub(crate) fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").arg(format!("-{name}")).arg(self.pid().to_string()).status();
        assert!(sent.unwrap().success());
    }

    /// Sets how many files the process may have open.
    pub(crate) fn limit_files(&self, most: usize) {
        let (pid, most) = (self.pid().to_string(), format!("--nofile={most}:"));
        assert!(Command::new("prlimit").args(["--pid", &pid, &most]).status().unwrap().success());
    }

    /// Stops the process in its tracks, until it is sent `CONT`.
    pub(crate) fn pause(&self) {
        self.signal("STOP");
        let stopped = |status: String| status.lines().any(|line| line.starts_with("State:\tT"));
        let file = format!("/proc/{}/status", self.pid());
        wait_until("the proxy is stopped", || stopped(std::fs::read_to_string(&file).unwrap()));
    }

    /// Waits for the process's end; all of its log stands in `log` afterwards.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let ended = self.wait_for_exit();
        self.log.wait_for_end();
        ended
    }

    /// Waits for the process's end, while another process may write into the same log.
    pub(crate) fn wait_for_exit(&mut self) -> ExitStatus {
        let mut ended = None;
        wait_until("the proxy ends", || {
            ended = self.process.try_wait().unwrap();
            ended.is_some()
        });
        ended.unwrap()
    }

    /// SIGTERM, then the end.
    pub(crate) fn stop(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.wait()
    }
}

impl Drop for Tidegate {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("--- the proxy's log:\n{}\n{}", self.log.text(), self.errors.text());
        }
    }
}

fn localised(config: &str) -> String {
    config.replace("LISTEN", "127.0.0.1:0")
}

/// The lines of a stream, as they come.
#[derive(Clone)]
pub(crate) struct Log(Arc<(Mutex<Lines>, Condvar)>);

#[derive(Default)]
struct Lines {
    lines: Vec<String>,
    ended: bool,
}

impl Log {
    fn of(stream: impl std::io::Read + Send + 'static) -> Self {
        let log = Self(Arc::default());
        let shared = log.clone();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stream);
            let mut line = Vec::new();
            while matches!(reader.read_until(b'\n', &mut line), Ok(read) if read > 0) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                shared.0.0.lock().unwrap().lines.push(text);
                shared.0.1.notify_all();
                line.clear();
            }
            let _ = reader.read_to_end(&mut Vec::new());
            shared.0.0.lock().unwrap().ended = true;
            shared.0.1.notify_all();
        });
        log
    }

    /// All lines so far.
    pub(crate) fn text(&self) -> String {
        self.0.0.lock().unwrap().lines.join("\n")
    }

    /// All lines so far that are JSON.
    pub(crate) fn lines(&self) -> Vec<Value> {
        let lines = self.0.0.lock().unwrap();
        lines.lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The lines with this message so far.
    pub(crate) fn with(&self, message: &str) -> Vec<Value> {
        self.lines().into_iter().filter(|line| line["message"] == message).collect()
    }

    pub(crate) fn count(&self, message: &str) -> usize {
        self.with(message).len()
    }

    /// The first line with this message, if it has come.
    pub(crate) fn find(&self, message: &str) -> Option<Value> {
        self.with(message).into_iter().next()
    }

    /// Waits for a line with this message that fits.
    pub(crate) fn wait(&self, message: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let mut found = None;
        wait_until(&format!("a log line `{message}` in:\n{}", self.text()), || {
            found = self.with(message).into_iter().find(|line| fits(line));
            found.is_some()
        });
        found.unwrap()
    }

    fn wait_for_end(&self) {
        let guard = self.0.0.lock().unwrap();
        let waited = self.0.1.wait_timeout_while(guard, PATIENCE, |lines| !lines.ended).unwrap();
        assert!(!waited.1.timed_out(), "the log does not end");
    }
}
