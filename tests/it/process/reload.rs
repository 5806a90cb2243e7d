//! A changed proxy.toml, while it runs.

use serde_json::json;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate::tls::{HTTP_1_1, IdentityFiles};

use crate::support::client::{Connection, get};
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::tls::{Folder, shake_hands};
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

fn config(limit: &str) -> String {
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [limits.client]\nkey = [\"ip\"]\n{limit}\n\
         [[routes]]\npath = \"/{{*rest}}\"\nrespond = {{ status = 200 }}\nlimits = [\"client\"]\n"
    )
}

fn policy(proxy: &Tidegate) -> String {
    get(proxy.address, "/", &[]).header("ratelimit-policy").unwrap_or_default()
}

/// Waits until the limit has this burst.
fn wait_for_burst(proxy: &Tidegate, burst: u32) {
    let wanted = format!("\"client\";q={burst};");
    wait_until(&format!("a burst of {burst}"), || policy(proxy).starts_with(&wanted));
}

/// As an editor saves: a new file beside it, then a rename over it.
fn replace(file: &Path, text: &str) {
    let beside = file.with_extension("new");
    fs::write(&beside, text).unwrap();
    fs::rename(&beside, file).unwrap();
}

#[test]
fn a_file_written_in_place_or_replaced_is_in_force() {
    let proxy = Tidegate::start(&config("rate = \"1000/h\""));
    let file = proxy.config_file();
    fs::write(&file, config("rate = \"1001/h\"")).unwrap();
    wait_for_burst(&proxy, 1001);
    replace(&file, &config("rate = \"1002/h\""));
    wait_for_burst(&proxy, 1002);
    // As some editors do: the old one is moved away first.
    fs::rename(&file, file.with_extension("old")).unwrap();
    fs::write(&file, config("rate = \"1003/h\"")).unwrap();
    wait_for_burst(&proxy, 1003);
    // The same length and the same second do not hide a change.
    fs::write(&file, config("rate = \"1004/h\"")).unwrap();
    wait_for_burst(&proxy, 1004);
    assert_eq!(proxy.log.count("config rejected"), 0);
}

#[test]
fn a_config_map_swaps_a_symlink() {
    let proxy = Tidegate::start(&config("rate = \"1000/h\""));
    let dir = proxy.folder();
    for (name, rate) in [("..1", "1000/h"), ("..2", "2000/h")] {
        fs::create_dir(dir.join(name)).unwrap();
        fs::write(dir.join(name).join("proxy.toml"), config(&format!("rate = \"{rate}\"")))
            .unwrap();
    }
    let link = |target: &str, name: &str| {
        symlink(target, dir.join("link")).unwrap();
        fs::rename(dir.join("link"), dir.join(name)).unwrap();
    };
    link("..1", "..data");
    link("..data/proxy.toml", "proxy.toml");
    wait_for_burst(&proxy, 1000);
    link("..2", "..data");
    fs::remove_dir_all(dir.join("..1")).unwrap();
    wait_for_burst(&proxy, 2000);
    assert_eq!(proxy.log.count("config rejected"), 0);
}

#[test]
fn sighup_reads_the_file_again() {
    let proxy = Tidegate::start(&config("rate = \"1000/h\""));
    proxy.signal("HUP");
    let line = proxy.log.wait("config reloaded", |_| true);
    assert_eq!(line["changed"], json!([]), "nothing");
    fs::write(proxy.config_file(), config("rate = \"1001/h\"")).unwrap();
    proxy.signal("HUP");
    wait_for_burst(&proxy, 1001);
}

#[test]
fn buckets_keep_what_they_held() {
    let proxy = Tidegate::start(&config("rate = \"10/h\""));
    let left = || {
        let reply = get(proxy.address, "/", &[]);
        let left = reply.header("ratelimit").unwrap().split(';').nth(1).unwrap().to_owned();
        (reply.status, left)
    };
    for n in (6..10).rev() {
        assert_eq!(left(), (200, format!("r={n}")));
    }
    // Four are used: they stay used under other figures.
    proxy.reload(&config("rate = \"20/h\""));
    assert_eq!(left(), (200, "r=15".into()));
    proxy.reload(&config("rate = \"20/h\"\nburst = 6"));
    assert_eq!(left(), (200, "r=0".into()), "five were used, and this one");
    assert_eq!(left().0, 429);
    proxy.reload(&config("rate = \"20/h\"\nburst = 7"));
    assert_eq!(left(), (200, "r=0".into()));
    // A limit that goes and comes back in between was not told to forget.
    proxy.reload(&config("rate = \"20/h\"\nburst = 7\nmode = \"off\""));
    assert_eq!(get(proxy.address, "/", &[]).status, 200);
    proxy.reload(&config("rate = \"20/h\"\nburst = 7"));
    assert_eq!(left().0, 429);
}

