//! Two processes that share a limit through Redis: together they get what the limit gives, and no more.
//!
//! `cargo run -p tidegate-limit --features redis --example processes`, with a Redis at `redis://127.0.0.1:6379` or at
//! the URL that the environment has in `REDIS_URL`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::process::Command;
use std::time::Duration;

use tidegate_limit::{Answer, Limit, Limits, RedisLimits};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(name) = std::env::args().nth(1) else {
        // The first process starts the two that share the limit.
        let program = std::env::current_exe()?;
        let both = ["one", "two"].map(|name| Command::new(&program).arg(name).spawn());
        for process in both {
            process?.wait()?;
        }
        return Ok(());
    };
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".to_owned());
    let connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let limits = Limits::new([Limit::token_bucket("shared", "4/s".parse()?).burst(8)])?;
    let limits = RedisLimits::new(limits, "tidegate-example", connection);
    let (mut taken, mut rejected) = (0, 0);
    for _ in 0..60 {
        match limits.take([("shared", &["everybody"])]).await? {
            Answer::Taken { .. } => taken += 1,
            Answer::Rejected { .. } => rejected += 1,
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!(
        "process {name}: {taken} taken, {rejected} rejected; both together took about 8 + 3 * 4"
    );
    Ok(())
}
