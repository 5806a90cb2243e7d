mod tls;

use super::*;
use crate::config::{Loaded, Overrides, parse};

const FILE: &str = r#"
[server]
listen = "127.0.0.1:8080"
idle_timeout = "75s"
[upstreams.api]
servers = ["http://127.0.0.1:3000"]
[upstreams.other]
servers = ["http://127.0.0.1:3001"]
[limits.per-client]
key = ["ip"]
rate = "100/s"
[limits.total]
rate = "1000/s"
[store]
url = "redis://u:hunter2@localhost"
prefix = "tidegate"
timeout = "100ms"
[log]
level = "info"
keys = "hashed"
format = "json"
[admin]
listen = "127.0.0.1:9090"
token = "hunter2"
[[routes]]
path = "/a"
upstream = "api"
limits = ["per-client"]
[[routes]]
path = "/b"
upstream = "other"
limits = ["per-client", "total"]
"#;

fn loaded(text: &str) -> Loaded {
    loaded_as("proxy.toml", text)
}

fn loaded_as(name: &str, text: &str) -> Loaded {
    let loaded = parse(name, text, &env, &Overrides::default());
    loaded.unwrap_or_else(|problems| panic!("{problems}"))
}

fn env(name: &str) -> Option<String> {
    Some(format!("hunter-{name}"))
}

/// What is different in the second text.
fn between(old: &str, new: &str) -> Changes {
    loaded(old).changes_to(&loaded(new), &env)
}

