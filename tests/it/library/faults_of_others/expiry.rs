//! What is forgotten too early, too late, or never.

use std::time::Duration;

use tidegate::limit::algorithm::Algorithm;
use tidegate::limit::algorithm::fixed_window::windows::{Schedule, Unit};
use tidegate::limit::rate::Cost;
use tidegate::limit::time::Timestamp;
use tidegate::limit::waiting::MaxWait;
use tidegate::settings::LimitSpec;
use tidegate::store::{BucketAsk, BucketKey};

use super::SECOND;
use crate::library::cases::all_players::AllPlayers;
use crate::support::algorithms::{leaky, log, on_the_clock, rolling, sliding, slots, window};
use crate::support::bench::Bench;
use crate::support::limits::{ask, bucket, key, limit};
use crate::support::redis::RedisServer;
use crate::support::wait_until;

/// A bucket whose key lives for so many whole seconds after each call.
fn forgetful(per_second: u64, burst: u64, lives: u64) -> impl FnMut(u64) -> bool {
    let mut known: Option<(u64, u64)> = None;
    move |now| {
        let (tokens, last) =
            known.filter(|(_, last)| now < last + lives * SECOND).unwrap_or((burst, now));
        let tokens = (tokens + (now - last) * per_second / SECOND).min(burst);
        known = Some((tokens.saturating_sub(1), now));
        tokens > 0
    }
}

/// Twice the seconds in which the bucket fills, in whole ones: none at all where the burst is less than
/// half of what a second brings. Its key is gone as soon as it is written, and nothing is ever limited.
#[test]
fn a_burst_smaller_than_half_the_rate_still_limits() {
    let (rate, burst) = (100, 10);
    let calls = || (0..1_000).map(|call| call * SECOND / 1_000);
    let mut script = forgetful(rate, burst, 2 * (burst / rate));
    assert_eq!(calls().filter(|now| script(*now)).count(), 1_000);

    let players = AllPlayers::start();
    // Ten at the begin, and then one each ten milliseconds, of which the last begins at 0.99 s.
    assert_eq!(players.passed(bucket("100/s", 10), calls()), 10 + 99);
}

/// Ten million a second: a bucket of one is full again in a tenth of a microsecond, and its key lives all
/// the same until Redis's next millisecond.
#[test]
fn no_expiry_is_rounded_down_to_none() {
    let players = AllPlayers::start();
    for algorithm in [
        bucket("10000000/s", 1),
        rolling("1/1us"),
        on_the_clock("1/1us"),
        sliding("1/1us"),
        log("1/1us"),
    ] {
        assert_eq!(players.passed(algorithm, [0, 0, 0]), 1, "{algorithm}");
    }
}

/// Of every algorithm one, whose buckets are as new after some tenths of a second; and slots, each as
/// long as they can be leased at least.
fn short() -> Vec<Algorithm> {
    vec![
        bucket("10/200ms", 10),
        leaky("10/200ms", 9),
        rolling("10/200ms"),
        on_the_clock("10/200ms"),
        sliding("10/200ms"),
        log("10/200ms"),
        slots(10, Duration::from_secs(1)),
    ]
}

/// An ask of each of these limits, all by one key.
fn asks<'r>(
    specs: &'r [LimitSpec],
    key: &'r BucketKey,
    algorithms: &[Algorithm],
) -> Vec<BucketAsk<'r>> {
    let each = specs.iter().zip(algorithms).map(|(spec, algorithm)| {
        let mut ask = ask(spec, key, 1);
        ask.ask.algorithm = *algorithm;
        ask
    });
    each.collect()
}

fn specs(count: usize) -> Vec<LimitSpec> {
    (0..count).map(|number| limit(&format!("limit-{number}"))).collect()
}

#[tokio::test]
async fn nothing_is_left_in_redis_of_1000_keys_that_nobody_uses() {
    let server = RedisServer::start();
    let bench = Bench::of(&server);
    let (algorithms, specs) = (short(), specs(short().len()));
    let mut most = 0;
    for number in 0..1_000 {
        let key = key(&number.to_string());
        let answer = bench.decide_at(&asks(&specs, &key, &algorithms), Bench::now()).await;
        assert!(answer.verdict.passes());
        // As of a process that is killed: nobody gives its slots back.
        std::mem::forget(answer);
        if number % 100 == 0 {
            most = most.max(server.run::<u64>(&["DBSIZE"]));
        }
    }
    assert!(most >= 7, "there was something: {most}");
    drop(bench);
    wait_until("Redis is empty", || server.run::<u64>(&["DBSIZE"]) == 0);
}

/// Redis's clock.
struct Watch<'s>(&'s RedisServer);

