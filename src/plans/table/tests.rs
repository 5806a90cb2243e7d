use tokio::time::Instant;

use super::*;
use crate::request::key::{Missing, hash as hash_of};
use crate::request::network::ClientPrefixes;

fn by(source: &str) -> KeySpec {
    let sources = vec![source.parse().unwrap()].into();
    KeySpec { sources, missing: Missing::Skip, prefixes: ClientPrefixes::default() }
}

fn read(by: &KeySpec, text: &[u8]) -> Result<Arc<PlanTable>, String> {
    let table = PlanTable::read(text, by, false);
    table.map(Arc::new).map_err(|error| error.to_string())
}

/// The plan and the name that a file gives to a key with this text.
fn found(by: &KeySpec, file: &str, key: &str) -> Option<(String, Option<String>)> {
    let table = read(by, file.as_bytes()).unwrap();
    let line = table.find(by, &Key::parse(key).unwrap())?;
    Some((line.plan().to_owned(), line.name().map(str::to_owned)))
}

fn plan(by: &KeySpec, file: &str, key: &str) -> Option<String> {
    found(by, file, key).map(|(plan, _)| plan)
}

#[test]
fn a_line_has_a_value_a_plan_and_perhaps_a_name() {
    let by = by("header:x-customer");
    let file = "\u{feff}# Customers\n\na pro\n  b\tteam   Acme & Sons # since May\r\nc#1 pro\n\
                d pro # nobody\n\te\u{a0}team";
    for (key, expected) in [
        ("a", Some(("pro", None))),
        ("b", Some(("team", Some("Acme & Sons")))),
        ("c#1", Some(("pro", None))),
        ("d", Some(("pro", None))),
        ("e", Some(("team", None))),
        ("f", None),
        ("A", None),
        ("", None),
        ("%-", None),
        ("#", None),
    ] {
        let expected =
            expected.map(|(plan, name)| (plan.to_owned(), name.map(|name: &str| name.to_owned())));
        assert_eq!(found(&by, file, key), expected, "{key}");
    }
    let table = read(&by, file.as_bytes()).unwrap();
    assert_eq!(table.lines(), 5);
    let plans: Vec<_> = table.plans().collect();
    assert_eq!(plans, [("pro", 3), ("team", 4)]);
    assert_eq!(read(&by, b"").unwrap().lines(), 0);
}

#[test]
fn a_value_may_stand_as_its_hash() {
    let spec = by("header:x-api-key | cookie:session");
    let (first, second) = (hash_of(b"secret key"), hash_of(b"of the session"));
    let file = format!("{first} pro\n2={second} team\n%2={first} free\n");
    assert_eq!(plan(&spec, &file, "secret key").as_deref(), Some("pro"));
    assert_eq!(plan(&spec, &file, "%2=of the session").as_deref(), Some("team"));
    assert_eq!(plan(&spec, &file, "%2=secret key").as_deref(), Some("free"));
    assert_eq!(plan(&spec, &file, "of the session"), None, "values of two parts never meet");
    // Whoever read the log had the plan.
    for hash in [&first, &format!("%2={first}"), &format!("%2={second}")] {
        assert_eq!(plan(&spec, &file, hash), None, "{hash}");
    }
    let of_hash = format!("{} pro\n", hash_of(first.as_bytes()));
    assert_eq!(
        plan(&spec, &of_hash, &first).as_deref(),
        Some("pro"),
        "such a key is named by its hash"
    );
    let open = by("param:customer");
    assert_eq!(plan(&open, &format!("{first} pro\n"), &first).as_deref(), Some("pro"));
    assert_eq!(
        plan(&open, &format!("{first} pro\n"), "secret key"),
        None,
        "such a key is not hashed"
    );
}

#[test]
fn values_are_read_as_overrides_are() {
    for (source, value, key) in [
        ("ip", "203.0.113.7", "203.0.113.7"),
        ("ip", "2001:db8::/64", "2001:db8::/64"),
        ("ip", "2001:db8::/32", "2001:db8:7::/64"),
        ("ip", "10.0.0.0/8", "10.9.8.7"),
        ("header:x-api-key | ip", "2=10.0.0.0/8", "%2=10.9.8.7"),
        ("header:x-a | header:x-b", "2=a", "%2=a"),
        ("header:x-a | header:x-b", "a", "a"),
        ("header:authorization", "token", "token"),
        ("header:x-a", "a|b", "a%7Cb"),
        ("host", "API.example.com", "api.example.com"),
    ] {
        let by = by(source);
        assert_eq!(plan(&by, &format!("{value} pro\n"), key).as_deref(), Some("pro"), "{value}");
    }
    let file = "10.0.0.0/8 team\n10.1.0.0/16 free\n10.1.2.3 pro\n";
    for (key, expected) in [("10.1.2.3", "pro"), ("10.1.2.4", "free"), ("10.2.0.1", "team")] {
        let found = plan(&by("ip"), file, key);
        assert_eq!(found.as_deref(), Some(expected), "the nearest network of {key}");
    }
}

