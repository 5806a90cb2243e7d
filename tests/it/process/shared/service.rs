//! A service that counts by the package `tidegate-limit`, in the buckets of a proxy.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate_limit::key::hash;
use tidegate_limit::{Answer, Charge, Limit, Limits, RedisLimits};

use crate::support::client::get;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::tidegate::program;
use crate::support::wait_until;

const NAMES: [&str; 5] = ["bucket", "window", "sliding", "log", "slots"];

/// If names and keys are written alike, a service and the proxy take from the same buckets.
#[tokio::test]
async fn a_service_and_the_proxy_share_their_buckets() {
    let server = RedisServer::start();
    let by = |algorithm| {
        format!("key = [\"header:x-user\"]\nrate = \"5/h\"\nalgorithm = \"{algorithm}\"")
    };
    let slots = "key = [\"header:x-user\"]\nlimit = 5\nalgorithm = \"concurrency\"";
    let proxy = Proxy::answering()
        .admin()
        .store(&server.fields())
        .limit("bucket", &by("token-bucket"))
        .limit("window", &by("fixed-window"))
        .limit("sliding", &by("sliding-window"))
        .limit("log", &by("sliding-log"))
        .limit("slots", slots)
        .start();
    let rate = || "5/h".parse().unwrap();
    let limits = Limits::new([
        Limit::token_bucket("bucket", rate()),
        Limit::fixed_window("window", rate()),
        Limit::sliding_window("sliding", rate()),
        Limit::sliding_log("log", rate()),
        Limit::concurrency("slots", 5).lease(Duration::from_secs(60)),
    ]);
    let client = redis::Client::open(server.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let service = RedisLimits::new(limits.unwrap(), "tidegate", connection);
    // Values of headers stand in Redis as hashes.
    let user = hash(b"ann");
    let charge = |name| Charge::new(name, &[&user]).cost(2);
    let answer = service.take_all(NAMES.map(charge)).await.unwrap();
    let Answer::Taken { permit, .. } = answer else { panic!("{answer:?}") };
    let left: Vec<u64> = permit.quotas().remaining().map(|(_, left)| left).collect();
    assert_eq!(left, [3, 3, 3, 3, 4]);

    let admin = format!("http://{}", proxy.admin());
    let remaining = |name: &str| -> Option<u64> {
        let mut command = program();
        command.args(["limits", "get", name, "ann", "--admin", &admin]);
        let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let mut lines = said.lines();
        lines.find_map(|line| {
            line.strip_prefix("remaining")?.split_whitespace().next()?.parse().ok()
        })
    };
    assert_eq!(NAMES.map(remaining), left.iter().copied().map(Some).collect::<Vec<_>>()[..]);

    let buckets = || -> BTreeSet<String> { server.run(&["KEYS", "tidegate:{*"]) };
    let before = buckets();
    assert_eq!(before.len(), NAMES.len(), "{before:?}");
    assert_eq!(get(proxy.address, "/", &[("x-user", "ann")]).status, 200);
    assert_eq!(buckets(), before, "the proxy has taken from the same buckets");
    wait_until("the proxy's slot is back", || remaining("slots") == Some(4));
    assert_eq!(NAMES.map(remaining), [2, 2, 2, 2, 4].map(Some));
    drop(permit);
    while remaining("slots") != Some(5) {
        // The slot goes back in a task of this runtime.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