#[test]
fn no_connection_is_dropped() {
    let api = Upstream::answering(|got| {
        if got.path() == "/slow" {
            return b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n1".to_vec();
        }
        ok("done")
    });
    let file = |n: u32| {
        let header = format!("response_headers = {{ set = {{ x-n = \"{n}\" }} }}");
        let route = format!("path = \"/{{*rest}}\"\n{header}");
        Proxy::of_one_worker(&api).route(&route).text()
    };
    let proxy = Tidegate::start(&file(1));
    let mut busy = Connection::open(proxy.address);
    busy.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
    let head = busy.until(b"\r\n\r\n1");
    assert!(head.starts_with(b"HTTP/1.1 200"));
    let mut idle = Connection::open(proxy.address);
    assert_eq!(idle.get("/", &[]).header("x-n").as_deref(), Some("1"));
    proxy.reload(&file(2));
    assert_eq!(idle.get("/", &[]).header("x-n").as_deref(), Some("2"), "the same connection");
    assert_eq!(api.last().earlier, 1, "and the same one upstream");
    busy.stream.set_nonblocking(true).unwrap();
    let error = std::io::Read::read(&mut busy.stream, &mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "still waiting for its second byte");
}

#[test]
fn a_broken_file_changes_nothing_and_is_told_once() {
    let proxy = Tidegate::start(&config("rate = \"1000/h\""));
    let broken = config("rte = \"1/h\"\nburst = 0\nkey = \"ip\"").replace("key = [\"ip\"]\n", "");
    fs::write(proxy.config_file(), &broken).unwrap();
    let line = proxy.log.wait("config rejected", |_| true);
    assert_eq!(line["level"], "WARN");
    let errors = line["errors"].to_string();
    assert_eq!(line["errors"].as_array().unwrap().len(), 3, "{errors}");
    for place in ["proxy.toml:6:1: ", "proxy.toml:7:9: ", "proxy.toml:8:7: "] {
        assert!(errors.contains(place), "{place} in {errors}");
    }
    assert!(errors.contains("`rate`"), "the nearest name: {errors}");
    assert!(policy(&proxy).contains("q=1000"));
    assert_eq!(Metrics::of(proxy.admin()).value("tidegate_config_last_reload_successful"), 0.0);
    // The way back is no change of anything, but it is told, and the next error is told again.
    proxy.reload(&config("rate = \"1000/h\""));
    assert_eq!(proxy.log.count("config rejected"), 1, "once");
    assert_eq!(Metrics::of(proxy.admin()).value("tidegate_config_last_reload_successful"), 1.0);
    assert_eq!(proxy.log.find("config reloaded").unwrap()["changed"], json!([]));
    fs::write(proxy.config_file(), "nonsense").unwrap();
    wait_until("the next error", || proxy.log.count("config rejected") == 2);
    fs::remove_file(proxy.config_file()).unwrap();
    wait_until("no file at all", || proxy.log.count("config rejected") == 3);
    assert!(policy(&proxy).contains("q=1000"));
}

