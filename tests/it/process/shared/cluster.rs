//! A Redis cluster, and what the metrics say of each of its servers.

use crate::support::client::get;
use crate::support::cluster::Cluster;
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::wait_until;

#[test]
fn each_server_has_its_own_durations_and_errors() {
    let cluster = Cluster::of_masters();
    let keys = cluster.keys();
    let proxy = Proxy::answering()
        .admin()
        .store(&format!("url = \"{}\"\ntimeout = \"20s\"", cluster.url()))
        .limit("client", "rate = \"9/h\"\nkey = [\"param:name\"]")
        .route("path = \"/{name}\"\nlimits = [\"client\"]")
        .start();
    let metrics = || Metrics::of(proxy.admin());
    wait_until("the servers are known", || metrics().samples("tidegate_store_up") == 3);
    let servers: Vec<_> =
        cluster.servers.iter().map(|it| format!("server=\"127.0.0.1:{}\"", it.port())).collect();
    let calls = |page: &Metrics, place: usize| {
        page.value(&format!("tidegate_store_duration_seconds_count{{{}}}", servers[place]))
    };
    let before = metrics();
    for _ in 0..3 {
        assert_eq!(get(proxy.address, &format!("/{}", keys[1]), &[]).status, 200);
    }
    let after = metrics();
    let more: Vec<_> = (0..3).map(|place| calls(&after, place) - calls(&before, place)).collect();
    assert_eq!(more, [0.0, 3.0, 0.0], "{}", after.0);
    let all = "tidegate_store_duration_seconds_count";
    assert!(!after.0.contains(&format!("{all} ")), "the cluster as a whole: {}", after.0);
    assert_eq!(after.samples(all), 3);
    assert!(after.0.contains("tidegate_store_duration_seconds_bucket{server="), "{}", after.0);

    let odd = format!("tidegate:{{{}}}:client", keys[2]);
    let _: i64 = cluster.servers[2].run(&["RPUSH", &odd, "x"]);
    assert_eq!(get(proxy.address, &format!("/{}", keys[2]), &[]).status, 200);
    let page = metrics();
    let errors = format!("tidegate_store_errors_total{{{},kind=\"type\"}}", servers[2]);
    assert_eq!(page.value(&errors), 1.0, "{}", page.0);
    assert_eq!(page.samples("tidegate_store_errors_total"), 1, "{}", page.0);
}

/// A regression: while a limit refused, its candidate in another slot only said what it would do. It took
/// nothing, and so allowed everything.
#[test]
fn a_candidate_in_another_slot_counts_while_its_limit_refuses() {
    let cluster = Cluster::of_masters();
    let proxy = Proxy::answering()
        .admin()
        .store(&format!("url = \"{}\"\ntimeout = \"20s\"", cluster.url()))
        .limit("all", "key = []\nrate = \"5/h\"\ncandidate = { rate = \"8/h\" }")
        .limit("client", "key = [\"ip\"]\nrate = \"3/h\"\ncandidate = { rate = \"6/h\" }")
        .limit("user", "key = [\"header:x-user\"]\nrate = \"9/h\"")
        .route("path = \"/all\"\nlimits = [\"all\"]")
        .route("path = \"/user\"\nlimits = [\"user\"]")
        .route("path = \"/both\"\nlimits = [\"client\", \"user\"]")
        .start();
    let metrics = || Metrics::of(proxy.admin());
    wait_until("the servers are known", || metrics().samples("tidegate_store_up") == 3);
    let counts = |limit: &str| {
        let page = metrics();
        ["allowed", "rejected", "shadow"].map(|decision| {
            let labels = format!("limit=\"{limit}\",decision=\"{decision}\"");
            page.value(&format!("tidegate_decisions_total{{{labels}}}"))
        })
    };
    for _ in 0..20 {
        get(proxy.address, "/all", &[]);
    }
    assert_eq!(counts("all"), [5.0, 15.0, 0.0]);
    assert_eq!(counts("all:candidate"), [8.0, 0.0, 12.0]);

    for (path, user, times) in
        [("/user", "z", 9), ("/both", "a", 3), ("/both", "z", 4), ("/both", "a", 10)]
    {
        for _ in 0..times {
            get(proxy.address, path, &[("x-user", user)]);
        }
    }
    assert_eq!(counts("client"), [3.0, 14.0, 0.0]);
    assert_eq!(counts("user"), [9.0 + 3.0 + 10.0, 4.0, 0.0]);
    // It takes whatever the two limits say.
    assert_eq!(counts("client:candidate"), [6.0, 0.0, 11.0]);
}
