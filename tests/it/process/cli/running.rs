//! What runs: `run`, with and without a word before it, and `demo`.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

use super::{ONE, folder, told};
use crate::support::client::get;
use crate::support::tidegate::program;
use crate::support::upstream::Upstream;

/// A process, killed when it is dropped, and its output.
struct Running(Child, BufReader<ChildStdout>);

impl Running {
    fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut command = program();
        command.args(arguments).current_dir(folder);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self(child, output)
    }

    /// The next line that fits; those before it are passed over.
    fn line(&mut self, fits: impl Fn(&str) -> bool) -> String {
        loop {
            let mut line = String::new();
            assert!(self.1.read_line(&mut line).unwrap() > 0, "it ended");
            if fits(&line) {
                return line;
            }
        }
    }

    fn event(&mut self, message: &str) -> Value {
        let wanted = format!("\"message\":\"{message}\"");
        serde_json::from_str(&self.line(|line| line.contains(&wanted))).unwrap()
    }

    fn listening(&mut self) -> SocketAddr {
        self.event("listening")["address"].as_str().unwrap().parse().unwrap()
    }

    fn end(&mut self, signal: &str) -> Option<i32> {
        let signal = format!("-{signal}");
        Command::new("kill").arg(signal).arg(self.0.id().to_string()).status().unwrap();
        self.0.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Open files that the process may have: what it may now, and at the most.
fn open_files(process: u32) -> Vec<u64> {
    let limits = std::fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn open_files_are_raised_as_far_as_they_may_be() {
    let text = format!("[server]\nlisten = \"127.0.0.1:0\"\nmax_connections = 100\n{ONE}");
    let there = folder(Some(&text));
    // Two for each connection and some besides: 456.
    for (most, warned) in [(500, false), (300, true)] {
        let mut command = Command::new("sh");
        let limited = format!("ulimit -S -n 200 && ulimit -H -n {most} && exec \"$0\"");
        command.arg("-c").arg(limited).arg(program().get_program()).current_dir(there.path());
        command.env_remove("RUST_LOG");
        let mut proxy = Running::spawn(command);
        if warned {
            let warning = proxy.event("few open files");
            assert_eq!((&warning["limit"], &warning["wanted"]), (&300.into(), &456.into()));
            assert!(warning["help"].as_str().unwrap().contains("max_connections"));
        } else {
            assert!(proxy.line(|_| true).contains("config loaded"), "nothing to warn of");
        }
        proxy.listening();
        assert_eq!(open_files(proxy.0.id()), [most.min(456), most]);
    }
}

/// It had been raised for the first `max_connections` alone, and the connections of a larger one
/// took the descriptors away from each other's requests.
#[test]
fn open_files_are_raised_for_a_reload_too() {
    let text = format!("[server]\nlisten = \"127.0.0.1:0\"\nmax_connections = 100\n{ONE}");
    let there = folder(Some(&text));
    let mut command = Command::new("sh");
    let limited = "ulimit -S -n 200 && ulimit -H -n 1000 && exec \"$0\"";
    command.arg("-c").arg(limited).arg(program().get_program()).current_dir(there.path());
    command.env_remove("RUST_LOG");
    let mut proxy = Running::spawn(command);
    proxy.listening();
    let file = there.path().join("proxy.toml");
    std::fs::write(&file, text.replace("= 100\n", "= 200\n")).unwrap();
    proxy.event("config reloaded");
    assert_eq!(open_files(proxy.0.id()), [656, 1000]);
    std::fs::write(&file, text.replace("= 100\n", "= 500\n")).unwrap();
    assert_eq!(proxy.event("few open files")["wanted"], 1256);
    proxy.event("config reloaded");
    assert_eq!(open_files(proxy.0.id()), [1000, 1000]);
}

#[test]
fn an_upstream_alone_is_enough() {
    let api = Upstream::echoing();
    let empty = folder(None);
    let url = api.url();
    for command in [&["run"][..], &[]] {
        let arguments = [command, &["--upstream", &url, "--listen", "127.0.0.1:0"]].concat();
        let mut proxy = Running::start(empty.path(), &arguments);
        assert_eq!(proxy.event("config loaded")["file"], "none");
        let address = proxy.listening();
        assert_eq!(get(address, "/any/path?x", &[]).text(), "/any/path?x");
        assert_eq!(proxy.end("TERM"), Some(0));
    }
}

#[test]
fn the_command_line_overrides_the_file() {
    let (there, other) = (Upstream::echoing(), Upstream::echoing());
    let file = ONE.replace("http://127.0.0.1:3000", &there.url());
    let folder = folder(Some(&format!("[server]\nlisten = \"127.0.0.1:1\"\n{file}")));
    let url = other.url();
    let arguments = ["--upstream", &url, "--listen", "127.0.0.1:0"];
    let mut proxy = Running::start(folder.path(), &arguments);
    let reply = get(proxy.listening(), "/a", &[]);
    assert_eq!(reply.status, 200);
    assert!(reply.header("ratelimit").is_some(), "the file's limits hold");
    assert_eq!((there.requests().len(), other.requests().len()), (0, 1));
    // Which of two would be meant?
    let two = format!(
        "{file}[upstreams.b]\nservers = [\"{}\"]\n[[routes]]\npath = \"/b\"\nupstream = \"b\"\n",
        there.url()
    );
    let (code, _, errors) = told(self::folder(Some(&two)).path(), &["run", "--upstream", &url]);
    assert_eq!(code, 2);
    assert!(errors.contains("--upstream"), "{errors}");
}

#[test]
fn a_port_in_use_is_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let here = folder(Some(ONE));
    let (code, out, errors) = told(here.path(), &["run", "--listen", &address]);
    assert_eq!((code, errors.lines().count()), (1, 1), "{errors}");
    assert!(errors.contains(&address) && errors.contains("--listen"), "{errors}");
    assert!(!out.contains("\"listening\""), "{out}");
    let admin =
        format!("[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"{address}\"\n{ONE}");
    let (code, out, errors) = told(folder(Some(&admin)).path(), &[]);
    assert_eq!((code, errors.lines().count()), (1, 1), "{errors}");
    assert!(errors.contains("admin.listen"), "{errors}");
    assert!(!out.contains("\"listening\""), "{out}");
    let (code, out, errors) = told(here.path(), &["demo", "--listen", &address]);
    assert_eq!((code, out.as_str(), errors.lines().count()), (1, "", 1), "{errors}");
    assert!(errors.contains("--listen"), "{errors}");
    let foreign = ["run", "--listen", "192.0.2.1:80"];
    let (code, _, errors) = told(here.path(), &foreign);
    assert_eq!((code, errors.lines().count()), (1, 1), "{errors}");
    assert!(errors.contains("192.0.2.1:80"), "{errors}");
}

#[test]
fn signals_end_it_with_0_from_the_first_moment() {
    let here = folder(Some(ONE));
    for signal in ["TERM", "INT"] {
        let mut proxy = Running::start(here.path(), &["--listen", "127.0.0.1:0"]);
        proxy.listening();
        assert_eq!(proxy.end(signal), Some(0), "{signal}");
        proxy.event("draining");
        proxy.event("stopped");
    }
}

#[test]
fn the_demo_needs_nothing_and_throttles_its_visitor() {
    let folder = folder(None);
    let mut demo = Running::start(folder.path(), &["demo", "--listen", "127.0.0.1:0"]);
    let first = demo.line(|line| line.contains("http://"));
    let address: SocketAddr =
        first.trim().rsplit_once("http://").unwrap().1.parse().expect("an address to try");
    let page = demo.line(|line| line.contains("http://") && line.trim().ends_with('/'));
    let file = demo.line(|line| line.contains("sed -i.bak "));
    let file = PathBuf::from(file.trim().rsplit_once(' ').unwrap().1);
    // Whoever began with `cargo run` has nothing on the PATH.
    let explain = demo.line(|line| line.contains("explain 'GET /hello'"));
    let beside = demo.line(|line| line.contains("run --upstream"));
    assert!(!beside.contains(&address.to_string()), "it can run beside the demo: {beside}");
    let program = PathBuf::from(explain.split_whitespace().next().unwrap());
    assert!(program.exists(), "{} is there to be called", program.display());
    assert_eq!(demo.listening(), address, "it listens where it says");
    let page = page.trim().trim_start_matches("http://").trim_end_matches('/');
    assert_eq!(get(page.parse().unwrap(), "/", &[("host", "localhost")]).status, 200);
    let throttled = demo.event("throttled");
    assert_eq!((&throttled["limit"], &throttled["count"]), (&"per-client".into(), &1.into()));
    // Who tries it has a bucket of his own.
    for _ in 0..5 {
        assert_eq!(get(address, "/hello", &[]).status, 200);
    }
    // What it tells to try works: change the file while it runs.
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("2/s", "100000/s").replace("burst = 5", "")).unwrap();
    assert!(demo.event("config reloaded")["changed"].to_string().contains("100000/s"));
    let mine = get(address, "/hello?x", &[]);
    assert_eq!((mine.status, mine.text().as_str()), (200, "the sample API got GET /hello?x\n"));
    assert_eq!(demo.end("INT"), Some(0));
    assert!(!file.exists(), "it leaves nothing behind");
    // A file of the user's own is written, and never written over.
    let own = folder.path().join("own.toml");
    let arguments = ["demo", "--quiet", "--listen", "127.0.0.1:0", "--config", "own.toml"];
    let mut demo = Running::start(folder.path(), &arguments);
    demo.listening();
    assert_eq!(demo.end("TERM"), Some(0));
    assert!(own.exists());
    let (code, _, errors) = told(folder.path(), &arguments);
    assert_eq!(code, 2);
    assert!(errors.contains("own.toml"), "{errors}");
}