#[test]
fn what_needs_a_restart_is_named_and_the_rest_applies() {
    let file = |head: &str, rate: &str| {
        config(&format!("rate = \"{rate}\"")).replace("[limits.", &format!("{head}\n[limits."))
    };
    let proxy = Tidegate::start(&file("", "1000/h"));
    let all = "[store]\nurl = \"redis://127.0.0.1:1\"\nprefix = \"other\"\n\
               [log]\nformat = \"json\"\nkeys = \"plain\"";
    let changed = file(all, "1001/h")
        .replacen("127.0.0.1:0", "127.0.0.1:1", 1)
        .replacen("127.0.0.1:0", "127.0.0.1:2", 1)
        .replace("[admin]", "workers = 7\n[admin]");
    fs::write(proxy.config_file(), &changed).unwrap();
    let line = proxy.log.wait("restart needed", |_| true);
    assert_eq!(line["level"], "WARN");
    let fields = line["fields"].as_array().unwrap();
    let mut fields: Vec<_> = fields.iter().map(|field| field.as_str().unwrap()).collect();
    fields.sort_unstable();
    assert_eq!(
        fields,
        [
            "admin.listen",
            "log.format",
            "log.keys",
            "server.listen",
            "server.workers",
            "store.prefix",
            "store.url"
        ]
    );
    wait_for_burst(&proxy, 1001);
    let told = proxy.log.find("config reloaded").unwrap();
    assert!(told["changed"].to_string().contains("rate 1000/h -> 1001/h"), "{told}");
    // Back to what runs: nothing needs a restart any more.
    proxy.reload(&file("", "1002/h"));
    assert_eq!(proxy.log.count("restart needed"), 1);
    // The way there once more, beside another change: it is still not in force.
    proxy.reload(&file("[store]\nprefix = \"other\"", "1002/h"));
    proxy.reload(&file("[store]\nprefix = \"other\"", "1003/h"));
    wait_until("it is told each time", || proxy.log.count("restart needed") == 3);
    assert_eq!(proxy.log.with("restart needed")[2]["fields"], json!(["store.prefix"]));
}

#[test]
fn the_log_says_what_changed_and_what_was_likely_not_meant() {
    let proxy = Tidegate::start(&config("rate = \"1000/h\""));
    let more = "[[routes]]\npath = \"/new\"\nrespond = { status = 204 }\n[log]\naccess = true\n";
    proxy.reload(&format!("{}{more}", config("rate = \"50/h\"\nburst = 100\nmode = \"shadow\"")));
    let line = proxy.log.find("config reloaded").unwrap();
    for change in [
        "limits.client rate 1000/h -> 50/h",
        "limits.client burst 1000 -> 100",
        "limits.client mode enforce -> shadow",
        "route /new added",
        "log.access false -> true",
    ] {
        assert!(line["changed"].as_array().unwrap().contains(&json!(change)), "{change} in {line}");
    }
    proxy.reload(&config("rate = \"0/s\""));
    let line = proxy.log.wait("config warning", |_| true);
    assert!(line["warning"].as_str().unwrap().contains("proxy.toml:7:8: "), "{line}");
}

#[test]
fn reloads_under_requests_fail_none() {
    let api = Upstream::echoing();
    let file = |n: u32| {
        let limit = format!("key = [\"ip\"]\nrate = \"{}/s\"", 1_000_000 + n);
        let server = "listen = \"127.0.0.1:0\"\nworkers = 2";
        Proxy::to(&api).server(server).limit("client", &limit).text()
    };
    let proxy = Tidegate::start(&file(0));
    let done = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|n| {
            let (done, address) = (done.clone(), proxy.address);
            std::thread::spawn(move || {
                let mut kept = Connection::open(address);
                let mut answered = 0_u32;
                while !done.load(Ordering::Relaxed) {
                    // Half of them come on a connection of their own.
                    let reply = match n % 2 {
                        0 => kept.get("/", &[]),
                        _ => get(address, "/", &[]),
                    };
                    assert_eq!(reply.status, 200);
                    answered += 1;
                }
                answered
            })
        })
        .collect();
    for n in 1..=10 {
        fs::write(proxy.config_file(), file(n)).unwrap();
        proxy.signal("HUP");
        let change = format!("-> {}/s", 1_000_000 + n);
        proxy.log.wait("config reloaded", |line| line["changed"].to_string().contains(&change));
    }
    done.store(true, Ordering::Relaxed);
    for client in clients {
        assert!(client.join().unwrap() > 0);
    }
}

/// The endpoint's socket stays open until a restart. Nobody must get in meanwhile without a token.
#[test]
fn an_endpoint_that_others_reach_keeps_its_token() {
    let reached = "listen = \"0.0.0.0:0\"\ntoken = \"secret\"\n[limits.client]";
    let file =
        config("rate = \"1000/h\"").replace("listen = \"127.0.0.1:0\"\n[limits.client]", reached);
    let proxy = Tidegate::start(&file);
    let status = |headers: &[(&str, &str)]| get(proxy.admin(), "/api/status", headers).status;
    for other in ["[limits.client]", "listen = \"127.0.0.1:0\"\n[limits.client]"] {
        proxy.reload(&file.replace(reached, other).replace("[admin]\n[", "["));
        assert_eq!(status(&[("host", "localhost")]), 401, "{other}");
        assert_eq!(status(&[("authorization", "Bearer secret")]), 200, "{other}");
    }
    let fields = &proxy.log.with("restart needed")[0]["fields"];
    assert_eq!(*fields, json!(["admin.listen"]));
    proxy.reload(&file.replace("secret", "other"));
    assert_eq!(status(&[("authorization", "Bearer other")]), 200, "a new one is taken");
}

