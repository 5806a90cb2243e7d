//! Workers that call an API with a quota of five calls a second. Each call has its turn, and its worker sleeps exactly
//! until then: no call is too early, none is asked about twice.
//!
//! `cargo run -p tidegate-limit --example worker`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use tidegate_limit::{Answer, Limit, Limits, now};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // At even spacing, at most 20 calls waiting. Beside it a quota a minute, for which a job waits half a minute.
    let limits = Limits::new([
        Limit::leaky_bucket("api", "5/s".parse()?, 20),
        Limit::sliding_log("api-a-minute", "200/m".parse()?).max_wait(Duration::from_secs(30)),
    ])?;
    let begin = now();
    let jobs = (1..=12).map(|job| {
        let limits = limits.clone();
        tokio::spawn(async move {
            match limits.take([("api", &[]), ("api-a-minute", &[])], now()) {
                Ok(Answer::Taken { wait, .. }) => {
                    tokio::time::sleep(wait).await;
                    let after = now().steady.micros_since(begin.steady);
                    println!("job {job:2} calls the API after {:4} ms", after / 1000);
                }
                Ok(Answer::Rejected { by, retry_after, .. }) => {
                    println!("job {job:2} is too much for {by}, come again in {retry_after:?}");
                }
                Err(error) => println!("job {job:2}: {error}"),
            }
        })
    });
    for job in jobs.collect::<Vec<_>>() {
        job.await?;
    }
    Ok(())
}
