//! What the README says in numbers: a decision in the process beside governor's, in Redis beside a plain INCR, and the
//! bytes of a key.
//!
//! `cargo bench -p tidegate-limit --features redis`, with `redis-server` installed. Each pair is measured in turn, several
//! rounds, in one process: only the ratios mean something.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::hint::black_box;
use std::num::NonZeroU32;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use governor::{Quota, RateLimiter};
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tidegate_limit::{Answer, Limit, Limits, RedisLimits, now};

const ROUNDS: usize = 21;
const KEYS: usize = 20_000;
/// The scheduler counts in ticks of some milliseconds. A round has to be much longer.
const PASSES: usize = 10;

fn main() {
    in_process();
    memory();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(in_redis());
}

fn keys() -> Vec<String> {
    (0..KEYS).map(|number| format!("198.51.{}.{}", number / 256, number % 256)).collect()
}

fn limits() -> Limits {
    Limits::new([
        Limit::token_bucket("one", "1000000/s".parse().unwrap()),
        Limit::fixed_window("two", "1000000000/d".parse().unwrap()),
    ])
    .unwrap()
}

/// The nanoseconds of CPU so far, by Linux's scheduler: other work on the machine does not count.
fn cpu(schedstat: impl AsRef<std::path::Path>) -> u64 {
    let stat = std::fs::read_to_string(schedstat).unwrap();
    stat.split(' ').next().unwrap().parse().unwrap()
}

/// Asks whether a key may go.
type Way<'w> = &'w dyn Fn(&String) -> bool;

/// Nanoseconds of each way, for one decision: the medians of the rounds.
fn in_process() {
    let quota = Quota::per_second(NonZeroU32::new(1_000_000).unwrap());
    let (limits, one, two) = (limits(), RateLimiter::keyed(quota), RateLimiter::keyed(quota));
    let is_taken = |answer| matches!(answer, Ok(Answer::Taken { .. }));
    let moment = now();
    let ways: [(&str, Way<'_>); 5] = [
        ("governor, one limit", &|key| one.check_key(key).is_ok()),
        ("tidegate-limit, one limit", &|key| is_taken(limits.take([("one", &[key])], now()))),
        ("the same, at a time that is given", &|key| {
            is_taken(limits.take([("one", &[key])], moment))
        }),
        ("governor, two limits, one after the other", &|key| {
            one.check_key(key).is_ok() && two.check_key(key).is_ok()
        }),
        ("tidegate-limit, two limits together", &|key| {
            is_taken(limits.take([("one", &[key]), ("two", &[key])], now()))
        }),
    ];
    let keys = keys();
    let mut rounds = ways.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for ((_, way), rounds) in ways.iter().zip(&mut rounds) {
            let before = cpu("/proc/thread-self/schedstat");
            for key in (0..PASSES).flat_map(|_| &keys) {
                assert!(way(black_box(key)));
            }
            rounds.push((cpu("/proc/thread-self/schedstat") - before) / (PASSES * KEYS) as u64);
        }
    }
    println!("in the process, nanoseconds of CPU for a decision, and how many times the first:");
    tell(ways.map(|(name, _)| name), &rounds);
}

/// Prints for each way the median of its rounds, and the median of its ratios to the first way in the same round.
fn tell<const N: usize>(names: [&str; N], rounds: &[Vec<u64>; N]) {
    for (name, of_way) in names.into_iter().zip(rounds) {
        let ratio = |(one, first): (&u64, &u64)| 100 * one / first;
        let mut ratios: Vec<_> = of_way.iter().zip(&rounds[0]).map(ratio).collect();
        let mut sorted = of_way.clone();
        ratios.sort_unstable();
        sorted.sort_unstable();
        println!("  {:5} {:6.2} {name}", sorted[ROUNDS / 2], ratios[ROUNDS / 2] as f64 / 100.0);
    }
}

/// Bytes of a bucket among a million.
fn memory() {
    const MANY: u32 = 1_000_000;
    let per_key = |fill: &dyn Fn(&str)| {
        let used = allocation_counter::measure(|| {
            (0..MANY).for_each(|key| fill(&key.to_string()));
        });
        used.bytes_current / i64::from(MANY)
    };
    let quota = Quota::per_hour(NonZeroU32::new(1_000).unwrap());
    let governor = RateLimiter::<String, _, _>::keyed(quota);
    let limits = Limits::new([Limit::token_bucket("one", "1000/h".parse().unwrap())]).unwrap();
    let (moment, map) = (now(), per_key(&|key| drop(governor.check_key(&key.to_owned()))));
    let table = per_key(&|key| drop(limits.take([("one", &[key])], moment)));
    println!("bytes for each of a million keys:\n  {map:5} governor\n  {table:5} tidegate-limit");
}

async fn in_redis() {
    let server = Server::start();
    let connection = server.connection().await;
    let limits = RedisLimits::new(limits(), "bench", connection.clone());
    let keys = keys();
    let mut rounds = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        for (way, rounds) in rounds.iter_mut().enumerate() {
            let before = server.cpu();
            for some in keys.chunks(64) {
                let all = some.iter().map(|key| one_call(way, key, &limits, connection.clone()));
                futures_util::future::join_all(all).await;
            }
            rounds.push((server.cpu() - before) / KEYS as u64);
        }
    }
    println!(
        "in Redis, nanoseconds of the server's CPU, 64 calls at once, and how many times the first:"
    );
    let names = [
        "INCR and PEXPIRE, which is no limit yet",
        "tidegate-limit, one limit",
        "tidegate-limit, two limits",
    ];
    tell(names, &rounds);
    let size = async |key: &str| -> u64 {
        redis::cmd("MEMORY")
            .arg("USAGE")
            .arg(key)
            .query_async(&mut connection.clone())
            .await
            .unwrap()
    };
    let (plain, ours) = (size("198.51.0.0").await, size("bench:{198.51.0.0}:one").await);
    println!("bytes of a key in Redis:\n  {plain:5} INCR\n  {ours:5} tidegate-limit");
}

async fn one_call(
    way: usize,
    key: &str,
    limits: &RedisLimits<MultiplexedConnection>,
    mut connection: MultiplexedConnection,
) {
    let answer = match way {
        0 => {
            let mut pipe = redis::pipe();
            pipe.incr(key, 1).ignore().pexpire(key, 3_600_000).ignore();
            return pipe.exec_async(&mut connection).await.unwrap();
        }
        1 => limits.take([("one", &[key])]).await,
        _ => limits.take([("one", &[key]), ("two", &[key])]).await,
    };
    assert!(matches!(answer.unwrap(), Answer::Taken { .. }));
}

struct Server {
    process: Child,
    folder: std::path::PathBuf,
}

impl Server {
    fn start() -> Self {
        let folder =
            std::env::temp_dir().join(format!("tidegate-limit-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(folder.join("socket"));
        Self { process: command.stdout(Stdio::null()).spawn().unwrap(), folder }
    }

    async fn connection(&self) -> MultiplexedConnection {
        let url = format!("redis+unix://{}", self.folder.join("socket").display());
        // redis-rs allows half a second for a call. On a busy machine a call may take longer, and then the run would
        // end.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        loop {
            let client = redis::Client::open(url.as_str()).unwrap();
            match client.get_multiplexed_async_connection_with_config(&config).await {
                Ok(connection) => return connection,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    /// The CPU time of all threads of the server so far.
    fn cpu(&self) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
        tasks.map(|task| cpu(task.unwrap().path().join("schedstat"))).sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