/// A regression: on loopback, an endpoint whose section had gone was open to all users of the machine until a restart.
#[test]
fn an_endpoint_that_the_file_no_longer_names_keeps_its_token() {
    let guarded = "listen = \"127.0.0.1:0\"\ntoken = \"secret\"\n[limits.client]";
    let file =
        config("rate = \"1000/h\"").replace("listen = \"127.0.0.1:0\"\n[limits.client]", guarded);
    let proxy = Tidegate::start(&file);
    let status = |headers: &[(&str, &str)]| get(proxy.admin(), "/api/status", headers).status;
    let host = ("host", "localhost");
    assert_eq!(status(&[host]), 401);
    proxy.reload(&file.replace(guarded, "[limits.client]").replace("[admin]\n[", "["));
    assert_eq!(status(&[host]), 401);
    assert_eq!(status(&[("authorization", "Bearer secret"), host]), 200);
    proxy.reload(&file.replace("token = \"secret\"\n", ""));
    assert_eq!(status(&[host]), 200, "the file names it, and no token");
}

#[test]
fn a_time_out_that_changes_is_that_of_open_connections_too() {
    let file = config("rate = \"1000/h\"");
    let proxy = Tidegate::start(&file);
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.get("/", &[]).status, 200);
    proxy.reload(&file.replace("[admin]", "idle_timeout = \"100ms\"\n[admin]"));
    assert!(client.is_closed(), "well before the 75 seconds of the start");
}

/// A look that could open no file kept an old certificate and old plans in force until the files were saved once more.
#[test]
fn what_changes_while_no_file_can_be_opened_is_in_force_afterwards() {
    let folder = Folder::new();
    let (files, plans) =
        (folder.write_server("cert", &["a.test"]), folder.path().join("plans.txt"));
    fs::write(&plans, "bob pro\n").unwrap();
    let IdentityFiles { cert, key } = &files;
    let listener =
        format!("listen = \"LISTEN\"\ncertificates = [{{ cert = {cert:?}, key = {key:?} }}]");
    let user =
        "key = [\"header:x-user\"]\nrate = \"5/h\"\nplans = { pro = \"9/h\", team = \"20/h\" }";
    let config = |body: &str| {
        Proxy::answering()
            .server("listen = []")
            .section(&format!("[server.tls]\n{listener}"))
            .section(&format!("[plans]\nby = \"header:x-user\"\nfile = {plans:?}"))
            .limit("user", user)
            .route(&format!("path = \"/\"\nlimits = [\"user\"]\nrespond = {{ body = \"{body}\" }}"))
            .text()
    };
    let proxy = Tidegate::start(&config("old"));
    let client = folder.client(&[HTTP_1_1], None);
    let open = || Connection::open_tls(proxy.address, &client, "a.test");
    let mut early = open();
    let mut said = || {
        let reply = early.get("/", &[("x-user", "bob")]);
        (reply.text(), reply.header("ratelimit-policy").unwrap())
    };
    assert!(said().1.contains("q=9"));
    let shown = || {
        let stream = shake_hands(proxy.address, &client, "a.test").unwrap();
        stream.conn.peer_certificates().unwrap()[0].to_vec()
    };
    let old = shown();
    proxy.limit_files(3);
    folder.write_server("cert", &["a.test", "new.test"]);
    fs::write(&plans, "bob team\n").unwrap();
    proxy.rewrite(&config("new"));
    for message in ["certificates rejected", "plans rejected", "config rejected"] {
        let line = proxy.log.wait(message, |_| true);
        assert!(line.to_string().contains("Too many open files"), "{line}");
        assert_eq!(line["level"], "WARN");
    }
    let (body, policy) = said();
    assert_eq!((&*body, policy.contains("q=9")), ("old", true), "what was in force still is");
    proxy.limit_files(1_000);
    wait_until("the file holds", || said().0 == "new");
    wait_until("the plans hold", || said().1.contains("q=20"));
    wait_until("the certificate is shown", || shown() != old);
    for message in ["certificates rejected", "plans rejected", "config rejected"] {
        assert_eq!(proxy.log.count(message), 1, "{message}");
    }
}
