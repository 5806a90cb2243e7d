//! Redis out of reach, in every way that can be made to happen.

mod cluster;
mod connections;
mod limits;
mod load;
mod old;
mod rights;
mod sentinels;
mod slots;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::limit::decision::Verdict;
use tidegate::limit::time::Timestamp;
use tidegate::plan::{KeyDisplay, StoreSpec};
use tidegate::store::{BucketAsk, ProcessStore, Store, Unavailable};
use tokio::time::Instant;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

use crate::support::algorithms::{rolling, sliding};
use crate::support::bench::{Answer, decide};
use crate::support::limits::{ask, bucket, key, limit};
use crate::support::redis::{RedisServer, location};

/// What a decision may wait for a Redis that says nothing.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Decisions that would take minutes if each of them waited.
const MANY: u64 = 1_000;

/// What `MANY` decisions may take when none of them waits, and how long a recovery may take, on a
/// machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(30);

struct Bench {
    store: Arc<Store>,
    shared: Arc<ProcessStore>,
    spec: StoreSpec,
    log: Log,
}

impl Bench {
    /// With time for any machine: for a Redis that answers, or breaks at once.
    fn on(url: &str) -> Self {
        Self::with_timeout(url, PATIENCE)
    }

    /// For a Redis that falls silent.
    fn impatient(url: &str) -> Self {
        Self::with_timeout(url, TIMEOUT)
    }

    fn with_timeout(url: &str, timeout: Duration) -> Self {
        let log = Log::capture();
        let spec = StoreSpec {
            location: location(url),
            prefix: "tidegate".into(),
            timeout,
            max_keys: 10_000,
        };
        let shared = ProcessStore::new(&spec);
        let store = Store::new(Arc::clone(&shared), &spec, KeyDisplay::Plain);
        Self { store, shared, spec, log }
    }

    /// One decision, which waits no longer than it may.
    async fn decide(&self, asks: &[BucketAsk<'_>]) -> Result<Answer, Unavailable> {
        let began = Instant::now();
        let answer = decide(&self.store, asks, now()).await;
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
        answer
    }

    async fn left(&self, ask: BucketAsk<'_>) -> u64 {
        self.decide(&[ask]).await.unwrap().remaining(0)
    }

    async fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let max_wait = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < max_wait, "never: {what}: {}", self.log.text());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn until_redis_is(&self, up: bool) {
        self.until("Redis is up or away", || self.shared.counters().redis_up == Some(up)).await;
    }

    /// Asks for this key until the failures make Redis count as away. It may be there again soon. Each limit is new: a
    /// limit that has refused would be decided without a question.
    async fn decide_until_redis_is_away(&self, name: &str) {
        let mut limits = (0..).map(|number| limit(&format!("away-{number}")));
        // Redis may be back before anybody looks, and a quick failover is no outage.
        let outages = || self.log.count("store unavailable") + self.log.count("store master moved");
        let (before, max_wait) = (outages(), Instant::now() + PATIENCE);
        while self.shared.counters().redis_up == Some(true) && outages() == before {
            assert!(Instant::now() < max_wait, "Redis is there: {}", self.log.text());
            let _ = self.decide(&[ask(&limits.next().unwrap(), &key(name), 10)]).await;
        }
    }

    async fn until_log(&self, has: &str) {
        self.until(has, || self.log.text().contains(has)).await;
    }

    /// Waits until Redis decides: its connection may take a moment.
    async fn until_redis_decides(&self) {
        self.until_redis_is(true).await;
        let spec = limit("first");
        let max_wait = Instant::now() + PATIENCE;
        while self.store.peek(&ask(&spec, &key("x"), 1), now()).await.is_err() {
            assert!(Instant::now() < max_wait, "Redis does not decide");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Asks away while Redis does not decide: the process's own bucket must, and after the first
    /// few nobody may wait.
    async fn assert_decides_alone(&self, name: &str) {
        let (spec, key) = (limit("alone"), key(name));
        let began = Instant::now();
        let mut passed = 0;
        for _ in 0..MANY {
            let answer = self.decide(&[ask(&spec, &key, 10)]).await.unwrap();
            passed += u64::from(answer.verdict == Verdict::PASS);
        }
        assert_eq!(passed, 10, "{name}: the whole limit, for this process");
        assert!(began.elapsed() < PATIENCE, "{name}: {MANY} took {:?}", began.elapsed());
        self.until_redis_is(false).await;
        assert_eq!(self.log.count("store unavailable"), 1, "{name}: {}", self.log.text());
    }

    /// It must come back by itself, without any request.
    async fn assert_recovers(&self, name: &str) {
        self.until_redis_is(true).await;
        self.until_redis_decides().await;
        assert_eq!(self.log.count("store unavailable"), 1, "{name}: {}", self.log.text());
        // One that was away at the start was never there before.
        let back = self.log.count("store recovered") + self.log.count("store connected");
        assert_eq!(back, 1, "{name}: {}", self.log.text());
    }
}

fn now() -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000).unwrap()
}

