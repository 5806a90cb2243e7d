//! The command line: what it prints where, and its exit codes.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::support::client::get;
use crate::support::tidegate::{Tidegate, program};
use crate::support::upstream::Upstream;

const ONE: &str = "[upstreams.api]\nservers = [\"http://127.0.0.1:3000\"]\n\
                   [limits.client]\nkey = [\"ip\"]\nrate = \"100/s\"\n\
                   [[routes]]\npath = \"/{*rest}\"\nupstream = \"api\"\nlimits = [\"client\"]\n";

/// A folder with this proxy.toml, if one is given.
fn folder(text: Option<&str>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    if let Some(text) = text {
        std::fs::write(folder.path().join("proxy.toml"), text).unwrap();
    }
    folder
}

/// Exit code, standard output, standard error.
fn told(folder: &Path, arguments: &[&str]) -> (i32, String, String) {
    let told = program().args(arguments).current_dir(folder).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (told.status.code().unwrap(), text(told.stdout), text(told.stderr))
}

#[test]
fn help_and_version_are_what_was_asked_for() {
    let folder = folder(None);
    for arguments in [
        &["--help"][..],
        &["-h"],
        &["--version"],
        &["help", "run"],
        &["run", "--help"],
        &["check", "--help"],
        &["explain", "--help"],
        &["demo", "--help"],
        &["schema", "--help"],
        &["health", "--help"],
    ] {
        let (code, out, errors) = told(folder.path(), arguments);
        assert_eq!((code, errors.as_str()), (0, ""), "{arguments:?}");
        assert!(!out.is_empty());
    }
    let (_, help, _) = told(folder.path(), &["--help"]);
    for word in ["run", "check", "explain", "demo", "schema", "health", "429", "proxy.toml"] {
        assert!(help.contains(word), "{word} in {help}");
    }
}

#[test]
fn what_was_typed_wrong_is_2_and_stands_in_standard_error() {
    let there = folder(Some(ONE));
    for (arguments, word) in [
        (&["frobnicate"][..], "frobnicate"),
        (&["run", "--port", "80"], "--port"),
        (&["explain"], "REQUEST"),
        // It would be ignored, and another file checked than the one that was meant.
        (&["--config", "other.toml", "check"], "--config"),
        (&["explain", "GE[T /"], "GE[T /"),
        (&["explain", "users/42"], "users/42"),
        (&["explain", "/", "--header", "novalue"], "novalue"),
        (&["explain", "/", "--ip", "1.2.3"], "1.2.3"),
        (&["run", "--listen", "nowhere"], "nowhere"),
        (&["run", "--upstream", "ftp://x"], "ftp://x"),
        (&["run", "--upstream", "http://x/path"], "http://x/path"),
        (&["health"], "admin.listen"),
    ] {
        let (code, out, errors) = told(there.path(), arguments);
        assert_eq!((code, out.as_str()), (2, ""), "{arguments:?}");
        assert!(errors.contains(word), "{word} in {errors}");
    }
}

#[test]
fn check_says_ok_or_all_that_is_wrong() {
    assert_eq!(told(folder(Some(ONE)).path(), &["check"]), (0, "ok\n".into(), String::new()));
    let warned = ONE.replace("100/s", "0/s");
    let (code, out, errors) = told(folder(Some(&warned)).path(), &["check"]);
    assert_eq!((code, out.as_str()), (0, "ok\n"));
    assert!(errors.contains("warning") && errors.contains("proxy.toml:5:8"), "{errors}");
    let wrong = ONE.replace("rate", "rte").replace("/{*rest}", "users");
    let (code, out, errors) = told(folder(Some(&wrong)).path(), &["check"]);
    assert_eq!((code, out.as_str()), (2, ""));
    for part in ["proxy.toml:5:1", "rte", "`rate`", "proxy.toml:7:8"] {
        assert!(errors.contains(part), "{part} in {errors}");
    }
    let elsewhere = folder(None);
    std::fs::write(elsewhere.path().join("other.toml"), ONE).unwrap();
    for arguments in [&["check", "--config", "other.toml"][..], &["check", "-c", "other.toml"]] {
        assert_eq!(told(elsewhere.path(), arguments).0, 0);
    }
    let (code, _, errors) = told(elsewhere.path(), &["check"]);
    assert_eq!(code, 2);
    assert!(errors.contains("there is no proxy.toml"), "{errors}");
}

