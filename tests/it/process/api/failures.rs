//! What fails without a word to clients. Nothing of it may stand under "All is well".

use std::fs;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::status;
use crate::support::client::{Connection, get};
use crate::support::metrics::Metrics;
use crate::support::port::Port;
use crate::support::proxy::Proxy;
use crate::support::tidegate::{Tidegate, program};
use crate::support::tls::Folder;
use crate::support::tokens::{KeyServer, Signer};
use crate::support::upstream::{Upstream, nobody, ok};
use crate::support::wait_until;

/// Waits for an alarm that begins so, and returns its level. The summary must not be content meanwhile.
fn alarm(admin: std::net::SocketAddr, what: &str) -> String {
    let mut level = String::new();
    wait_until(what, || {
        let status = status(admin);
        let alarms = status["alarms"].as_array().unwrap();
        let found = alarms.iter().find(|it| it["what"].as_str().unwrap().starts_with(what));
        let Some(found) = found else { return false };
        assert!(!status["summary"].as_str().unwrap().contains("well"), "{status}");
        found["level"].as_str().unwrap().clone_into(&mut level);
        true
    });
    level
}

fn until_well(proxy: &Tidegate) {
    wait_until("all is well", || {
        let status = status(proxy.admin());
        status["alarms"] == Value::Array(Vec::new())
            && status["summary"].as_str().unwrap().starts_with("All is well")
    });
}

fn metric(proxy: &Tidegate, name: &str) -> f64 {
    Metrics::of(proxy.admin()).value(name)
}

/// The page was green over an API that nobody could reach by TLS.
#[test]
fn a_certificate_that_ends_has_ended_or_is_broken_is_an_alarm() {
    const TAKEN: &str = "tidegate_last_read_successful{source=\"server.tls\"}";
    let folder = Folder::new();
    let files = folder.write_server("cert", &["a.test"]);
    let tls = format!(
        "[server.tls]\nlisten = \"LISTEN\"\ncertificates = [{{ cert = {:?}, key = {:?} }}]",
        files.cert, files.key
    );
    let proxy = Proxy::answering().admin().section(&tls).start();
    until_well(&proxy);
    let name = files.cert.display();
    let expiry = format!("tidegate_certificate_expiry_timestamp_seconds{{certificate=\"{name}\"}}");
    assert!(metric(&proxy, &expiry) > 4e9, "rcgen's certificates live long");
    assert_eq!(metric(&proxy, TAKEN), 1.0);
    folder.write_server_for("cert", "a.test", 5);
    let line = proxy.log.wait("certificate expires", |_| true);
    assert_eq!(
        (&line["level"], &line["names"], &line["days"]),
        (&"WARN".into(), &"a.test".into(), &5.into())
    );
    assert_eq!(line["certificate"], name.to_string());
    assert_eq!(alarm(proxy.admin(), &format!("A certificate ends in 5 days: {name}")), "warning");
    assert!(metric(&proxy, &expiry) < 4e9);
    folder.write_ended_server("cert", "a.test");
    let is_over = |line: &Value| line["days"].as_i64() < Some(0);
    let days = proxy.log.wait("certificate expires", is_over)["days"].as_i64().unwrap();
    // Midnight may lie between the two lines.
    let ago = [days, days - 1].map(|days| format!("less than {} days ago", -days));
    let is_said = |line: &Value| ago.iter().any(|ago| line["warning"].to_string().contains(ago));
    proxy.log.wait("config warning", is_said);
    assert_eq!(alarm(proxy.admin(), "A certificate has ended"), "error");
    assert_eq!(metric(&proxy, &expiry), 1_577_836_800.0);
    folder.write_server("cert", &["a.test"]);
    until_well(&proxy);
    assert_eq!(proxy.log.count("certificate expires"), 2, "each once a day");
    fs::write(&files.cert, "broken").unwrap();
    assert_eq!(alarm(proxy.admin(), "Not taken: the certificates of server.tls"), "warning");
    assert_eq!(metric(&proxy, TAKEN), 0.0);
    folder.write_server("cert", &["a.test"]);
    until_well(&proxy);
    assert_eq!(metric(&proxy, TAKEN), 1.0);
}

#[test]
fn a_certificate_that_servers_of_the_api_are_shown_counts_too() {
    let folder = Folder::new();
    let files = folder.write_server_for("shown", "a.test", 1);
    let (cert, key) = (files.cert.display(), files.key.display());
    let tls = format!("tls = {{ ca = {:?}, cert = \"{cert}\", key = \"{key}\" }}", folder.ca());
    let api = nobody().replace("http:", "https:");
    let proxy = Proxy::to(api).admin().upstream(&tls).start();
    assert_eq!(proxy.log.wait("certificate expires", |_| true)["days"], 1);
    alarm(proxy.admin(), &format!("A certificate ends in a day: {cert}"));
}