fn changes(edits: &[(&str, &str)]) -> Changes {
    let mut text = FILE.to_owned();
    for (from, to) in edits {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    between(FILE, &text)
}

#[test]
fn the_same_file_has_no_changes() {
    assert!(changes(&[]).is_empty());
}

#[test]
fn says_what_changed() {
    for edit in include_str!("edits.txt").split("\n\n").skip(1) {
        let lines = |mark| edit.lines().filter_map(move |line| line.strip_prefix(mark));
        let joined = |mark| lines(mark).collect::<Vec<_>>().join("\n");
        let changes = changes(&[(&joined('-'), &joined('+'))]);
        assert_eq!(changes.changed, lines('=').collect::<Vec<_>>(), "{edit}");
        assert!(changes.restart.is_empty(), "{edit}");
    }
}

/// Regressions: a figure that only one of the two files has was not reported.
#[test]
fn a_limit_that_begins_to_count_tells_all_of_its_figures() {
    let open = FILE.replace("100/s\"", "unlimited\"");
    assert_eq!(
        between(&open, FILE).changed,
        ["limits.per-client rate unlimited -> 100/s", "limits.per-client burst none -> 100"]
    );
}

/// A regression: the report said that a limit in memory begins anew with another scope. It goes on.
#[test]
fn in_memory_a_scope_begins_nothing_anew() {
    let memory = FILE.replace("redis://u:hunter2@localhost", "memory:");
    let node = memory.replace("1000/s\"", "1000/s\"\nscope = \"node\"");
    assert_eq!(between(&memory, &node).changed, ["limits.total scope cluster -> node"]);
}

#[test]
fn says_how_overrides_changed_and_shows_no_secret_key() {
    let overrides = |key: &str, entries: &[(&str, &str)]| {
        let each =
            entries.iter().map(|(key, rate)| format!("{{ key = [{key}], rate = \"{rate}\" }}"));
        let list = each.collect::<Vec<_>>().join(", ");
        let limit = format!("key = [{key}]\nrate = \"100/s\"\noverrides = [{list}]");
        FILE.replace("key = [\"ip\"]\nrate = \"100/s\"", &limit)
    };
    let by_ip = |entries: &[(&str, &str)]| overrides("\"ip\"", entries);
    let network = "\"10.0.0.0/8\"";
    let before = by_ip(&[("\"10.0.0.1\"", "5/s"), ("\"10.0.0.2\"", "5/s"), (network, "5/s")]);
    let after = by_ip(&[("\"10.0.0.2\"", "5/s"), ("\"10.0.0.3\"", "5/s"), (network, "6/s")]);
    assert_eq!(
        between(&before, &after).changed,
        [
            "limits.per-client override [10.0.0.0/8] rate 5/s -> 6/s",
            "limits.per-client override [10.0.0.0/8] burst 5 -> 6",
            "limits.per-client overrides: 1 added",
            "limits.per-client overrides: 1 removed",
        ]
    );
    let turned = by_ip(&[("\"10.0.0.3\"", "5/s"), (network, "6/s"), ("\"10.0.0.2\"", "5/s")]);
    assert!(between(&after, &turned).is_empty());
    let secret = |rate: &str| {
        let key = "\"header:x-key\", \"path\", \"ip\"";
        overrides(key, &[("\"hunter2\", \"/${A}\", \"*\"", rate), ("\"*\", \"/b\", \"*\"", rate)])
    };
    assert_eq!(
        between(&secret("5/s"), &secret("unlimited")).changed,
        [
            "limits.per-client override [********, ********, *] rate 5/s -> unlimited",
            "limits.per-client override [********, ********, *] burst 5 -> none",
            "limits.per-client override [*, /b, *] rate 5/s -> unlimited",
            "limits.per-client override [*, /b, *] burst 5 -> none",
        ]
    );
    let many = |rate: &str| {
        let keys: Vec<_> = (10..25).map(|n| format!("\"10.0.0.{n}\"")).collect();
        by_ip(&keys.iter().map(|key| (key.as_str(), rate)).collect::<Vec<_>>())
    };
    let changed = between(&many("5/s"), &many("6/s")).changed;
    assert_eq!(changed[0], "limits.per-client override [10.0.0.10] rate 5/s -> 6/s");
    assert_eq!(changed[20..], ["limits.per-client overrides: 5 more changed"]);
}

/// A changed value is reported even if the value must not be shown.
#[test]
fn a_value_that_cannot_be_shown_changed() {
    let networks: String = (1..99).map(|n| format!("\"10.0.0.{n}\", ")).collect();
    let long = format!("\"75s\"\ntrusted_proxies = [{networks}]");
    for (from, to, expected) in [
        ("\"75s\"", long.as_str(), "server.trusted_proxies changed"),
        ("[log]", "[reject]\nbody = \"a\\u001b[2Jb\"\n[log]", "reject.body changed"),
        ("= \"hunter2\"", "= \"${TOKEN}\"", "admin.token changed"),
        (
            "3001\"]",
            "3001\"]\nhealth = { path = \"/${PATH}\" }",
            "upstreams.other health.path none -> ********",
        ),
    ] {
        assert_eq!(changes(&[(from, to)]).changed, [expected]);
    }
}

/// A regression: the report compared texts, so another spelling was a change, or even needed a restart.
#[test]
fn another_spelling_is_no_change() {
    for (from, to) in [
        ("\"127.0.0.1:8080\"", "[\"127.0.0.1:8080\"]"),
        ("\"75s\"", "\"75000ms\""),
        ("\"75s\"", "\"75s\"\nmax_header_size = \"32768B\""),
        ("100/s\"", "100/s\"\nburst = 1_00"),
        ("100/s\"", "100/s\"\nwait = \"0m\"\nmode = \"enforce\""),
    ] {
        assert_eq!(changes(&[(from, to)]), Changes::default(), "{to}");
    }
}

#[test]
fn says_what_needs_a_restart() {
    for (from, to, expected) in [
        ("8080", "8081", "server.listen [127.0.0.1:8080] -> [127.0.0.1:8081] with a restart"),
        ("[server]", "[server]\nworkers = 3", "server.workers none -> 3 with a restart"),
        (
            "u:hunter2@",
            "",
            "store.url redis://********@localhost -> redis://localhost with a restart",
        ),
        ("hunter2@", "hunter3@", "store.url changes with a restart"),
        (
            "redis://u:hunter2@localhost",
            "memory:",
            "store.url redis://********@localhost -> memory: with a restart",
        ),
        ("prefix = \"tidegate\"", "prefix = \"x\"", "store.prefix tidegate -> x with a restart"),
        ("\"hashed\"", "\"plain\"", "log.keys hashed -> plain with a restart"),
        ("\"json\"", "\"pretty\"", "log.format json -> pretty with a restart"),
        ("9090", "9091", "admin.listen 127.0.0.1:9090 -> 127.0.0.1:9091 with a restart"),
    ] {
        let changes = changes(&[(from, to)]);
        let restart: Vec<_> = changes.restart.iter().map(|it| &it.line).collect();
        assert_eq!(restart, [expected], "{from} -> {to}");
        assert!(changes.changed.is_empty(), "{from} -> {to}");
    }
}

#[test]
fn tells_no_secret() {
    let changes = changes(&[("hunter2", "hunter3")]);
    assert!(!format!("{changes:?}").contains("hunter"), "{changes:?}");
    assert!(!changes.is_empty());
}

#[test]
fn order_is_no_change() {
    let (head, routes) = FILE.split_at(FILE.find("[[routes]]").unwrap());
    let (first, second) = routes.split_at(routes.rfind("[[routes]]").unwrap());
    let turned = format!("{head}{second}{first}");
    assert!(between(FILE, &turned).is_empty());
}

#[test]
fn a_thousand_changes_are_counted() {
    let mut many = FILE.to_owned();
    for n in 0..100 {
        many.push_str(&format!("[[routes]]\npath = \"/n{n}\"\nupstream = \"api\"\n"));
    }
    let changes = between(FILE, &many);
    assert_eq!(changes.changed.len(), MOST + 1);
    assert_eq!(changes.changed.last().map(String::as_str), Some("and 50 more"));
}