#[test]
fn without_a_file_there_is_a_way_on() {
    let empty = folder(None);
    for arguments in [&[][..], &["run"]] {
        let (code, out, errors) = told(empty.path(), arguments);
        assert_eq!((code, out.as_str()), (2, ""));
        for part in ["there is no proxy.toml", "--upstream", "tidegate demo"] {
            assert!(errors.contains(part), "{part} in {errors}");
        }
    }
}

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
fn the_schema_is_json_that_knows_the_fields() {
    let (code, out, errors) = told(folder(None).path(), &["schema"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    let schema: Value = serde_json::from_str(&out).unwrap();
    assert!(schema["$schema"].as_str().unwrap().contains("json-schema.org"));
    for table in ["server", "upstreams", "limits", "routes", "store", "reject", "log", "admin"] {
        assert!(schema["properties"][table].is_object(), "{table}");
    }
}

/// Everything that `explain` can say, in one file.
const MANY: &str = "[server]\ntrusted_proxies = [\"127.0.0.1\"]\n\
    [upstreams.api]\nservers = [\"http://127.0.0.1:3000\"]\n\
    [store]\nurl = \"redis://127.0.0.1:6379\"\n\
    [limits.client]\nkey = [\"ip\"]\nrate = \"100/s\"\nexempt = { ip = [\"10.0.0.0/8\"] }\n\
    [limits.user]\nkey = [\"header:x-user\", \"param:id\"]\nrate = \"5/m\"\n\
    cost = { header = \"x-cost\", max = 4 }\n\
    overrides = [{ key = [\"vip\", \"*\"], rate = \"unlimited\" }, \
    { key = [\"eve\", \"*\"], rate = \"0/s\" }]\n\
    [limits.try]\nkey = [\"cookie:sid\"]\nmissing = \"skip\"\nrate = \"1/s\"\nmode = \"shadow\"\n\
    [limits.all]\nrate = \"1000/s\"\nscope = \"node\"\n\
    [[routes]]\nname = \"user\"\npath = \"/users/{id}\"\nmethods = [\"GET\", \"PUT\"]\n\
    upstream = \"api\"\nrewrite = \"/v2/{id}\"\nlimits = [\"client\", \"user\", \"try\", \"all\"]\n\
    [[routes]]\nname = \"beta\"\npath = \"/users/{id}\"\nmethods = [\"GET\"]\n\
    headers = { x-beta = \"1\" }\nrespond = { status = 204 }\n\
    [[routes]]\nname = \"rest\"\npath = \"/users/{*rest}\"\nupstream = \"api\"\n";

#[test]
fn explain_says_which_and_why() {
    let folder = folder(Some(MANY));
    let explain = |arguments: &[&str]| {
        let (code, out, errors) = told(folder.path(), &[&["explain"], arguments].concat());
        assert_eq!((code, errors.as_str()), (0, ""), "{arguments:?}");
        // One space is as good as many.
        out.lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
            .join("\n")
    };
    let has = |text: &str, parts: &[&str]| {
        for part in parts {
            assert!(text.contains(part), "`{part}` in:\n{text}");
        }
    };
    let text = explain(&["GET /users/%34%32?q=1", "--header", "x-user: ann"]);
    has(
        &text,
        &[
            "request GET /users/42 (host localhost)",
            "client 127.0.0.1: a trusted proxy, and there is no x-forwarded-for",
            "route user",
            "upstream api (http://127.0.0.1:3000)",
            "gets /v2/42",
            "why path /users/{id} fits, with id = 42",
            "methods GET, PUT too",
            "beta is tried before, and wants methods GET and headers x-beta",
            "rest has such a path too, and is less specific",
            "limit client: 100/s, burst 100",
            "counted by ip: 127.0.0.1",
            "in Redis as tidegate:{127.0.0.1}:client",
            "limit user: 5/m, burst 5",
            "counted by header:x-user and param:id: SZFeDX1LQC4wF9AQvBwOgw|42 (hashed)",
            "in Redis as tidegate:{SZFeDX1LQC4wF9AQvBwOgw|42}:user",
            "try does not apply: a part of its key is missing",
            "limit all: 1000/s, burst 1000",
            "one bucket for all requests",
            "in each process by itself",
        ],
    );
    assert!(!text.contains("ann"), "a secret stays one");
    let text = explain(&["/users/7", "--header", "x-forwarded-for: 6.6.6.6, 10.1.2.3"]);
    has(
        &text,
        &[
            "client 10.1.2.3: x-forwarded-for says so, and 127.0.0.1 is a trusted proxy",
            "client does not apply: the request is exempt",
            "without header:x-user it shares that bucket with all such requests",
        ],
    );
    let text = explain(&["/users/7", "--ip", "192.0.2.1", "--header", "x-forwarded-for: 6.6.6.6"]);
    has(&text, &["client 192.0.2.1: x-forwarded-for is not believed"]);
    has(&explain(&["/users/7", "-H", "x-user: vip"]), &["user: unlimited, an override"]);
    has(
        &explain(&["/users/7", "-H", "x-user: vip", "-H", "connection: x-user"]),
        &["x-user counts for nothing", "without header:x-user"],
    );
    has(&explain(&["/users/7", "-H", "x-user: eve"]), &["user: nothing passes, an override"]);
    has(&explain(&["/users/7", "-H", "x-cost: 3"]), &["costs 3"]);
    has(&explain(&["/users/7", "-H", "x-cost: 5"]), &["user refuses it with 400", "`x-cost`"]);
    has(&explain(&["/users/7", "-H", "x-user: a", "-H", "x-user: b"]), &["400", "`x-user`"]);
    has(&explain(&["/users/7", "-H", "cookie: sid=1"]), &["try (shadow: never rejects): 1/s"]);
    has(
        &explain(&["/users/7", "-H", "x-beta: 1"]),
        &["route beta", "204 from the file", "none: every"],
    );
    has(&explain(&["DELETE /users/7"]), &["route rest"]);
    has(&explain(&["/elsewhere"]), &["none has this path", "answer 404"]);
    has(&explain(&["/users/a%2Fb"]), &["answer 400"]);
    has(&explain(&["http://api.test:81/users/7#part"]), &["GET /users/7 (host api.test)"]);
    has(&explain(&["https://[::1]/users/7"]), &["(host [::1])"]);
}

#[test]
fn explain_prints_the_name_that_stands_in_redis() {
    let redis = crate::support::redis::RedisServer::start();
    let file = format!(
        "[server]\nlisten = \"LISTEN\"\n[store]\nurl = \"{}\"\nprefix = \"tg\"\n\
         [limits.user]\nkey = [\"header:x-user\", \"path\"]\nrate = \"5/h\"\n\
         [[routes]]\npath = \"/{{*rest}}\"\nrespond = {{ status = 200 }}\nlimits = [\"user\"]\n",
        redis.url()
    );
    let proxy = Tidegate::start(&file);
    assert_eq!(get(proxy.address, "/a%7Cb", &[("x-user", "ann")]).status, 200);
    let keys: Vec<String> = redis.run(&["KEYS", "tg:{*"]);
    let (_, out, _) = told(proxy.folder(), &["explain", "/a%7Cb", "--header", "x-user: ann"]);
    assert_eq!(keys.len(), 1);
    assert!(out.contains(&keys[0]), "{} in:\n{out}", keys[0]);
}

#[test]
fn explain_tells_who_waits_and_what_is_tried() {
    const FILE: &str = "[store]\nurl = \"redis://127.0.0.1:1\"\n\
        [limits.leaky]\nalgorithm = \"leaky-bucket\"\nrate = \"5/s\"\nqueue = 7\n\
        [limits.late]\nkey = [\"header:x-user\"]\nrate = \"5/s\"\nwait = \"2s\"\nmax_waiting = 9\n\
        candidate = { rate = \"3/s\" }\noverrides = [{ key = [\"ann\"], rate = \"9/s\" }]\n\
        [limits.open]\nrate = \"unlimited\"\ncandidate = { rate = \"4/s\" }\n\
        [[routes]]\npath = \"/\"\nrespond = { status = 200 }\nlimits = [\"leaky\", \"late\", \"open\"]\n";
    let folder = folder(Some(FILE));
    let explain = |user: &str| {
        let user = format!("x-user: {user}");
        told(folder.path(), &["explain", "/", "--header", &user]).1
    };
    let text = explain("bob");
    for part in [
        "leaky: 5/s at even spacing, queue 7",
        "holds requests until their turn comes, 1000 at once",
        "holds requests for up to 2s, 9 at once",
        "tries 3/s, burst 3 in shadow",
        ":late:candidate",
        "open: unlimited",
        "tries 4/s, burst 4 in shadow",
        "tidegate:open:candidate",
    ] {
        assert!(text.contains(part), "`{part}` in:\n{text}");
    }
    let text = explain("ann");
    assert!(text.contains("9/s, burst 9, an override") && !text.contains("tries 3/s"), "{text}");
}

#[test]
fn the_demo_needs_nothing_and_throttles_its_visitor() {
    let folder = folder(None);
    let mut demo = Running::start(folder.path(), &["demo", "--listen", "127.0.0.1:0"]);
    let first = demo.line(|line| line.contains("http://"));
    let address: SocketAddr =
        first.trim().rsplit_once("http://").unwrap().1.parse().expect("an address to try");
    let file = demo.line(|line| line.contains("sed -i"));
    let file = PathBuf::from(file.trim().rsplit_once(' ').unwrap().1);
    // Whoever began with `cargo run` has nothing on the PATH.
    let explain = demo.line(|line| line.contains("explain 'GET /hello'"));
    let program = PathBuf::from(explain.split_whitespace().next().unwrap());
    assert!(program.exists(), "{} is there to be called", program.display());
    assert_eq!(demo.listening(), address, "it listens where it says");
    assert_eq!(demo.event("request")["status"], 200);
    let throttled = demo.event("throttled");
    assert_eq!((&throttled["limit"], &throttled["count"]), (&"per-client".into(), &1.into()));
    // What it tells to try works: change the file while it runs.
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("2/s", "100000/s").replace("burst = 5", "")).unwrap();
    assert!(demo.event("config reloaded")["changed"].as_str().unwrap().contains("100000/s"));
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
