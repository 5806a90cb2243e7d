//! What a check in Redis costs, to the process that asks and to the server, against one plain script
//! call for each check over the same client library. Both in turn, several rounds, in one process:
//! only the ratios mean something.
//!
//! `cargo bench --bench redis`, on Linux, with `redis-server` installed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

#[path = "../tests/it/support/limits.rs"]
#[expect(dead_code, reason = "asks have several rates here")]
mod limits;

use std::cell::Cell;
use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tidegate::limit::decide::Ask;
use tidegate::limit::key::Key;
use tidegate::limit::time::Timestamp;
use tidegate::settings::{KeyDisplay, LimitSpec, OnStoreError, RedisUrl, StoreLocation, StoreSpec};
use tidegate::store::{Claim, ClockReading, ProcessStore, Store};
use tokio::task::LocalSet;
use tokio::time::Instant;

use self::limits::{bucket, limit};

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(300);
const KEYS: usize = 20_000;

/// What one would write first: a bucket in a hash, by the caller's figures.
const PLAIN: &str = "
    local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'at')
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    local rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
    local tokens = tonumber(bucket[1]) or burst
    local gained = (now - (tonumber(bucket[2]) or now)) * rate / 1000000
    tokens = math.min(burst, tokens + math.max(gained, 0))
    local allowed = 0
    if tokens >= 1 then
        allowed, tokens = 1, tokens - 1
    end
    redis.call('HSET', KEYS[1], 'tokens', tokens, 'at', string.format('%.0f', now))
    redis.call('PEXPIRE', KEYS[1], math.ceil((burst - tokens) / rate * 1000) + 1)
    return { allowed, math.floor(tokens) }";

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = Server::start();
    LocalSet::new().block_on(&runtime, measure(&server));
}

async fn measure(server: &Server) {
    let bench = Bench::on(server).await;
    println!("medians of {ROUNDS} rounds; microseconds of CPU for each check, ratios to plain\n");
    println!(
        "{:>9} {:<14} {:>9} {:>7} {:>7} {:>7} {:>7}",
        "at once", "", "checks/s", "here", "ratio", "redis", "ratio"
    );
    for at_once in [1, 16, 64, 256] {
        let ways = [
            ("plain", How::Plain),
            ("one, new", How::Ours(Buckets::New, 1)),
            ("one, used", How::Ours(Buckets::Used, 1)),
            ("three, new", How::Ours(Buckets::New, 3)),
            ("three, used", How::Ours(Buckets::Used, 3)),
        ];
        let mut rounds = ways.map(|_| Vec::new());
        for _ in 0..ROUNDS {
            for ((_, how), rounds) in ways.into_iter().zip(&mut rounds) {
                rounds.push(bench.round(how, at_once).await);
            }
        }
        for ((name, _), of_one) in ways.into_iter().zip(&rounds) {
            report(at_once, name, of_one, &rounds[0]);
        }
    }
}

#[derive(Clone, Copy)]
enum How {
    Plain,
    /// With so many limits.
    Ours(Buckets, usize),
}

#[derive(Clone, Copy)]
enum Buckets {
    /// Full again before their client comes back.
    New,
    /// Something is missing whenever their client comes back.
    Used,
}

/// Of one check.
#[derive(Clone, Copy)]
struct Spent {
    a_second: f64,
    here: f64,
    redis: f64,
}

fn report(at_once: usize, name: &str, rounds: &[Spent], plain: &[Spent]) {
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let of = |value: fn(&Spent) -> f64| median(rounds.iter().map(value).collect());
    let to_plain = |value: fn(&Spent) -> f64| {
        median(rounds.iter().zip(plain).map(|(one, plain)| value(one) / value(plain)).collect())
    };
    println!(
        "{at_once:>9} {name:<14} {:>9.0} {:>7.2} {:>7.2} {:>7.2} {:>7.2}",
        of(|cost| cost.a_second),
        of(|cost| cost.here),
        to_plain(|cost| cost.here),
        of(|cost| cost.redis),
        to_plain(|cost| cost.redis),
    );
}

struct Bench {
    server_pid: u32,
    plain: Rc<Plain>,
    ours: Rc<Ours>,
}

struct Plain {
    connection: MultiplexedConnection,
    hash: String,
}