#[test]
fn keys_of_tokens_that_cannot_be_fetched_are_an_alarm() {
    let (port, signer) = (Port::hold(), Signer::new("a"));
    let table = format!("[jwt.main]\nkeys = \"http://{}/keys\"\nrefresh = \"100ms\"", port.address);
    let limit = "key = [\"jwt:sub\"]\nrate = \"100000/h\"";
    let proxy = Proxy::answering().admin().section(&table).limit("one", limit).start();
    let keys = || {
        let of = |name: &str| metric(&proxy, &format!("tidegate_{name}{{jwt=\"main\"}}"));
        let taken = "tidegate_last_read_successful{source=\"jwt.main.keys\"}";
        (of("jwt_keys"), metric(&proxy, taken))
    };
    assert_eq!(alarm(proxy.admin(), "Not taken: jwt.main.keys"), "error", "there are none");
    assert_eq!(keys(), (0.0, 0.0));
    let server = KeyServer::on(&port, &[&signer]);
    until_well(&proxy);
    assert_eq!(keys(), (1.0, 1.0));
    server.says("");
    assert_eq!(alarm(proxy.admin(), "Not taken: jwt.main.keys"), "warning", "the old ones stay");
    assert_eq!(keys(), (1.0, 0.0));
    server.says("HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{\"keys\":[]}");
    wait_until("the alarm names the whole URL", || {
        let of = format!("http://{}/keys: it has no key", port.address);
        status(proxy.admin())["alarms"][0]["do"].as_str().is_some_and(|it| it.contains(&of))
    });
    let age = || metric(&proxy, "tidegate_jwt_keys_age_seconds{jwt=\"main\"}");
    let before = age();
    wait_until("the keys grow old", || age() > before);
}

/// The page was green over limits in shadow that would refuse every request once they enforce. And a request that two
/// limits would refuse counted twice.
#[test]
fn what_limits_in_shadow_would_refuse_is_an_alarm_and_counts_once() {
    let limit = |name: &str| {
        format!(
            "key = [\"header:{name}\"]\nmissing = \"reject\"\nrate = \"9000/s\"\nmode = \"shadow\""
        )
    };
    let proxy = Proxy::answering().admin().limit("a", &limit("x-a")).limit("b", &limit("x-b"));
    let proxy = proxy.start();
    let both = [("x-a", "1"), ("x-b", "1")];
    let mut said = None;
    wait_until("an alarm", || {
        for headers in [&[][..], &both] {
            assert_eq!(get(proxy.address, "/", headers).status, 200);
        }
        let status = status(proxy.admin());
        said = status["alarms"].get(0).cloned();
        said.is_some()
    });
    let alarm = said.unwrap();
    let what = alarm["what"].as_str().unwrap();
    let (counts, rest) = what.split_once(" requests").unwrap();
    assert_eq!(rest, " would get 400 or 401 once the limits enforce");
    assert_eq!(alarm["level"], "warning");
    let (refused, all) = counts.split_once(" of ").unwrap();
    let [refused, all] = [refused, all].map(|count| count.parse::<u64>().unwrap());
    assert!(4 * refused < 3 * all, "half of the requests have their keys: {what}");
}

/// Killed when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_log_that_nobody_gets_is_an_alarm_with_its_cause() {
    let (folder, admin) = (tempfile::tempdir().unwrap(), Port::hold());
    let file = folder.path().join("proxy.toml");
    fs::write(&file, Proxy::answering().admin().text_with_admin(admin.address)).unwrap();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = program();
    command.arg("run").arg("--config").arg(&file).stdout(full).stderr(Stdio::null());
    let _process = Killed(command.spawn().unwrap());
    wait_until("it listens", || std::net::TcpStream::connect(admin.address).is_ok());
    let what = "Log lines are dropped: No space left on device";
    assert_eq!(alarm(admin.address, what), "warning");
    assert!(Metrics::of(admin.address).value("tidegate_log_dropped_total") > 0.0);
}

/// An API that takes 1.5 s in place of 1 ms, and less than any time-out, looked as ever.
#[test]
fn an_api_that_is_slow_beside_its_own_last_hour_is_an_alarm() {
    let (millis, told) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let takes = Arc::clone(&millis);
    let api = Upstream::answering(move |_| {
        thread::sleep(Duration::from_millis(takes.load(Relaxed)));
        ok("")
    });
    let proxy = Proxy::to(&api).admin().start();
    let clients: Vec<_> = std::iter::repeat_with(|| {
        let (address, told) = (proxy.address, Arc::clone(&told));
        thread::spawn(move || {
            let mut client = Connection::open(address);
            while told.load(Relaxed) == 0 {
                assert_eq!(client.get("/", &[]).status, 200);
                // Forty clients need no more than ten answers a second each.
                thread::sleep(Duration::from_millis(100));
            }
        })
    })
    .take(40)
    .collect();
    wait_until("it is known how fast the API is", || {
        status(proxy.admin())["uptime_ms"].as_u64() > Some(9_000)
    });
    until_well(&proxy);
    millis.store(600, Relaxed);
    assert_eq!(alarm(proxy.admin(), "Slow API: api takes"), "warning");
    millis.store(0, Relaxed);
    until_well(&proxy);
    told.store(1, Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert_eq!(get(proxy.address, "/", &[]).status, 200);
}
