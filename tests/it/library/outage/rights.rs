//! A user of Redis who lacks rights.

use tidegate::settings::{LimitSpec, OnStoreError};

use super::{Bench, now};
use crate::support::algorithms::log;
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

/// Redis was away and back every second, and no line said why.
#[tokio::test]
async fn a_right_that_one_limit_lacks_is_that_limits_error() {
    let server = RedisServer::start();
    let bench = Bench::on(&as_user(&server));
    bench.until_redis_decides().await;
    let () = server.run(&["ACL", "SETUSER", "tidegate", "-zadd"]);
    let (mut list, key) = (limit("list"), key("x"));
    list.on_store_error = OnStoreError::Allow;
    let bucket = LimitSpec { on_store_error: OnStoreError::Reject, ..limit("bucket") };
    let mut lacks = ask(&list, &key, 10);
    lacks.ask.algorithm = log("10/h");
    let works = ask(&bucket, &key, 10);
    for left in (0..8).rev() {
        let both = bench.decide(&[lacks, works]).await.unwrap();
        assert_eq!(both.decisions[0], None, "on_store_error decides");
        assert_eq!(both.remaining(1), left + 2);
        assert_eq!(bench.decide(&[lacks]).await.unwrap().decisions, [None]);
    }
    assert_eq!(bench.store.look(&works, now()).await.unwrap().remaining, 2, "Redis has counted");
    let text = bench.log.text();
    assert_eq!(bench.log.count("key refused by redis"), 1, "{text}");
    assert!(text.contains("limit=list") && text.contains("can't run this command"), "{text}");
    assert_eq!(bench.log.count("store unavailable"), 0, "{text}");
}
