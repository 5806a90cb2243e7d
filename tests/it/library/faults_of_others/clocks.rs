//! Clocks that do not agree.

use std::collections::HashMap;
use std::time::Duration;

use tidegate::limit::algorithm::Algorithm;
use tidegate::limit::algorithm::fixed_window::windows::{Schedule, Unit};
use tidegate::limit::time::Timestamp;

use super::SECOND;
use crate::support::algorithms::{leaky, log, on_the_clock, rolling, sliding, slots, window};
use crate::support::bench::Bench;
use crate::support::limits::{ask, bucket, key, limit};
use crate::support::redis::RedisServer;

/// The clocks of two proxies that ask in turn, all within a moment.
fn in_turn(ahead: u64) -> impl Iterator<Item = u64> {
    (0..200).map(move |call| 100 * SECOND + call % 2 * ahead)
}

/// Scripts to which the caller tells the time: a counter whose key has the second in its name admits
/// twice as many, and a bucket that gains what the one clock is ahead of the other admits everything.
#[tokio::test]
async fn clocks_that_differ_by_a_second_admit_no_more() {
    let mut windows = HashMap::new();
    let mut counter = |now: u64| {
        let used = windows.entry(now / SECOND).or_insert(0);
        *used += 1;
        *used <= 20
    };
    assert_eq!(in_turn(SECOND).filter(|now| counter(*now)).count(), 40);
    let (mut tokens, mut last) = (20, 0);
    let mut gaining = |now: u64| {
        tokens = (tokens + now.saturating_sub(last) * 20 / SECOND).min(20);
        last = now;
        let passes = tokens > 0;
        tokens -= u64::from(passes);
        passes
    };
    assert_eq!(in_turn(SECOND).filter(|now| gaining(*now)).count(), 200);

    let server = RedisServer::start();
    let proxies = [Bench::of(&server), Bench::of(&server)];
    let (seconds, _): (u64, u64) = server.run(&["TIME"]);
    let clock = |seconds| Timestamp::from_micros(seconds * SECOND).unwrap();
    // A day of three hours, one hour of which is over, and others around it.
    let begins = (0..9).map(|day| clock(seconds - 7 * 3_600 + day * 3 * 3_600));
    let days = Schedule::new(Unit::Day, "Somewhere".into(), begins.collect()).unwrap();
    for ahead in [1, 7_200] {
        for (number, algorithm) in [
            bucket("20/h", 20),
            rolling("20/h"),
            on_the_clock("20/3650d"),
            sliding("20/3650d"),
            log("20/h"),
            slots(20, Duration::from_secs(3_600)),
            // Each proxy sends the windows around its own time.
            window(20, days.around(clock(seconds))),
        ]
        .into_iter()
        .enumerate()
        {
            let (spec, key) = (limit(&format!("{number}-{ahead}")), key("192.0.2.1"));
            let mut passed = Vec::new();
            for call in 0..200 {
                let now = clock(seconds + call % 2 * ahead);
                let mut one = ask(&spec, &key, 1);
                one.ask.algorithm = match algorithm {
                    Algorithm::FixedWindow(params) if number == 6 => {
                        window(params.count.get(), days.around(now))
                    }
                    algorithm => algorithm,
                };
                let proxy = &proxies[usize::try_from(call % 2).unwrap()];
                let answer = proxy.decide_at(&[one], now).await;
                passed.extend(answer.verdict.passes().then_some(answer));
            }
            assert_eq!(passed.len(), 20, "{algorithm}, {ahead} s ahead");
        }
    }
    // Of a leaky bucket one goes at once.
    let (spec, key) = (limit("leaky"), key("192.0.2.1"));
    let mut passed = 0;
    for call in 0..200 {
        let mut one = ask(&spec, &key, 1);
        one.ask.algorithm = leaky("1/h", 9);
        let proxy = &proxies[usize::try_from(call % 2).unwrap()];
        passed +=
            u64::from(proxy.decide_at(&[one], clock(seconds + call % 2)).await.verdict.passes());
    }
    assert_eq!(passed, 1);
}
