//! Limits that are in shadow. `marks.rs` has those that mark.

use crate::support::client::Connection;
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;

#[test]
fn a_shadow_limit_only_tells() {
    let mut proxy = Proxy::answering()
        .admin()
        .limit("try", "key = [\"ip\"]\nrate = \"1/h\"\nmode = \"shadow\"")
        .limit("client", "key = [\"ip\"]\nrate = \"5/h\"")
        .start();
    let mut client = Connection::open(proxy.address);
    let replies: Vec<_> = (0..7).map(|_| client.get("/", &[])).collect();
    let statuses: Vec<_> = replies.iter().map(|reply| reply.status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429]);
    for reply in &replies {
        let policy = reply.header("ratelimit-policy").unwrap();
        assert_eq!(policy, "\"client\";q=5;w=3600", "a limit in shadow is not shown");
    }
    assert_eq!(replies[6].violated(), ["client"]);
    let metrics = Metrics::of(proxy.admin());
    let said = |limit, decision| {
        metrics.value(&format!(
            "tidegate_decisions_total{{limit=\"{limit}\",decision=\"{decision}\"}}"
        ))
    };
    assert_eq!((said("try", "allowed"), said("try", "shadow")), (1.0, 6.0));
    assert_eq!((said("client", "allowed"), said("client", "rejected")), (5.0, 2.0));
    assert_eq!(said("try", "rejected"), 0.0);
    assert!(proxy.stop().success());
    let count = |decision: &str| -> u64 {
        let lines = proxy.log.with("throttled");
        let of = lines.iter().filter(|line| line["decision"] == decision);
        of.map(|line| line["count"].as_u64().unwrap()).sum()
    };
    assert_eq!((count("shadow"), count("rejected")), (6, 2));
}