#[test]
fn a_wrong_line_is_named_by_its_number_and_shows_no_value() {
    let long = format!("secret pro {}", "a".repeat(65));
    let endless = format!("secret {}", "p".repeat(1 << 20));
    for (source, file, expected) in [
        ("ip", "a pro", "line 1: `a` is no address and no network"),
        (
            "ip",
            "# a\n10.0.0.0/8 pro\n10.0.0.0/8 pro\n",
            "line 3: this value has a plan already, in line 2",
        ),
        ("ip", "2001:db8::1 pro\n", "line 1: IPv6 clients are counted by `ipv6_prefix = 64`"),
        ("header:x-a | ip", "3=secret pro\n2=secret pro\n", "line 2: its value cannot be one of"),
        ("header:x-a", "secret\n", "line 1: expected a value and a plan"),
        ("header:x-a", "a pro\n\nsecret p/o\n", "line 3: expected a plan after the value"),
        (
            "header:x-a",
            "secret pro\nb pro\nsecret team\n",
            "line 3: this value has a plan already, in line 1",
        ),
        (
            "header:x-a",
            "secret pro\nsecret pro\n",
            "line 2: this value has a plan already, in line 1",
        ),
        ("header:x-a", "* pro\n", "line 1: \"*\" is no value"),
        ("header:x-a", &long, "line 1: expected a name of at most 64 characters"),
        ("header:x-a", "secret pro a\u{202e}b", "line 1: expected a name of at most 64"),
        ("header:x-a", &endless, "line 1: expected a plan after the value"),
    ] {
        let error = read(&by(source), file.as_bytes()).unwrap_err();
        assert!(error.starts_with(expected), "{expected}: {error}");
        assert!(!error.contains("secret"), "{expected}: {error}");
    }
    let error = read(&by("header:x-a"), b"a pro\n\xff pro\n").unwrap_err();
    assert_eq!(error, "line 2: it is no UTF-8");
}

/// The same holds for values that differ in one bit, and in a large table.
#[test]
fn each_value_of_many_has_its_own_plan() {
    let by = by("header:x-a");
    let file: String = (0..20_000).map(|at| format!("user-{at} plan-{} {at}\n", at % 7)).collect();
    let table = read(&by, file.as_bytes()).unwrap();
    for at in (0..20_000).step_by(97) {
        let line = table.find(&by, &Key::of([Some(format!("user-{at}").as_bytes())])).unwrap();
        assert_eq!(line.plan(), format!("plan-{}", at % 7));
        assert_eq!(line.name(), Some(&*at.to_string()));
    }
    assert!(table.find(&by, &Key::of([Some(&b"user-20000"[..])])).is_none());
}

#[test]
fn a_line_takes_few_bytes() {
    assert_eq!(size_of::<HashedValue>(), 16);
    let by = by("header:x-a");
    let file: String =
        (0..1_000).map(|at| format!("a-long-value-of-a-customer-{at} pro\n")).collect();
    let table = read(&by, file.as_bytes()).unwrap();
    assert_eq!((table.values.len(), &*table.texts), (1_000, "pro \n"), "one text for all");
}

/// Measures the bytes of a line, and the times of a reading and of a look-up.
#[test]
#[ignore = "a measurement: run it alone, in release"]
fn a_million_lines() {
    let most_resident = || -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        most.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    };
    let by = by("header:x-api-key");
    for name in ["", " Customer"] {
        let lines = (0..1_000_000).map(|at| format!("key-of-a-customer-{at} pro{name}\n"));
        let file: String = lines.collect();
        let (before, begin) = (most_resident(), Instant::now());
        let table = read(&by, file.as_bytes()).unwrap();
        let (took, more) = (begin.elapsed(), most_resident().saturating_sub(before));
        let keys: Vec<_> = (0..1_000_000)
            .map(|at| Key::of([Some(format!("key-of-a-customer-{at}").as_bytes())]))
            .collect();
        let begin = Instant::now();
        assert!(keys.iter().all(|key| table.find(&by, key).is_some()));
        let looked_up = begin.elapsed().as_nanos() / 1_000_000;
        let kept = table.values.len() * size_of::<HashedValue>() + table.texts.len();
        println!(
            "{name:?}: read in {took:?}, {looked_up} ns for a look-up, {} bytes for a line, {} resident while it is read",
            kept / 1_000_000,
            more / 1_000_000,
        );
    }
}