struct Ours {
    store: Arc<Store>,
    new: [Arc<LimitSpec>; 3],
    used: [Arc<LimitSpec>; 3],
    keys: Vec<Key>,
}

impl Bench {
    async fn on(server: &Server) -> Self {
        let url = format!("redis://127.0.0.1:{}", server.port);
        let client = redis::Client::open(url.as_str()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut load = redis::cmd("SCRIPT");
        let hash = load.arg("LOAD").arg(PLAIN).query_async(&mut connection).await.unwrap();
        let spec = StoreSpec {
            location: StoreLocation::Redis(Box::new(url.parse::<RedisUrl>().unwrap().location)),
            prefix: "tidegate".into(),
            timeout: Duration::from_secs(5),
            max_keys: 1_000,
        };
        let store = Store::new(ProcessStore::new(&spec), &spec, KeyDisplay::Plain);
        let keys = (0..KEYS)
            .map(|n| Key::of([Some(format!("203.0.{}.{}", n / 250, n % 250).as_bytes())]))
            .collect();
        // A check that Redis did not answer must not pass for a quick one.
        let limit =
            |name| Arc::new(LimitSpec { on_store_error: OnStoreError::Reject, ..limit(name) });
        let new = ["per-client", "per-second", "per-day"].map(limit);
        let used = ["of-client", "of-second", "of-day"].map(limit);
        Self {
            server_pid: server.process.id(),
            plain: Rc::new(Plain { connection, hash }),
            ours: Rc::new(Ours { store, new, used, keys }),
        }
    }

    /// So many loops that each ask again as soon as they have their answer.
    async fn round(&self, how: How, at_once: usize) -> Spent {
        let ends = Instant::now() + ROUND;
        let (checks, next) = (Rc::new(Cell::new(0_u32)), Rc::new(Cell::new(0_usize)));
        let (here, redis, began) = (cpu("self"), cpu(&self.server_pid.to_string()), Instant::now());
        let loops: Vec<_> = (0..at_once)
            .map(|_| {
                let (checks, next) = (Rc::clone(&checks), Rc::clone(&next));
                let (plain, ours) = (Rc::clone(&self.plain), Rc::clone(&self.ours));
                tokio::task::spawn_local(async move {
                    while Instant::now() < ends {
                        let place = next.replace((next.get() + 1) % KEYS);
                        match how {
                            How::Plain => plain.check(&ours.keys[place]).await,
                            How::Ours(buckets, limits) => ours.check(place, buckets, limits).await,
                        }
                        checks.set(checks.get() + 1);
                    }
                })
            })
            .collect();
        for one in loops {
            one.await.unwrap();
        }
        let checks = f64::from(checks.get());
        Spent {
            a_second: checks / began.elapsed().as_secs_f64(),
            here: (cpu("self") - here) / checks,
            redis: (cpu(&self.server_pid.to_string()) - redis) / checks,
        }
    }
}

impl Plain {
    async fn check(&self, key: &Key) {
        let mut call = redis::cmd("EVALSHA");
        call.arg(&self.hash).arg(1).arg(format!("plain:{{{key}}}:per-client")).arg(100).arg(1000);
        let mut connection = self.connection.clone();
        let _: (u8, u64) = call.query_async(&mut connection).await.unwrap();
    }
}

impl Ours {
    async fn check(&self, place: usize, buckets: Buckets, limits: usize) {
        let (specs, rate) = match buckets {
            Buckets::New => (&self.new, "100/s"),
            Buckets::Used => (&self.used, "1/s"),
        };
        let ask = Ask::for_one(bucket(rate, 1_000));
        let claim = |spec| Claim::new(&self.store, spec, self.keys[place].clone().into(), ask);
        let mut claims: Vec<_> = specs.iter().take(limits).map(claim).collect();
        let mut all: Vec<_> = claims.iter_mut().collect();
        let now = ClockReading::now(Timestamp::from_micros(1_700_000_000_000_000).unwrap());
        self.store.take(&mut all, now).await.unwrap();
    }
}

/// Microseconds on a CPU so far, of a process's main thread.
fn cpu(process: &str) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/schedstat")).unwrap();
    stat.split(' ').next().unwrap().parse::<f64>().unwrap() / 1_000.0
}

struct Server {
    port: u16,
    process: Child,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let free = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let dir = tempfile::tempdir().unwrap();
        let process = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .current_dir(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is not installed");
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { port, process, _dir: dir }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
