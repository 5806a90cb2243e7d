//! Requests that tidegate refuses though no limit rejects them. An operator sees them wherever he looks.

use serde_json::Value;

use crate::support::client::{Connection, get};
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::tidegate::program;
use crate::support::wait_until;

/// Fifty requests a second without their key were answered with 400. The page was green, no line of the log said so, and
/// the requests counted as allowed.
#[test]
fn what_is_refused_without_a_limit_is_seen_everywhere() {
    let limit = "key = [\"header:x-api-key\"]\nmissing = \"reject\"\nrate = \"1000000/s\"";
    let mut proxy = Proxy::answering()
        .admin()
        .server("max_body_size = \"4B\"")
        .section("[log]\naccess = true")
        .limits(&format!("[limits.keys]\n{limit}"))
        .route("path = \"/keys\"\nrespond = { status = 204 }\nlimits = [\"keys\"]")
        .route("path = \"/only\"\nmethods = [\"GET\"]\nrespond = { status = 204 }")
        .start();
    for _ in 0..6 {
        assert_eq!(get(proxy.address, "/keys", &[]).status, 400);
    }
    assert_eq!(get(proxy.address, "/keys", &[("x-api-key", "a"), ("x_api_key", "b")]).status, 400);
    assert_eq!(get(proxy.address, "/nowhere", &[]).status, 404);
    assert_eq!(get(proxy.address, "/%2F", &[]).status, 400);
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.request("POST", "/only", &[], b"").status, 405);
    assert_eq!(client.request("POST", "/keys", &[], b"12345").status, 413);
    assert_eq!(get(proxy.address, "/only", &[]).status, 204);
    let status = || -> Value { get(proxy.admin(), "/api/status", &[("host", "localhost")]).json() };
    let mut seen = Value::Null;
    wait_until("there is an alarm", || {
        seen = status();
        seen["alarms"][0]["what"].as_str().is_some_and(|what| what.contains("missing_key 6"))
    });
    assert!(seen["alarms"][0]["what"].as_str().unwrap().starts_with("Requests are refused: 9"));
    assert!(!seen["summary"].as_str().unwrap().contains("well"), "{}", seen["summary"]);
    let requests = &seen["requests"];
    assert_eq!((&requests["refused_total"], &requests["allowed_total"]), (&11.into(), &1.into()));
    let reasons = [
        ("missing_key", 6),
        ("bad_key", 1),
        ("no_route", 1),
        ("bad_request", 1),
        ("method", 1),
        ("too_large", 1),
    ];
    let metrics = Metrics::of(proxy.admin());
    for (reason, count) in reasons {
        assert_eq!(requests["refused"][reason], count, "{reason}");
        let name = format!("tidegate_refused_total{{reason=\"{reason}\"}}");
        assert_eq!(metrics.value(&name), f64::from(count), "{reason}");
    }
    let admin = format!("http://{}", proxy.admin());
    let top = program().args(["top", &admin, "--json"]).output().unwrap();
    let top: Value = serde_json::from_slice(&top.stdout).unwrap();
    assert_eq!(top["requests"]["refused_total"], 11);
    assert!(proxy.stop().success());
    let text = proxy.log.text();
    let lines = || text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    for (reason, count) in reasons {
        let told = lines().filter(|it| it["message"] == "refused" && it["reason"] == reason);
        let told = told.map(|it| it["count"].as_u64().unwrap()).sum::<u64>();
        assert_eq!(told, u64::try_from(count).unwrap(), "{reason}");
        let accessed = lines().filter(|it| it["message"] == "request" && it["reason"] == reason);
        assert_eq!(accessed.count(), usize::try_from(count).unwrap(), "{reason}");
    }
    let first = lines().find(|it| it["message"] == "refused").unwrap();
    assert_eq!(
        (&first["level"], &first["route"], &first["client"]),
        (&"WARN".into(), &"/keys".into(), &"127.0.0.1".into())
    );
}

/// Requests without their key passed a limit in shadow uncounted, and all of them got 400 on the day it enforced.
#[test]
fn a_limit_in_shadow_counts_what_it_would_refuse() {
    let limit =
        "key = [\"header:x-api-key\"]\nmissing = \"reject\"\nrate = \"1/h\"\nmode = \"shadow\"";
    let proxy = Proxy::answering().admin().limit("keys", limit).start();
    for _ in 0..3 {
        assert_eq!(get(proxy.address, "/", &[]).status, 200);
    }
    assert_eq!(get(proxy.address, "/", &[("x-api-key", "a")]).status, 200);
    let line = proxy.log.wait("throttled", |line| line["decision"] == "shadow");
    assert_eq!(
        (&line["limit"], &line["key"], &line["reason"], &line["level"]),
        (&"keys".into(), &"-".into(), &"missing_key".into(), &"INFO".into())
    );
    let metrics = Metrics::of(proxy.admin());
    let decisions = |decision: &str| {
        metrics
            .value(&format!("tidegate_decisions_total{{limit=\"keys\",decision=\"{decision}\"}}"))
    };
    assert_eq!((decisions("shadow"), decisions("allowed"), decisions("refused")), (3.0, 1.0, 0.0));
    assert_eq!(metrics.value("tidegate_refused_total{reason=\"missing_key\"}"), 0.0);
    let status: Value = get(proxy.admin(), "/api/status", &[("host", "localhost")]).json();
    assert_eq!(status["requests"]["shadow_total"], 3);
}

#[test]
fn a_limit_that_refuses_is_named_and_counts_it() {
    let limit = "key = [\"header:x-api-key\"]\nmissing = \"reject\"\nrate = \"1/h\"";
    let proxy = Proxy::answering().admin().limit("keys", limit).start();
    assert_eq!(get(proxy.address, "/", &[]).status, 400);
    assert_eq!(proxy.log.wait("refused", |_| true)["limit"], "keys");
    let counted = "tidegate_decisions_total{limit=\"keys\",decision=\"refused\"}";
    assert_eq!(Metrics::of(proxy.admin()).value(counted), 1.0);
}
