//! Lines of throttled requests: how many there are, and what they say of the limit.

use super::*;

/// An operator saw that a key was rejected, and had to look up in the file by which figures.
#[test]
fn a_throttle_line_has_the_figures_that_decided_and_the_name_of_the_key() {
    const LIMITS: &str = r#"
[limits.bucket]
key = ["header:x-key"]
rate = "2/h"
burst = 1
overrides = [
    { key = ["a"], rate = "3/d", burst = 1, name = "acme" },
    { key = ["s*"], rate = "1/h" },
]

[limits.month]
key = []
algorithm = "fixed-window"
align = "clock"
rate = "1/month"

[limits.slots]
key = []
algorithm = "concurrency"
limit = 1

[limits.never]
key = []
rate = "0/s"

[limits.tried]
key = []
rate = "unlimited"
candidate = { rate = "1/10m" }

[limits.log]
key = []
algorithm = "sliding-log"
rate = "1/90m"
mode = "shadow"
"#;
    let (api, begun, go) = Upstream::slow();
    let mut proxy = Proxy::to(&api).limits(LIMITS);
    for name in ["bucket", "month", "slots", "never", "tried", "log"] {
        let path = if name == "slots" { "slow" } else { name };
        proxy = proxy.route(&format!("path = \"/{path}\"\nlimits = [\"{name}\"]"));
    }
    let mut proxy = proxy.section("[log]\nthrottle = \"each\"").start();
    let mut slow = Connection::open(proxy.address);
    slow.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
    begun.recv().unwrap();
    for path in
        ["bucket", "bucket", "month", "month", "slow", "never", "tried", "tried", "log", "log"]
    {
        get(proxy.address, &format!("/{path}"), &[("x-key", "b")]);
    }
    for _ in 0..2 {
        get(proxy.address, "/bucket", &[("x-key", "a")]);
    }
    go.send(()).unwrap();
    assert_eq!(slow.reply("GET").status, 200);
    assert!(proxy.stop().success());
    let lines = proxy.log.with("throttled");
    let told: Vec<_> =
        lines.iter().map(|it| ["limit", "rate", "name"].map(|name| it[name].as_str())).collect();
    assert_eq!(
        told,
        [
            [Some("bucket"), Some("2/h"), None],
            [Some("month"), Some("1/month"), None],
            [Some("slots"), Some("1 at once"), None],
            [Some("never"), Some("0/s"), None],
            [Some("tried:candidate"), Some("1/10m"), None],
            [Some("log"), Some("1/90m"), None],
            [Some("bucket"), Some("3/d"), Some("acme")],
        ]
    );
}

#[test]
fn each_rejection_or_none_has_its_line() {
    for (mode, expected) in [("each", 5), ("off", 0), ("summary", 2)] {
        let mut proxy = logging(&format!("throttle = \"{mode}\"")).start();
        for _ in 0..6 {
            get(proxy.address, "/", &[]);
        }
        assert!(proxy.stop().success());
        let lines = proxy.log.with("throttled");
        assert_eq!(lines.len(), expected, "{mode}");
        if mode == "each" {
            assert!(
                lines.iter().all(|line| line["count"] == 1 && line.get("interval_ms").is_none())
            );
        }
    }
}

#[test]
fn an_access_line_has_the_keys_and_costs_that_were_counted() {
    let mut proxy = Proxy::answering()
        .section("[log]\naccess = true\nkeys = \"hashed\"\n[plans]\nby = \"header:x-plan\"")
        .limit("key", "key = [\"header:x-api-key\"]\nrate = \"5/h\"\ncost = { header = \"x-cost\" }\nplans = { pro = \"6/h\" }")
        .limit("skipped", "key = [\"header:x-other\"]\nrate = \"5/h\"\nmissing = \"skip\"")
        .limit("path", "key = [\"path\", \"cookie:b\"]\nrate = \"9/h\"\nmode = \"shadow\"\ncount_when = { status = [\"5xx\"] }")
        .start();
    let fields = [("x-api-key", "s3cret"), ("x-cost", "4"), ("x-plan", "pro")];
    assert_eq!(crate::support::client::statuses(proxy.address, &[&fields, &fields]), [200, 429]);
    assert!(proxy.stop().success());
    let lines = proxy.log.with("request");
    let key = lines[0]["keys"]["key"].as_str().unwrap();
    assert_eq!((key.len(), lines[0]["keys"].as_object().unwrap().len()), (22, 2), "{}", lines[0]);
    assert_eq!(lines[0]["keys"]["path"], "/|%-");
    assert_eq!(lines[0]["costs"], json!({ "key": 4, "path": 0 }), "what it took in the end");
    assert_eq!(lines[1]["costs"], json!({ "key": 4, "path": 1 }), "what it asked for");
    assert_eq!(
        (&lines[0]["plan"], &lines[0]["n"], &lines[1]["n"]),
        (&json!("pro"), &json!(1), &json!(2))
    );
    let process = lines[0]["process"].as_str().unwrap();
    assert!(process.ends_with(&format!(":{}", proxy.pid())), "{process}");
    let loaded = proxy.log.find("config loaded").unwrap();
    assert_eq!(loaded["counts_by"]["path"], json!(["path", "cookie:b"]));
}

#[test]
fn a_key_that_comes_near_is_told_once() {
    let proxy = Proxy::answering()
        .admin()
        .section("[log]\nkeys = \"plain\"")
        .limit("l", "key = [\"header:x-user\"]\nrate = \"5/h\"\nnear = \"80%\"")
        .start();
    for _ in 0..7 {
        crate::support::client::get(proxy.address, "/", &[("x-user", "a")]);
    }
    crate::support::client::get(proxy.address, "/", &[("x-user", "b")]);
    let line = proxy.log.wait("near limit", |_| true);
    assert_eq!((&line["limit"], &line["key"]), (&json!("l"), &json!("a")));
    assert_eq!(
        (&line["remaining"], &line["burst"], &line["count"]),
        (&json!(1), &json!(5), &json!(1))
    );
    assert_eq!(proxy.log.count("near limit"), 1);
    let page = crate::support::metrics::Metrics::of(proxy.admin());
    assert_eq!(page.value("tidegate_near_limit_total{limit=\"l\"}"), 1.0);
}
