//! What the log says of a Redis that does not decide, and how often.

use super::Bench;
use crate::support::limits::{ask, key, limit};
use crate::support::redis::RedisServer;

/// What Redis answered to a login was lost, and that a cluster was meant was an error without advice.
#[tokio::test]
async fn what_the_url_has_wrong_is_told_in_redis_s_words_and_with_what_to_do() {
    let plain = RedisServer::start();
    let in_cluster = RedisServer::start_in_cluster(&["--cluster-enabled", "yes"]);
    let with_password = RedisServer::start_with(&["--requirepass", "right"]);
    let (port, clustered, locked) = (plain.port(), in_cluster.port(), with_password.port());
    let password = "give store.url Redis's password";
    for (url, told, advice) in [
        (format!("redis://127.0.0.1:{locked}"), "NOAUTH", password),
        (format!("redis://:no-secret@127.0.0.1:{locked}"), "WRONGPASS", password),
        (
            format!("redis://:no-secret@127.0.0.1:{port}"),
            "without any password configured",
            "remove it from store.url",
        ),
        (
            format!("redis://nobody:no-secret@127.0.0.1:{port}"),
            "WRONGPASS invalid username-password pair",
            password,
        ),
        (format!("redis://127.0.0.1:{port}/5000"), "DB index is out of range", "`databases`"),
        (
            format!("redis-cluster://127.0.0.1:{port}"),
            "error=ERR This instance has cluster support disabled",
            "write redis:// in store.url",
        ),
        (
            format!("redis-sentinel://127.0.0.1:{port}/main"),
            "error=ERR unknown command 'SENTINEL' ",
            "this server is no sentinel",
        ),
        (
            format!("redis://127.0.0.1:{clustered}/1"),
            "SELECT is not allowed in cluster mode",
            "write redis-cluster:// in store.url",
        ),
    ] {
        let bench = Bench::on(&url);
        bench.until_log("store unavailable").await;
        let log = bench.log.text();
        assert!(log.contains(told) && log.contains(advice), "{url}: {log}");
        assert!(!log.contains("no-secret"), "{log}");
    }
}

#[tokio::test]
async fn a_key_of_another_type_is_told_once() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    bench.until_redis_decides().await;
    let (spec, key) = (limit("odd"), key("203.0.113.7"));
    let () = server.run(&["RPUSH", "tidegate:{203.0.113.7}:odd", "x"]);
    for _ in 0..5 {
        bench.decide(&[ask(&spec, &key, 10)]).await.unwrap();
    }
    let told = bench.log.text();
    assert_eq!(bench.log.count("key of another type in redis"), 1, "{told}");
    assert!(told.contains("limit=odd") && told.contains("tidegate:{203.0.113.7}:odd"), "{told}");
}
