//! Who imports whom: arrows point to the right only.

use std::fs;
use std::path::Path;

/// The house, from the left of its map (here above) to the right. A module may import itself and
/// those below its line, and none of its own line.
const LAYERS: [&[&str]; 20] = [
    &["main"],
    &["cli"],
    &["server", "replay"],
    &["reload", "admin"],
    &["worker"],
    &["downstream"],
    &["proxy", "decide"],
    &["exchange"],
    &["answer"],
    &["throttle", "upstream"],
    &["store", "config"],
    &["redis"],
    &["observe"],
    &["reading", "jwt"],
    &["settings"],
    &["plans"],
    &["request"],
    &["clock"],
    &["limit", "tls"],
    &["file", "percent", "text", "wire"],
];

/// Arrows to the right that are not allowed all the same: a module, and what it leaves alone.
const FORBIDDEN: [(&str, &[&str]); 12] = [
    // A log's own time counts, and a replay is no traffic: it is neither logged nor counted.
    (
        "replay",
        &[
            "reload",
            "admin",
            "worker",
            "downstream",
            "proxy",
            "upstream",
            "redis",
            "observe",
            "clock",
        ],
    ),
    ("cli", &["proxy"]),
    ("config", &["redis", "observe", "clock", "reading"]),
    ("proxy", &["config", "store", "redis"]),
    ("decide", &["config", "store", "redis"]),
    ("exchange", &["config", "store", "redis"]),
    ("answer", &["config", "store", "redis", "clock"]),
    ("throttle", &["config", "redis"]),
    ("upstream", &["config", "store", "redis", "request"]),
    // The client knows no limit, no bucket and no request.
    ("redis", &["reading", "request", "clock", "limit"]),
    ("request", &["clock"]),
    ("settings", &["clock"]),
];

/// Of `limit`, `request` sees what a key is, and no more.
const LIMIT_FOR_REQUEST: &str = "limit::key";

fn rank(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// What stands behind each `crate::` in a file's code, tests left out.
fn imports(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines
        .flat_map(|line| line.split("crate::").skip(1))
        .map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || "_:".contains(*c)).collect())
        .collect()
}

fn complaints(module: &str, file: &str, text: &str) -> Vec<String> {
    let own = rank(module).unwrap_or_else(|| panic!("`{module}` has no place in this test"));
    let forbidden =
        FORBIDDEN.iter().find(|(name, _)| *name == module).map_or(&[][..], |(_, alone)| alone);
    let complaint = |import: &String| {
        let target = import.split("::").next().unwrap_or_default();
        let Some(place) = rank(target) else {
            return Some(format!("{file}: `crate::{import}` is no module of the house"));
        };
        let right = target == module || place > own;
        let secret = module == "request" && target == "limit";
        let fits = right
            && !forbidden.contains(&target)
            && (!secret || import.starts_with(LIMIT_FOR_REQUEST));
        (!fits).then(|| format!("{file}: {module} imports `crate::{import}`"))
    };
    imports(text).iter().filter_map(complaint).collect()
}

fn walk(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn arrows_point_to_the_right() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/");
    let mut files = Vec::new();
    walk(Path::new(source), &mut files);
    let mut all = Vec::new();
    for (file, text) in &files {
        let inner = file.strip_prefix(source).unwrap();
        let is_test = inner.ends_with("tests.rs") || inner.ends_with("testing.rs");
        let module = inner.split(['/', '.']).next().unwrap();
        if module != "lib" && !is_test {
            all.extend(complaints(module, inner, text));
        }
    }
    assert!(files.len() > 50, "the sources are not where this test looks");
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn an_arrow_to_the_left_is_seen() {
    for (module, line, fits) in [
        ("proxy", "use crate::throttle::Throttle;", true),
        ("throttle", "use crate::proxy::Proxy;", false),
        ("throttle", "let x = crate::server::run();", false),
        ("store", "use crate::config;", false),
        ("config", "use crate::observe::log;", false),
        ("replay", "use crate::proxy::Proxy;", false),
        ("replay", "use crate::reading::Seen;", true),
        ("cli", "use crate::proxy::Proxy;", false),
        ("decide", "use crate::proxy::Proxy;", false),
        ("proxy", "use crate::decide::DecisionService;", false),
        ("reading", "use crate::observe::log;", false),
        ("request", "use crate::limit::key::Key;", true),
        ("request", "use crate::limit::rate::Rate;", false),
        ("request", "// as in crate::proxy", true),
        ("cli", "pub(crate) use crate::nowhere::Thing;", false),
    ] {
        assert_eq!(complaints(module, "a.rs", line).is_empty(), fits, "{module}: {line}");
    }
}

#[test]
fn the_core_neither_waits_nor_locks_nor_logs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["crates/limit/src", "src/request"] {
        walk(&root.join(folder), &mut files);
    }
    // The table of buckets and the call of the script apply what the others decide. The other files are for services.
    let applies = ["memory/", "call/", "lib.rs", "clock.rs", "redis.rs", "tower.rs"]
        .map(|it| format!("limit/src/{it}"));
    files.retain(|(file, _)| !applies.iter().any(|applies| file.contains(applies)));
    for (file, text) in files {
        for word in ["async fn", "tokio", "hyper::", "redis::", "Mutex", "tracing", "Instant"] {
            assert!(!imports_word(&text, word), "{file} has `{word}`");
        }
    }
}

fn imports_word(text: &str, word: &str) -> bool {
    text.lines().any(|line| !line.trim_start().starts_with("//") && line.contains(word))
}
