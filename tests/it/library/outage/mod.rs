//! Redis out of reach, in every way that can be made to happen.

mod cluster;
mod connections;
mod limits;
mod load;
mod log_lines;
mod old_server;
mod rights;
mod sentinels;
mod server;
mod slots;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::limit::decision::Verdict;
use tidegate::limit::time::Timestamp;
use tidegate::settings::StoreSpec;
use tidegate::store::{BucketAsk, ProcessStore, Store, Unavailable};
use tokio::time::Instant;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

use crate::support::bench::{Answer, decide, store_spec, stores};
use crate::support::limits::{ask, key, limit};
use crate::support::redis::location;
use crate::support::until;

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
        let spec = StoreSpec { timeout, ..store_spec(location(url)) };
        let (shared, store) = stores(&spec);
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
        until(what, async || is_so()).await;
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
        until_decides(&self.store, "x").await;
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

/// Waits until Redis decides on this key for a worker.
async fn until_decides(store: &Arc<Store>, name: &str) {
    let spec = limit("first");
    let decides = async || store.look(&ask(&spec, &key(name), 1), now()).await.is_ok();
    until(&format!("Redis decides on {name}"), decides).await;
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

impl Drop for Log {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the log:\n{}", self.text());
        }
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