/// The log lines of a test's thread, which is all of its runtime.
struct Log {
    lines: Lines,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn capture() -> Self {
        let lines = Lines::default();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(lines.clone())
            .with_ansi(false)
            .with_max_level(tracing::Level::INFO)
            .finish();
        Self { lines, _guard: tracing::subscriber::set_default(subscriber) }
    }

    fn text(&self) -> String {
        String::from_utf8(self.lines.0.lock().unwrap().clone()).unwrap()
    }

    fn count(&self, message: &str) -> usize {
        self.text().matches(message).count()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for Lines {
    type Writer = Self;

    fn make_writer(&'w self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_at_the_start() {
    let mut server = RedisServer::absent();
    let bench = Bench::on(&server.url());
    bench.until_redis_is(false).await;
    assert_eq!(bench.log.count("store unavailable"), 1, "said without any request");
    bench.assert_decides_alone("absent").await;
    server.restart();
    bench.assert_recovers("absent").await;
}

#[tokio::test]
async fn a_server_that_is_killed_and_comes_back_empty() {
    let mut server = RedisServer::start();
    let bench = Bench::on(&server.url());
    bench.until_redis_decides().await;
    server.kill();
    bench.assert_decides_alone("killed").await;
    server.restart();
    bench.assert_recovers("killed").await;
    let (spec, key) = (limit("alone"), key("killed"));
    assert_eq!(bench.left(ask(&spec, &key, 10)).await, 9, "the new server's bucket");
}

#[tokio::test]
async fn a_bucket_begins_with_what_redis_last_said() {
    for algorithm in [bucket("1/h", 10), sliding("10/h"), rolling("10/h")] {
        let mut server = RedisServer::start();
        let bench = Bench::on(&server.url());
        bench.until_redis_decides().await;
        let (spec, key) = (limit("used"), key("x"));
        let mut one = ask(&spec, &key, 10);
        one.ask.algorithm = algorithm;
        for _ in 0..4 {
            bench.decide(&[one]).await.unwrap();
        }
        server.kill();
        bench.until_redis_is(false).await;
        let mut passed = 0;
        for _ in 0..15 {
            passed += u64::from(bench.decide(&[one]).await.unwrap().verdict == Verdict::PASS);
        }
        assert_eq!(passed, 6, "{algorithm:?}");
    }
}

#[tokio::test]
async fn a_server_that_falls_silent() {
    let server = RedisServer::start();
    let bench = Bench::impatient(&server.url());
    bench.until_redis_decides().await;
    server.pause();
    bench.assert_decides_alone("silent").await;
    server.resume();
    bench.assert_recovers("silent").await;
}

#[tokio::test]
async fn a_server_that_is_silent_from_the_start() {
    let server = RedisServer::start();
    server.pause();
    let bench = Bench::impatient(&server.url());
    bench.assert_decides_alone("silent").await;
    server.resume();
    bench.assert_recovers("silent").await;
}

#[tokio::test]
async fn a_server_that_only_reads() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    bench.until_redis_decides().await;
    let () = server.run(&["REPLICAOF", "127.0.0.1", "1"]);
    bench.assert_decides_alone("read-only").await;
    assert!(bench.log.text().contains("read only replica"), "{}", bench.log.text());
    let () = server.run(&["REPLICAOF", "NO", "ONE"]);
    bench.assert_recovers("read-only").await;
}

#[tokio::test]
async fn a_server_without_memory() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    bench.until_redis_decides().await;
    let () = server.run(&["CONFIG", "SET", "maxmemory", "1"]);
    bench.assert_decides_alone("oom").await;
    assert!(bench.log.text().contains("OOM"), "{}", bench.log.text());
    let () = server.run(&["CONFIG", "SET", "maxmemory", "0"]);
    bench.assert_recovers("oom").await;
}

#[tokio::test]
async fn a_server_that_lacks_replicas() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    bench.until_redis_decides().await;
    let () = server.run(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    bench.assert_decides_alone("replicas").await;
    let log = bench.log.text();
    assert!(log.contains("NOREPLICAS") && log.contains("INFO REPLICATION"), "{log}");
    let () = server.run(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    bench.assert_recovers("replicas").await;
}

#[tokio::test]
async fn a_password_that_is_wrong_or_missing() {
    for user in ["", ":wrong-secret@"] {
        let server = RedisServer::start_with(&["--requirepass", "right"]);
        let bench = Bench::on(&format!("redis://{user}127.0.0.1:{}", server.port()));
        bench.assert_decides_alone("password").await;
        assert!(!bench.log.text().contains("wrong-secret"), "{}", bench.log.text());
        let log = bench.log.text();
        assert!(log.contains("give store.url Redis's password"), "{log}");
    }
}

/// What Redis answered to a login was lost, and that a cluster was meant was an error without advice.
#[tokio::test]
async fn what_the_url_has_wrong_is_told_in_redis_s_words_and_with_what_to_do() {
    let plain = RedisServer::start();
    let in_cluster = RedisServer::start_in_cluster(&["--cluster-enabled", "yes"]);
    let (port, clustered) = (plain.port(), in_cluster.port());
    for (url, told, advice) in [
        (
            format!("redis://:no-secret@127.0.0.1:{port}"),
            "without any password configured",
            "remove it from store.url",
        ),
        (
            format!("redis://nobody:no-secret@127.0.0.1:{port}"),
            "WRONGPASS invalid username-password pair",
            "give store.url Redis's password",
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
async fn a_password_that_is_right() {
    let server = RedisServer::start_with(&["--requirepass", "right"]);
    let bench = Bench::on(&format!("redis://:right@127.0.0.1:{}", server.port()));
    bench.until_redis_decides().await;
    assert_eq!(bench.log.text(), "");
}

#[tokio::test]
async fn a_further_reason_for_which_it_stays_away_is_told_once() {
    let mut server = RedisServer::start();
    let bench = Bench::on(&server.url());
    bench.until_redis_decides().await;
    server.kill();
    bench.assert_decides_alone("killed").await;
    // It is back, and lets nobody in that has no password.
    server.restart_with(&["--requirepass", "new"]);
    bench.until_log("NOAUTH").await;
    assert_eq!(bench.log.count("store still unavailable"), 1, "{}", bench.log.text());
    assert_eq!(bench.log.count("store unavailable"), 1, "{}", bench.log.text());
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

#[tokio::test]
async fn a_server_that_is_something_else() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut connection in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                while connection.read(&mut [0; 4_096]).is_ok_and(|read| read > 0) {
                    let _ = connection.write_all(b"+OK\r\n");
                }
            });
        }
    });
    let bench = Bench::on(&format!("redis://127.0.0.1:{port}"));
    bench.assert_decides_alone("nonsense").await;
}

#[tokio::test]
async fn an_outage_is_one_for_all_workers() {
    let server = RedisServer::start();
    let bench = Bench::impatient(&server.url());
    let other = Store::new(Arc::clone(&bench.shared), &bench.spec, KeyDisplay::Plain);
    bench.until_redis_decides().await;
    server.pause();
    bench.assert_decides_alone("one worker").await;
    let (spec, key) = (limit("per-client"), key("192.0.2.1"));
    let began = Instant::now();
    for _ in 0..MANY {
        decide(&other, &[ask(&spec, &key, 1)], now()).await.unwrap();
    }
    assert!(began.elapsed() < PATIENCE);
    assert_eq!(bench.log.count("store unavailable"), 1);
    server.resume();
    bench.assert_recovers("one worker").await;
    let max_wait = Instant::now() + PATIENCE;
    while other.peek(&ask(&spec, &key, 1), now()).await.is_err() {
        assert!(Instant::now() < max_wait, "the other worker never comes back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn a_decision_can_move_between_threads() {
    fn assert_send<T: Send>(_: T) {}
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let server = RedisServer::absent();
    let bench = Bench::on(&server.url());
    assert_send(decide(&bench.store, &[], now()));
}
