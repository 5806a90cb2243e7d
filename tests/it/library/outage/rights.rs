//! A user of Redis who lacks rights.

use super::Bench;
use crate::support::limits::{ask, key, limit};
use crate::support::redis::RedisServer;

/// The URL of a server's user who has only the rights that the manual names.
fn as_user(server: &RedisServer) -> String {
    server.as_user();
    format!("redis://tidegate:secret@127.0.0.1:{}", server.port())
}

/// Redis counted as up, and each process decided alone with the whole limit.
#[tokio::test]
async fn a_user_who_loses_the_right_to_our_keys() {
    let server = RedisServer::start();
    let bench = Bench::on(&as_user(&server));
    bench.until_redis_decides().await;
    let () = server.run(&["ACL", "SETUSER", "tidegate", "resetkeys", "~other:*"]);
    let (spec, key) = (limit("per-client"), key("x"));
    bench.decide(&[ask(&spec, &key, 10)]).await.unwrap();
    bench.assert_decides_alone("keys").await;
    let log = bench.log.text();
    assert!(
        log.contains("NOPERM") && log.contains("allow this user the commands and keys"),
        "{log}"
    );
    let () = server.run(&["ACL", "SETUSER", "tidegate", "~tidegate:*"]);
    bench.assert_recovers("keys").await;
}

#[tokio::test]
async fn a_user_who_never_had_a_right_to_our_keys() {
    let server = RedisServer::start();
    let url = as_user(&server);
    let () = server.run(&["ACL", "SETUSER", "tidegate", "resetkeys", "~other:*"]);
    let bench = Bench::on(&url);
    bench.until_redis_is(false).await;
    assert!(bench.log.text().contains("NOPERM"), "{}", bench.log.text());
    let () = server.run(&["ACL", "SETUSER", "tidegate", "~tidegate:*"]);
    bench.assert_recovers("keys").await;
}