impl Watch<'_> {
    fn micros(&self) -> u64 {
        let (seconds, micros): (u64, u64) = self.0.run(&["TIME"]);
        seconds * SECOND + micros
    }

    /// The millisecond at which the only bucket's key goes.
    fn goes_at(&self) -> u64 {
        let keys: Vec<String> = self.0.run(&["KEYS", "tidegate:{192.0.2.1}:*"]);
        assert_eq!(keys.len(), 1, "{keys:?}");
        self.0.goes_at(&keys[0]).unwrap_or_else(|| panic!("{} never goes", keys[0]))
    }
}

/// A bucket, and how long its key is needed.
struct Case {
    name: &'static str,
    algorithm: Algorithm,
    /// Of the first request; a second one is held.
    cost: u64,
    is_one_held: bool,
    /// The microsecond until which it is needed, by that of the last request.
    until: Box<dyn Fn(u64) -> u64>,
}

#[tokio::test]
async fn every_key_goes_when_it_is_as_good_as_new_and_not_later() {
    const MINUTE: u64 = 60 * SECOND;
    const HOUR: u64 = 60 * MINUTE;
    let server = RedisServer::start();
    let watch = Watch(&server);
    let (spec, key) = (limit("one"), key("192.0.2.1"));
    let now = watch.micros();
    // A window of five hours, which began an hour ago, and others around it.
    let hours = |hours: u64| Timestamp::from_micros(now - 6 * HOUR + hours * HOUR).unwrap();
    let begins = [0, 5, 10, 17, 24].map(hours);
    let calendar = Schedule::new(Unit::Day, "Somewhere".into(), begins.to_vec()).unwrap();
    let case = |name, algorithm, cost, until: Box<dyn Fn(u64) -> u64>| Case {
        name,
        algorithm,
        cost,
        is_one_held: false,
        until,
    };
    let held = |name, algorithm, until: Box<dyn Fn(u64) -> u64>| Case {
        is_one_held: true,
        ..case(name, algorithm, 1, until)
    };
    let in_a_while = |micros: u64| Box::new(move |now| now + micros);
    let eight_hours = |windows: u64| Box::new(move |now| (now / (8 * HOUR) + windows) * 8 * HOUR);
    // A window that stands on the clock is kept for a second longer, for clocks that are a little behind.
    let and_a_second = |until: Box<dyn Fn(u64) -> u64>| Box::new(move |now| until(now) + SECOND);
    for Case { name, algorithm, cost, is_one_held, until } in [
        case("three tokens of six minutes", bucket("10/h", 10), 3, in_a_while(18 * MINUTE)),
        case("a third of a second", bucket("3/s", 3), 1, in_a_while(333_334)),
        case("what stands for an hour", leaky("1/h", 5), 1, in_a_while(HOUR)),
        case("a window from now on", rolling("5/2h"), 3, in_a_while(2 * HOUR)),
        case("a window of the clock", on_the_clock("5/8h"), 3, and_a_second(eight_hours(1))),
        case(
            "a window of the calendar",
            window(5, calendar.around(hours(6))),
            3,
            and_a_second(Box::new(move |_| begins[2].as_micros())),
        ),
        case("a window and the one behind it", sliding("5/8h"), 3, eight_hours(2)),
        case("the youngest entry", log("5/h"), 3, in_a_while(HOUR)),
        case("a lease", slots(5, Duration::from_secs(60)), 1, in_a_while(MINUTE)),
        held("a token that is owed", bucket("1/h", 1), in_a_while(2 * HOUR)),
        held("a queue", leaky("1/h", 5), in_a_while(2 * HOUR)),
        held("a place in the next window", rolling("1/2h"), in_a_while(4 * HOUR)),
        held("an entry in the future", log("1/h"), in_a_while(2 * HOUR)),
    ] {
        let () = server.run(&["FLUSHALL"]);
        let bench = Bench::of(&server);
        let mut one = ask(&spec, &key, 1);
        one.ask.algorithm = algorithm;
        one.ask.cost = Cost::new(cost).unwrap();
        let before = watch.micros();
        let answer = bench.decide_at(&[one], Bench::now()).await;
        if is_one_held {
            one.ask.max_wait = MaxWait::ENDLESS;
            assert!(bench.decide_at(&[one], Bench::now()).await.verdict.passes());
        }
        let after = watch.micros();
        // To the next of Redis's milliseconds.
        let expected = until(before) / 1_000 + 1..=until(after) / 1_000 + 1;
        let goes_at = watch.goes_at();
        assert!(expected.contains(&goes_at), "{name}: {goes_at} is not in {expected:?}");
        drop(answer);
    }
}
