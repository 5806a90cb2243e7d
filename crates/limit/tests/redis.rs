//! The limits of several processes, on a real Redis.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a fault in here is a bug")]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tidegate_limit::call::TEXT;
use tidegate_limit::{Answer, Charge, Limit, Limits, RedisLimits, RedisPermit, RedisTakeError};

/// A server of its own, at a socket in a folder of its own.
struct Server {
    process: Child,
    folder: PathBuf,
}

impl Server {
    fn start(test: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("tidegate-limit-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(folder.join("socket"));
        let process =
            command.stdout(Stdio::null()).spawn().expect("redis-server must be installed");
        Self { process, folder }
    }

    async fn connection(&self) -> MultiplexedConnection {
        let url = format!("redis+unix://{}", self.folder.join("socket").display());
        loop {
            let client = redis::Client::open(url.as_str()).unwrap();
            match client.get_multiplexed_async_connection().await {
                Ok(connection) => return connection,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

type Said = Answer<RedisPermit<MultiplexedConnection>>;

fn said(answer: &Said) -> Result<u64, &str> {
    match answer {
        Answer::Taken { remaining, .. } => Ok(*remaining),
        Answer::Rejected { by, .. } => Err(by.as_str()),
    }
}

fn limits() -> Limits {
    Limits::new([
        Limit::token_bucket("per-user", "3/h".parse().unwrap()),
        Limit::sliding_log("few", "2/h".parse().unwrap()),
        Limit::concurrency("at-once", 1).lease(Duration::from_secs(3600)),
    ])
    .unwrap()
}

#[tokio::test]
async fn two_processes_share_what_a_limit_gives() {
    let server = Server::start("share");
    // Each has its own connection, and its own table.
    let one = RedisLimits::new(limits(), "shop", server.connection().await);
    let two = RedisLimits::new(limits(), "shop", server.connection().await);
    let take = async |limits: &RedisLimits<_>| -> Said {
        limits.take([("per-user", &["ann"]), ("few", &["ann", "/x"])]).await.unwrap()
    };
    let (first, second) = (take(&one).await, take(&two).await);
    assert_eq!((said(&first), said(&second)), (Ok(1), Ok(0)));
    let third = take(&one).await;
    let Answer::Rejected { by, retry_after: Some(wait), quotas } = third else {
        panic!("{third:?}")
    };
    assert!(by.as_str() == "few" && wait <= Duration::from_secs(3600), "{by} {wait:?}");
    let left: Vec<_> = quotas.remaining().map(|(name, left)| (name.as_str(), left)).collect();
    assert_eq!(left, [("per-user", 1), ("few", 0)], "nothing was taken");
    assert_eq!(said(&two.take([("per-user", &["ann"])]).await.unwrap()), Ok(0));
    let mut keys: Vec<String> =
        redis::cmd("KEYS").arg("*").query_async(&mut server.connection().await).await.unwrap();
    keys.sort();
    assert_eq!(keys, ["shop:{ann|/x}:few:sliding-log", "shop:{ann}:per-user"]);
}

#[tokio::test]
async fn a_slot_in_redis_goes_back_with_its_permit() {
    let server = Server::start("slots");
    let limits = RedisLimits::new(limits(), "shop", server.connection().await);
    let take = async || limits.take([("at-once", &[])]).await.unwrap();
    let held = take().await;
    assert_eq!((said(&held), said(&take().await)), (Ok(0), Err("at-once")));
    drop(held);
    while said(&take().await).is_err() {}
    // Whoever leaves before the answer holds nothing either.
    while said(&take().await).is_err() {}
    drop(tokio::time::timeout(Duration::ZERO, take()).await);
    while said(&take().await).is_err() {}
}

#[tokio::test]
async fn a_cost_in_redis_is_settled() {
    let server = Server::start("settle");
    let limits = RedisLimits::new(limits(), "shop", server.connection().await);
    let charge = |cost| [Charge::new("per-user", &["ann"]).cost(cost)];
    let answer = limits.take_all(charge(3)).await.unwrap();
    let Answer::Taken { remaining: 0, mut permit, .. } = answer else { panic!("{answer:?}") };
    permit.settle("per-user", 1).await.unwrap();
    let nothing = limits.take([]).await.unwrap();
    assert!(matches!(nothing, Answer::Taken { .. }), "no limit refuses");
    assert!(permit.settle("few", 1).await.is_err());
    assert_eq!(said(&limits.take_all(charge(1)).await.unwrap()), Ok(1));
}

#[tokio::test]
async fn any_client_can_carry_the_call() {
    let server = Server::start("any");
    let mut connection = server.connection().await;
    let limits = limits();
    let call = limits.redis_call("shop", [Charge::new("per-user", &["ann"])]).unwrap();
    let command = call.command();
    let words: Vec<_> = command.args_iter().collect();
    assert!(matches!(words[0], redis::Arg::Simple(b"EVALSHA")));
    let hash: String = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(TEXT.as_str())
        .query_async(&mut connection)
        .await
        .unwrap();
    assert!(matches!(words[1], redis::Arg::Simple(named) if named == hash.as_bytes()));
    let answer: Vec<u8> = command.query_async(&mut connection).await.unwrap();
    let answer = call.read(&answer).unwrap();
    assert!(matches!(answer, Answer::Taken { remaining: 2, .. }), "{answer:?}");
    let call = limits.redis_call("shop", [Charge::new("per-user", &["ann"])]).unwrap();
    assert!(matches!(call.read(b"another"), Err(RedisTakeError::NoAnswer)));
}

#[tokio::test]
async fn a_key_of_another_program_is_named() {
    let server = Server::start("other");
    let mut connection = server.connection().await;
    redis::cmd("LPUSH")
        .arg(&["shop:{ann}:per-user", "x"])
        .exec_async(&mut connection)
        .await
        .unwrap();
    let limits = RedisLimits::new(limits(), "shop", connection);
    let error = limits.take([("per-user", &["ann"])]).await.unwrap_err();
    assert!(
        matches!(&error, RedisTakeError::OtherType(key) if key == "shop:{ann}:per-user"),
        "{error}"
    );
}
