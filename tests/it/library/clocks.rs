//! Clocks that do not agree.

use std::time::Duration;

use tidegate::limit::algorithm::Algorithm;
use tidegate::limit::algorithm::fixed_window::windows::{Schedule, Unit};
use tidegate::limit::time::Timestamp;

use crate::library::cases::algorithms::SECOND;
use crate::support::algorithms::{leaky, log, on_the_clock, rolling, sliding, slots, window};
use crate::support::bench::Bench;
use crate::support::limits::{ask, bucket, key, limit};
use crate::support::redis::RedisServer;

/// Other limiters have scripts to which the caller tells the time: they admit twice as many, or everything.
#[tokio::test]
async fn clocks_that_differ_by_a_second_admit_no_more() {
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
            leaky("1/h", 9),
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
                    Algorithm::FixedWindow(params) if number == 7 => {
                        window(params.count.get(), days.around(now))
                    }
                    algorithm => algorithm,
                };
                let proxy = &proxies[usize::try_from(call % 2).unwrap()];
                let answer = proxy.decide_at(&[one], now).await;
                passed.extend(answer.verdict.passes().then_some(answer));
            }
            // Of a leaky bucket one goes at once.
            let expected = if matches!(algorithm, Algorithm::LeakyBucket(_)) { 1 } else { 20 };
            assert_eq!(passed.len(), expected, "{algorithm}, {ahead} s ahead");
        }
    }
}
